/**
 * What the page counts. Pure bookkeeping, without a document: it is told of
 * every message that arrives and of every message the client delivers, and
 * says what became of them.
 */

/**
 * live: followed what was there · replay: the same, read back from history ·
 * held: came early, waits for those before it · duplicate: had been seen.
 * @typedef {'live' | 'replay' | 'held' | 'duplicate'} Kind
 */

/**
 * @typedef {object} Verdict
 * @property {boolean} identical
 * @property {number} tokens delivered
 * @property {number} missing of the source, never delivered
 * @property {number} doubled delivered more than once
 * @property {number} disordered delivered after a later one
 * @property {number} arrived in raw order
 * @property {number} outOfPlace of those, how many do not continue what arrived before them
 */

export class Measure {
  received = 0
  delivered = 0
  duplicates = 0
  outOfPlace = 0
  doubled = 0
  disordered = 0
  gaps = 0
  recovered = 0
  /** newest offset in raw order */
  #last = 0
  /** up to here everything has arrived */
  #reach = 0
  /** arrived beyond reach @type {Set<number>} */
  #early = new Set()
  #position = 0
  /** @type {Set<number>} */
  #offsets = new Set()

  /** offset of the newest message delivered */
  get position() {
    return this.#position
  }

  /** messages that have arrived and wait for earlier ones */
  get held() {
    return this.#early.size
  }

  /**
   * arrive takes note of one message in raw order.
   *
   * @param {number} offset
   * @param {boolean} replay
   * @returns {{ kind: Kind, stray: boolean }} stray: it does not continue the one before it
   */
  arrive(offset, replay) {
    this.received++
    const stray = offset !== this.#last + 1
    this.#last = offset
    if (stray) this.outOfPlace++
    if (offset <= this.#reach || this.#early.has(offset)) {
      this.duplicates++
      return { kind: 'duplicate', stray }
    }
    if (offset > this.#reach + 1) {
      this.#early.add(offset)
      return { kind: 'held', stray }
    }
    this.#reach = offset
    while (this.#early.delete(this.#reach + 1)) this.#reach++
    return { kind: replay ? 'replay' : 'live', stray }
  }

  /** @param {number} offset */
  deliver(offset) {
    this.delivered++
    if (this.#offsets.has(offset)) this.doubled++
    else if (offset < this.#position) this.disordered++
    this.#offsets.add(offset)
    this.#position = offset
  }

  /** disconnected: the client lets go of what it held, and so do we. */
  disconnected() {
    this.#early.clear()
    this.#reach = this.#position
  }

  /**
   * reset: the stream goes on after this offset, perhaps in a new epoch.
   * @param {number} offset
   */
  reset(offset) {
    this.#early.clear()
    this.#reach = this.#position = this.#last = offset
  }

  /**
   * verdict compares what was delivered with the source.
   *
   * @param {string} text
   * @param {string} source
   * @param {number} tokens of the source
   * @returns {Verdict}
   */
  verdict(text, source, tokens) {
    let missing = tokens
    for (const offset of this.#offsets) if (offset <= tokens) missing--
    const { delivered, doubled, disordered, received, outOfPlace } = this
    const identical = text === source && !missing && !doubled && !disordered
    return { identical, tokens: delivered, missing, doubled, disordered, arrived: received, outOfPlace }
  }
}
