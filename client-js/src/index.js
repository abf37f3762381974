/**
 * Chronocast's client: ordered, recoverable streams over one WebSocket.
 *
 *     import { createClient } from 'chronocast'
 *
 *     const client = createClient('ws://127.0.0.1:8080/cable')
 *     const stream = client.stream('chat/42', { after: 'start' })
 *     stream.on('message', (m) => console.log(m.offset, m.data))
 */

import { Connection } from './connection.js'
import { Emitter } from './emitter.js'
import { ChronocastError } from './errors.js'
import { identifierOf, isName, position } from './frames.js'
import { platform as real } from './platform.js'
import { Stream } from './stream.js'
import { Subscription } from './subscription.js'

export { ChronocastError }

/** @typedef {import('./connection.js').ConnectionState} ConnectionState */
/** @typedef {import('./reorder.js').Position} Position */
/** @typedef {import('./stream.js').After} After */
/** @typedef {import('./stream.js').StreamState} StreamState */
/**
 * @template [Data=any]
 * @typedef {import('./stream.js').Message<Data>} Message
 */
/** @typedef {import('./stream-machine.js').Gap} Gap */
/** @typedef {import('./stream-machine.js').Recovered} Recovered */
/** @typedef {import('./stream-machine.js').Reset} Reset */

/**
 * @typedef {object} Options
 * @property {import('./connection.js').Token} [token] who we are; what a function gave is kept for as long as the server takes it
 * @property {import('./connection.js').SocketClass} [WebSocket] where the platform has none
 * @property {number} [minDelay] widest wait before the first reconnect, in ms; default 500
 * @property {number} [maxDelay] widest wait before any, in ms; default 30,000
 * @property {import('./platform.js').Platform} [platform] clock, timers and page, for tests
 */

/** @typedef {{ state: ConnectionState, error: ChronocastError }} ClientEvents */

/**
 * createClient makes a client for the WebSocket endpoint at url, which may be
 * relative to the page. It connects when the first stream is opened.
 *
 * @param {string | URL} url
 * @param {Options} [options]
 */
export const createClient = (url, options) => new Client(url, options)

class Client {
  #connection
  #platform
  /** @type {Emitter<ClientEvents>} */
  #emitter = new Emitter()
  /** @type {Map<string, Subscription>} */
  #subscriptions = new Map() // by identifier
  #wanted = true
  #closed = false

  /**
   * @param {string | URL} url
   * @param {Options} [options]
   */
  constructor(url, options = {}) {
    const { token, WebSocket = globalThis.WebSocket, minDelay = 500, maxDelay = 30_000, platform = real } = options
    if (!WebSocket) throw new TypeError('chronocast: no WebSocket here; hand one in as an option')
    const address = new URL(url, globalThis.location?.href)
    address.protocol = address.protocol.replace('http', 'ws')
    this.#platform = platform
    this.#connection = new Connection(address.href, { token, WebSocket, minDelay, maxDelay }, platform, {
      state: (state) => this.#emit('state', state),
      error: (error) => this.#error(error),
      up: () => this.#each((subscription) => subscription.up()),
      down: () => this.#each((subscription) => subscription.down()),
      frame: (frame) => this.#frame(frame),
    })
  }

  get state() {
    return this.#connection.state
  }

  /**
   * stream opens a reader of a stream: "now" begins with the next message,
   * "start" with the first one kept, a position with the one after it. The
   * stream is named, or given as the identifier of an Action Cable channel.
   *
   * @template [Data=any]
   * @param {string | Record<string, unknown>} target
   * @param {{ after?: After }} [options]
   * @returns {Stream<Data>}
   */
  stream(target, { after = 'now' } = {}) {
    this.#usable()
    const name = typeof target === 'string' ? target : null
    if (!isName(target) && !(/** @type {any} */ (target)?.channel)) throw new TypeError('chronocast: a stream name is 1 to 255 bytes of UTF-8 without control characters')
    if (after !== 'now' && after !== 'start') {
      try {
        after = position(after)
      } catch {
        throw new TypeError('chronocast: after is "start", "now" or { epoch, offset }')
      }
    }
    const identifier = name ? identifierOf(name) : JSON.stringify(target)
    let subscription = this.#subscriptions.get(identifier)
    if (!subscription) {
      subscription = new Subscription(identifier, name, this.#connection, {
        idle: () => this.#subscriptions.delete(identifier),
        error: (error) => this.#error(error),
      })
      this.#subscriptions.set(identifier, subscription)
    }
    const handle = subscription.open(after)
    if (this.#wanted && this.#connection.state === 'idle') this.#connection.start()
    return new Stream(handle)
  }

  /**
   * @template {keyof ClientEvents} Name
   * @param {Name} event
   * @param {(value: ClientEvents[Name]) => void} listener
   * @returns {() => void} its undo
   */
  on(event, listener) {
    return this.#emitter.on(event, listener)
  }

  /** disconnect lets go of the socket; the streams stay where they are. */
  disconnect() {
    this.#wanted = false
    this.#connection.stop()
  }

  /** connect lets the streams go on after disconnect, or after the server refused. */
  connect() {
    this.#usable()
    this.#wanted = true
    this.#connection.start()
  }

  /** close ends the client and all its streams. */
  close() {
    this.#closed = true
    this.#each((subscription) => {
      for (const handle of [...subscription.handles]) handle.close()
    })
    this.#connection.stop('closed')
  }

  #usable() {
    if (this.#closed) throw new ChronocastError('closed', 'this client is closed')
  }

  /** @param {import('./frames.js').Frame} frame */
  #frame(frame) {
    if (frame.type === 'ping') {
      const heads = new Map(frame.heads)
      return this.#each((subscription) => {
        const at = heads.get(subscription.name ?? '')
        if (at) subscription.head(at)
      })
    }
    const subscription = 'identifier' in frame && this.#subscriptions.get(frame.identifier ?? '')
    if (subscription) subscription.receive(frame)
    else if (frame.type === 'error') this.#error(new ChronocastError(frame.reason, frame.message))
  }

  /** @param {(subscription: Subscription) => void} f */
  #each(f) {
    for (const subscription of [...this.#subscriptions.values()]) f(subscription)
  }

  /**
   * @template {keyof ClientEvents} Name
   * @param {Name} name
   * @param {ClientEvents[Name]} value
   */
  #emit(name, value) {
    this.#emitter.emit(name, value, this.#platform.report)
  }

  /** @param {ChronocastError} error */
  #error(error) {
    if (this.#emitter.has('error')) this.#emit('error', error)
    else this.#platform.report(error)
  }
}
