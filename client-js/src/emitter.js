/**
 * Emitter calls listeners in the order they were added. A listener added while
 * an event is being told waits for the next one; a listener taken away is not
 * called any more, not even for the event being told.
 *
 * @template {Record<string, any>} Events
 */
export class Emitter {
  /** @type {Map<keyof Events, Set<{ listener: (value: any) => void }>>} */
  #listeners = new Map()

  /**
   * @template {keyof Events} Name
   * @param {Name} name
   * @param {(value: Events[Name]) => void} listener
   * @returns {() => void} the undo of this very call
   */
  on(name, listener) {
    if (typeof listener !== 'function') throw new TypeError('chronocast: a listener is a function')
    const entry = { listener }
    const entries = this.#listeners.get(name) ?? new Set()
    this.#listeners.set(name, entries.add(entry))
    return () => void entries.delete(entry)
  }

  /** @param {keyof Events} name */
  count(name) {
    return this.#listeners.get(name)?.size ?? 0
  }

  /**
   * emit returns whether anybody listened. What a listener throws goes to
   * failed, and the next listener is called all the same.
   *
   * @template {keyof Events} Name
   * @param {Name} name
   * @param {Events[Name]} value
   * @param {(thrown: unknown) => void} failed
   */
  emit(name, value, failed) {
    const entries = this.#listeners.get(name)
    if (!entries?.size) return false
    for (const entry of [...entries]) {
      if (!entries.has(entry)) continue
      try {
        entry.listener(value)
      } catch (thrown) {
        failed(thrown)
      }
    }
    return true
  }
}
