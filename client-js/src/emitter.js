/**
 * @template Events
 * @typedef {{ name: keyof Events, listener: (value: any) => void, off?: boolean }} Entry
 */

/**
 * Emitter calls listeners in the order they were added. A listener added while
 * an event is being told waits for the next one; a listener taken away is not
 * called any more, not even for the event being told.
 *
 * @template {Record<string, any>} Events
 */
export class Emitter {
  /** @type {Entry<Events>[]} */
  #entries = []

  /**
   * @template {keyof Events} Name
   * @param {Name} name
   * @param {(value: Events[Name]) => void} listener
   * @returns {() => void} the undo of this very call
   */
  on(name, listener) {
    /** @type {Entry<Events>} */
    const entry = { name, listener }
    this.#entries = [...this.#entries, entry]
    return () => {
      entry.off = true
      this.#entries = this.#entries.filter((other) => other !== entry)
    }
  }

  /** @param {keyof Events} name */
  has(name) {
    return this.#entries.some((entry) => entry.name === name)
  }

  /**
   * emit calls every listener; what one throws goes to failed and stops none of
   * the others.
   *
   * @template {keyof Events} Name
   * @param {Name} name
   * @param {Events[Name]} value
   * @param {(thrown: unknown) => void} failed
   */
  emit(name, value, failed) {
    for (const entry of this.#entries) {
      if (entry.name !== name || entry.off) continue
      try {
        entry.listener(value)
      } catch (thrown) {
        failed(thrown)
      }
    }
  }
}
