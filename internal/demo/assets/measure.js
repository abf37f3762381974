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
 * @property {boolean} identical all of the source, once, in order
 * @property {boolean} agrees the same, but for what is lost
 * @property {number} tokens delivered
 * @property {number} lost of the source, no longer kept when it was asked for
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
  /** messages no longer kept when they were asked for */
  lost = 0
  /** newest offset in raw order */
  #last = 0
  /** up to here everything has arrived */
  #reach = 0
  /** arrived beyond reach @type {Set<number>} */
  #early = new Set()
  #position = 0
  /** @type {Set<number>} */
  #offsets = new Set()
  /** where in the text shown something is lost @type {number[]} */
  #holes = []

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
   * reset: the stream goes on after this offset; what lies between is lost. A
   * new life of the stream is for a new Measure.
   *
   * @param {number} offset
   * @param {number} shown length of the text delivered so far
   */
  reset(offset, shown) {
    if (offset > this.#position) {
      this.lost += offset - this.#position
      this.#holes.push(shown)
    }
    this.#early.clear()
    this.#reach = this.#position = this.#last = offset
  }

  /**
   * verdict compares what was delivered with the source. Where something is
   * lost, what comes before and after it is compared piece by piece.
   *
   * @param {string} text
   * @param {string} source
   * @param {number} tokens of the source
   * @returns {Verdict}
   */
  verdict(text, source, tokens) {
    const { delivered, doubled, disordered, received, outOfPlace, lost } = this
    let missing = tokens - lost
    for (const offset of this.#offsets) if (offset <= tokens) missing--
    missing = Math.max(0, missing)
    const agrees = this.#fits(text, source) && !missing && !doubled && !disordered
    return { identical: agrees && !lost, agrees, tokens: delivered, missing, doubled, disordered, lost, arrived: received, outOfPlace }
  }

  /**
   * fits reports whether the pieces of text between the holes are the source
   * but for what is lost: its beginning, its end, and the rest in order between.
   *
   * @param {string} text
   * @param {string} source
   */
  #fits(text, source) {
    if (!this.#holes.length) return text === source
    let from = 0
    let reached = 0
    for (const [i, hole] of this.#holes.entries()) {
      const piece = text.slice(from, hole)
      const at = i ? source.indexOf(piece, reached) : source.startsWith(piece) ? 0 : -1
      if (at < 0) return false
      from = hole
      reached = at + piece.length
    }
    return source.slice(reached).endsWith(text.slice(from))
  }
}
