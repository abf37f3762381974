import { backoff } from './backoff.js'
import { ChronocastError } from './errors.js'
import { SUBPROTOCOL, decode } from './frames.js'

/** @typedef {import('./frames.js').Frame} Frame */
/** @typedef {import('./platform.js').Platform} Platform */

/**
 * What the client uses of a WebSocket: the browser's, Node's and `ws` have it.
 * @typedef {object} Socket
 * @property {string} protocol
 * @property {((event: any) => void) | null} onopen
 * @property {((event: any) => void) | null} onmessage
 * @property {((event: any) => void) | null} onclose
 * @property {((event: any) => void) | null} onerror
 * @property {(text: string) => void} send
 * @property {(code?: number, reason?: string) => void} close
 */
/** @typedef {new (url: string, protocols: string[]) => Socket} SocketClass */

/** @typedef {'idle' | 'connecting' | 'connected' | 'waiting' | 'closed'} ConnectionState */

/** @typedef {string | (() => string | null | undefined | Promise<string | null | undefined>)} Token */

/**
 * @typedef {object} Hooks
 * @property {(state: ConnectionState) => void} state
 * @property {() => void} up the server has welcomed us
 * @property {() => void} down and it is gone
 * @property {(frame: Frame) => void} frame
 * @property {(error: ChronocastError) => void} error
 */

/** From the start of an attempt to the server's welcome. */
export const CONNECT_DEADLINE = 10_000
/** The server pings every 3 s; silence longer than this raises a suspicion. */
export const STALE_AFTER = 8000
/** Between two looks at the silence. */
export const WATCH_INTERVAL = 3000

/** Close codes that say so of a frame of ours: not understood, too large. */
const REFUSED = [1003, 1009]

/**
 * Connection keeps one socket: it connects, notices a dead link, and connects
 * again for as long as it is wanted. It knows nothing of streams.
 */
export class Connection {
  /** @type {ConnectionState} */
  state = 'idle'
  /** @type {Socket | null} */
  #socket = null
  /** counts sockets, so that words of an earlier one are not heard */
  #life = 0
  #attempt = 0
  /** @type {unknown} */
  #timer
  /** when the last frame came */
  #heard = 0
  #suspect = false
  /** @type {string | null | undefined} kept until it has expired or an attempt with it has failed */
  #token
  /** @type {(() => void) | null} */
  #unwatch = null

  /**
   * @param {string} url
   * @param {{ token: Token | undefined, WebSocket: SocketClass, minDelay: number, maxDelay: number }} options
   * @param {Platform} platform
   * @param {Hooks} hooks
   */
  constructor(url, options, platform, hooks) {
    this.url = url
    this.options = options
    this.platform = platform
    this.hooks = hooks
  }

  /** start connects unless it has been started already. */
  start() {
    if (this.state !== 'idle' && this.state !== 'closed') return
    this.#attempt = 0
    this.#unwatch = this.platform.watch((sign) => this.#sign(sign))
    this.#connect()
  }

  /** @param {'idle' | 'closed'} [state] */
  stop(state = 'idle') {
    this.#unwatch?.()
    this.#unwatch = null
    this.#drop(state)
  }

