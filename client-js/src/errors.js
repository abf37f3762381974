/**
 * ChronocastError is what every `error` event carries. `code` is a word to
 * branch on, the message a sentence for people.
 *
 * Codes that end something: `rejected` (this stream is closed), `disconnected`
 * and `protocol` (the client is closed; `connect()` tries again). All others
 * tell of something the client deals with by itself.
 */
export class ChronocastError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   * @param {unknown} [cause]
   */
  constructor(code, message, cause) {
    super('chronocast: ' + message, { cause })
    this.name = 'ChronocastError'
    this.code = code
  }
}