  /** restart gives up the socket and takes a new one after the usual wait. */
  restart() {
    if (this.#unwatch) this.#lost()
  }

  /** @param {string} text */
  send(text) {
    if (this.state === 'connected') this.#socket?.send(text)
  }

  #connect() {
    const life = ++this.#life
    this.#enter('connecting')
    if (life !== this.#life) return
    this.#arm(CONNECT_DEADLINE, () => this.#lost(new ChronocastError('timeout', 'the server does not answer')))
    this.#open(life)
  }

  /** @param {number} life */
  async #open(life) {
    try {
      const { token: ask, WebSocket } = this.options
      const token = this.#token ?? (typeof ask === 'function' ? await ask() : ask)
      if (life !== this.#life) return
      this.#token = token
      const url = new URL(this.url)
      if (token) url.searchParams.set('token', token)
      const socket = new WebSocket(url.href, [SUBPROTOCOL])
      this.#socket = socket
      socket.onopen = () => {
        if (socket.protocol !== SUBPROTOCOL) {
          this.#end(new ChronocastError('protocol', `the server does not speak ${SUBPROTOCOL}`))
        }
      }
      socket.onmessage = ({ data }) => this.#receive(data)
      socket.onclose = ({ code }) =>
        this.#lost(REFUSED.includes(code) ? new ChronocastError('refused', 'the server refused a frame: ' + code) : undefined)
      socket.onerror = () => {} // a close follows, and tells as much
    } catch (thrown) {
      if (life === this.#life) this.#lost(new ChronocastError('connect', `no token or no socket: ${thrown}`, thrown))
    }
  }

  /** @param {unknown} data */
  #receive(data) {
    this.#heard = this.platform.now()
    this.#suspect = false
    /** @type {Frame | null} */
    let frame
    try {
      frame = decode(data)
    } catch (thrown) {
      return this.hooks.error(/** @type {ChronocastError} */ (thrown))
    }
    if (frame?.type === 'disconnect') return this.#dismissed(frame)
    if (frame?.type === 'welcome') {
      const life = this.#life
      this.#watch(WATCH_INTERVAL)
      this.#enter('connected')
      if (life === this.#life) this.hooks.up()
      return
    }
    // A server that only welcomes and goes does not count as one that is back.
    this.#attempt = 0
    if (frame) this.hooks.frame(frame)
  }

  /** @param {{ reason: string, reconnect?: boolean }} frame */
  #dismissed({ reason, reconnect }) {
    const renewable = reason === 'token_expired' && typeof this.options.token === 'function'
    if (renewable) this.#token = null
    if (reconnect === false && !renewable) {
      return this.#end(new ChronocastError('disconnected', `the server sends us away: ${reason}`, reason))
    }
    // Everybody is sent away at once: come back more widely spread.
    if (reason === 'server_restart') this.#attempt = Math.max(this.#attempt, 2)
    this.#lost()
  }

  /**
   * watch looks at the silence. After a frozen or throttled spell the timer may
   * run before the frames that waited with it, so one look raises a suspicion
   * and only a second one, with no frame in between, judges.
   *
   * @param {number} ms
   */
  #watch(ms) {
    this.#arm(ms, () => {
      if (this.#suspect) return this.#lost()
      this.#suspect = this.platform.now() - this.#heard > STALE_AFTER
      this.#watch(WATCH_INTERVAL)
    })
  }

  /** @param {import('./platform.js').PageSign} sign */
  #sign(sign) {
    if (sign === 'hidden') {
      // An open socket keeps a page out of the back/forward cache. Should the page live on, it comes back.
      this.#drop('waiting')
      this.#arm(this.options.maxDelay, () => this.#connect())
    } else if (this.state === 'waiting') {
      this.#arm(this.platform.random() * Math.min(500, this.options.minDelay), () => this.#connect())
    } else if (this.state === 'connected') {
      // The link may have died unseen: the next ping tells.
      this.#suspect = true
      this.#watch(WATCH_INTERVAL + 1000)
    }
  }

  /** @param {ChronocastError} error */
  #end(error) {
    this.stop('closed')
    this.hooks.error(error)
  }

  /** @param {ChronocastError} [error] */
  #lost(error) {
    const { minDelay, maxDelay } = this.options
    this.#drop('waiting')
    if (error) this.hooks.error(error)
    if (this.state !== 'waiting') return
    this.#arm(backoff(this.#attempt++, this.platform.random(), minDelay, maxDelay), () => this.#connect())
  }

  /** @param {'idle' | 'waiting' | 'closed'} state */
  #drop(state) {
    const life = ++this.#life
    const socket = this.#socket
    const was = this.state
    this.#socket = null
    this.platform.clearTimeout(this.#timer)
    if (socket) {
      socket.onopen = socket.onmessage = socket.onclose = null
      socket.close(1000)
    }
    this.state = state
    if (was === 'connected') this.hooks.down()
    else this.#token = null // a page is not told why an attempt fails: it may be for the token
    if (was !== state && life === this.#life) this.hooks.state(state)
  }

  /**
   * @param {number} ms
   * @param {() => void} f
   */
  #arm(ms, f) {
    this.platform.clearTimeout(this.#timer)
    this.#timer = this.platform.setTimeout(f, ms)
  }

  /** @param {ConnectionState} state */
  #enter(state) {
    this.state = state
    this.hooks.state(state)
  }
}
