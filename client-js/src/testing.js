/**
 * For tests of what is built on the client: a clock that moves when told to, a
 * socket without a network, and a server that keeps streams in memory.
 *
 *     import { createClient } from 'chronocast'
 *     import { FakeServer, VirtualPlatform } from 'chronocast/testing'
 *
 *     const platform = new VirtualPlatform()
 *     const server = new FakeServer(platform)
 *     const client = createClient('ws://fake/cable', { platform, WebSocket: server.WebSocket })
 *     const stream = client.stream('chat/42')
 *     stream.on('message', (m) => console.log(m.data))
 *     await platform.advance(1000)      // connected and subscribed
 *     server.publish('chat/42', 'hello')
 *     await platform.advance(10)        // and delivered
 */

import { SUBPROTOCOL } from './frames.js'

/** @typedef {import('./platform.js').Platform} Platform */
/** @typedef {import('./platform.js').PageSign} PageSign */
/** @typedef {import('./reorder.js').Position} Position */
/** @typedef {{ at: number, id: number, f: () => void, off?: boolean }} Timer */
/** @typedef {{ command: string, identifier: string, history?: { streams: Record<string, Position> } }} Command */

/**
 * VirtualPlatform is a clock, its timers, a repeatable random source and a
 * page. Time stands still until advance or jump.
 *
 * @implements {Platform}
 */
export class VirtualPlatform {
  /** Errors that nobody listened for. @type {unknown[]} */
  reports = []
  /** @type {Timer[]} a heap by time, then by age */
  #timers = []
  #now = 0
  #id = 0
  #seed
  /** @type {Set<(sign: PageSign) => void>} */
  #watchers = new Set()

  /** @param {number} [seed] */
  constructor(seed = 1) {
    this.#seed = seed
  }

  now = () => this.#now

  random = () => {
    this.#seed = (this.#seed + 0x6d2b79f5) | 0
    let t = Math.imul(this.#seed ^ (this.#seed >>> 15), 1 | this.#seed)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }

  /** @type {Platform['setTimeout']} */
  setTimeout = (f, ms) => {
    /** @type {Timer} */
    const timer = { at: this.#now + Math.max(0, ms), id: ++this.#id, f }
    let i = this.#timers.push(timer) - 1
    while (i && earlier(timer, this.#timer((i - 1) >> 1))) {
      this.#timers[i] = this.#timer((i - 1) >> 1)
      i = (i - 1) >> 1
    }
    this.#timers[i] = timer
    return timer
  }

  /** @param {Timer | undefined} timer */
  clearTimeout = (timer) => {
    if (timer) timer.off = true
  }

  /** @param {unknown} error */
  report = (error) => void this.reports.push(error)

  /** @param {(sign: PageSign) => void} f */
  watch = (f) => {
    this.#watchers.add(f)
    return () => void this.#watchers.delete(f)
  }

  /** page tells the clients what happens to their page. @param {PageSign} sign */
  page(sign) {
    for (const f of [...this.#watchers]) f(sign)
  }

  /** watchers is how many clients listen to the page. */
  get watchers() {
    return this.#watchers.size
  }

  /** due is when the next timer runs, Infinity when there is none. */
  get due() {
    let first
    while ((first = this.#timers[0]) && first.off) this.#pop()
    return first ? first.at : Infinity
  }

  /** fire moves to the next timer and runs it. */
  fire() {
    const { due } = this
    if (due === Infinity) return
    const { f } = this.#pop()
    this.#now = Math.max(this.#now, due)
    f()
  }

  /**
   * advance lets time pass, running each timer at its time and what waits on
   * promises after each.
   *
   * @param {number} ms
   */
  async advance(ms) {
    const end = this.#now + ms
    await settle()
    while (this.due <= end) {
      this.fire()
      await settle()
    }
    this.#now = end
  }

  /**
   * jump lets time pass as in a frozen page: nothing runs meanwhile, and
   * afterwards what is due runs at once, late.
   *
   * @param {number} ms
   */
  async jump(ms) {
    this.#now += ms
    await this.advance(0)
  }

  /** @param {number} i */
  #timer(i) {
    return /** @type {Timer} */ (this.#timers[i])
  }

  #pop() {
    const timers = this.#timers
    const first = this.#timer(0)
    const last = /** @type {typeof first} */ (timers.pop())
    if (timers.length) {
      let i = 0
      for (let child; (child = 2 * i + 1) < timers.length; i = child) {
        if (child + 1 < timers.length && earlier(this.#timer(child + 1), this.#timer(child))) child++
        if (!earlier(this.#timer(child), last)) break
        timers[i] = this.#timer(child)
      }
      timers[i] = last
    }
    return first
  }
}

/**
 * @param {Timer} a
 * @param {Timer} b
 */
const earlier = (a, b) => a.at < b.at || (a.at === b.at && a.id < b.id)

/** settle lets what waits on promises go on, as far as it goes by itself. */
export async function settle() {
  for (let i = 0; i < 6; i++) await null
}

/**
 * @typedef {Pick<WebSocket, 'url' | 'protocol' | 'readyState' | 'onopen' | 'onmessage' | 'onclose' | 'onerror' | 'send' | 'close'>} SocketShape
 */

/**
 * FakeSocket is the client's end of a connection, with the server's hand on it:
 * accept, deliver and drop do what a server and the network would.
 *
 * @implements {SocketShape}
 */
export class FakeSocket {
  /** @type {WebSocket['onopen']} */
  onopen = null
  /** @type {WebSocket['onmessage']} */
  onmessage = null
  /** @type {WebSocket['onclose']} */
  onclose = null
  /** @type {WebSocket['onerror']} */
  onerror = null
  protocol = ''
  /** @type {WebSocket['readyState']} */
  readyState = 0
  /** Commands the client sent. @type {Command[]} */
  sent = []
  /** What the server does with a command. @type {((command: Command) => void) | null} */
  oncommand = null

  /**
   * @param {string | URL} url
   * @param {string | string[]} [protocols]
   */
  constructor(url, protocols = []) {
    this.url = String(url)
    this.protocols = [protocols].flat()
  }

  /** @param {string | ArrayBufferLike | Blob | ArrayBufferView} data */
  send(data) {
    if (this.readyState === 0) throw new DOMException('still connecting', 'InvalidStateError')
    if (this.readyState !== 1) return
    const command = JSON.parse(String(data))
    this.sent.push(command)
    this.oncommand?.(command)
  }

  /** @param {number} [code] */
  close(code) {
    if (code !== undefined && code !== 1000 && !(code >= 3000 && code < 5000)) {
      throw new DOMException('no such close code', 'InvalidAccessError')
    }
    this.drop(code)
  }

  /** accept lets the socket open, with our subprotocol or another. @param {string} [protocol] */
  accept(protocol = SUBPROTOCOL) {
    if (this.readyState !== 0) return
    this.protocol = protocol
    this.readyState = 1
    this.onopen?.call(/** @type {any} */ (this), new Event('open'))
  }

  /** deliver hands a frame to the client. @param {unknown} frame text, or what to make JSON of */
  deliver(frame) {
    if (this.readyState !== 1) return
    const data = typeof frame === 'string' ? frame : JSON.stringify(frame)
    this.onmessage?.call(/** @type {any} */ (this), /** @type {MessageEvent} */ ({ data }))
  }

  /** drop ends the connection. @param {number} [code] */
  drop(code = 1006) {
    if (this.readyState === 3) return
    this.readyState = 3
    this.onclose?.call(/** @type {any} */ (this), /** @type {CloseEvent} */ ({ code, reason: '', wasClean: code !== 1006 }))
  }
}

/**
 * @typedef {object} Log one stream
 * @property {string} epoch
 * @property {number} first lowest offset kept
 * @property {unknown[]} messages all of this epoch, kept or not
 */

/**
 * sent is the offset of the last message sent; replays counts the requests for
 * history that are still being answered.
 * @typedef {{ stream: string, sent: number, replays: number }} Subscribed
 */

/**
 * FakeServer speaks chronocast-v1-json from memory, for any number of clients.
 * By itself it accepts every socket, answers every command and pings; every
 * frame reaches its client at the next advance, in order.
 */
export class FakeServer {
  /** Every socket ever opened, the newest last. @type {FakeSocket[]} */
  sockets = []
  /** Accept sockets. */
  accepting = true
  /** Ping every socket every 3 s. */
  pinging = true
  /** @type {Map<string, Log>} */
  logs = new Map()
  /** How many messages a frame of a replay holds. */
  page = 100
  /** @type {Map<FakeSocket, Map<string, Subscribed>>} */
  #subscribed = new Map()
  #epoch = 1_000_000
  #platform

  /** @param {VirtualPlatform} platform */
  constructor(platform) {
    this.#platform = platform
    const server = this
    const beat = () => {
      if (this.pinging) this.ping()
      platform.setTimeout(beat, 3000)
    }
    beat()
    /** The class to hand to createClient. */
    this.WebSocket = class extends FakeSocket {
      /**
       * @param {string | URL} url
       * @param {string | string[]} [protocols]
       */
      constructor(url, protocols) {
        super(url, protocols)
        server.sockets.push(this)
        server.connected(this)
      }
    }
  }

  /** The newest socket. */
  get socket() {
    const socket = this.sockets.at(-1)
    if (!socket) throw new Error('no client has connected')
    return socket
  }

  /**
   * connected is called with each new socket; replace it to play the server by
   * hand.
   *
   * @param {FakeSocket} socket
   */
  connected(socket) {
    this.#platform.setTimeout(() => this.welcome(socket), 0)
  }

  /** welcome lets a socket open and serves it from then on. @param {FakeSocket} socket */
  welcome(socket) {
    if (!this.accepting) return socket.drop()
    socket.oncommand = (command) => this.answer(socket, command)
    socket.accept()
    this.#subscribed.set(socket, new Map())
    this.send(socket, { type: 'welcome' })
  }

  /**
   * send puts a frame on its way; replace it to be the network.
   *
   * @param {FakeSocket} socket
   * @param {object} frame
   */
  send(socket, frame) {
    const text = JSON.stringify(frame)
    this.#platform.setTimeout(() => socket.deliver(text), 0)
  }

  /** log is a stream; one that was never used is empty. @param {string} stream */
  log(stream) {
    let log = this.logs.get(stream)
    if (!log) this.logs.set(stream, (log = { epoch: String(++this.#epoch), first: 1, messages: [] }))
    return log
  }

  /** head is the position of the newest message. @param {string} stream */
  head(stream) {
    const { epoch, messages } = this.log(stream)
    return { epoch, offset: messages.length }
  }

  /**
   * publish appends a message and sends it to all subscribers.
   *
   * @param {string} stream
   * @param {unknown} data anything JSON can hold
   * @returns {Position}
   */
  publish(stream, data) {
    const log = this.log(stream)
    log.messages.push(data)
    for (const [socket, identifiers] of this.#subscribed) {
      for (const [identifier, subscription] of identifiers) {
        if (subscription.stream !== stream || subscription.replays || socket.readyState !== 1) continue
        subscription.sent = log.messages.length
        const { epoch } = log
        this.send(socket, { identifier, message: data, stream_id: stream, epoch, offset: subscription.sent })
      }
    }
    return this.head(stream)
  }

  /** trim forgets what lies before the offset first. @param {string} stream @param {number} first */
  trim(stream, first) {
    const log = this.log(stream)
    log.first = Math.max(log.first, Math.min(first, log.messages.length + 1))
  }

  /** renumber begins a new life of the stream, with nothing in it. @param {string} stream */
  renumber(stream) {
    this.logs.delete(stream)
    this.log(stream)
    for (const [socket, identifiers] of this.#subscribed) {
      for (const [identifier, subscription] of identifiers) {
        if (subscription.stream === stream) this.#reset(socket, identifier, subscription, 'epoch_changed')
      }
    }
  }

  /** ping tells every socket how far its streams have been sent. */
  ping() {
    for (const [socket, identifiers] of this.#subscribed) {
      const streams = Object.fromEntries(
        [...identifiers.values()].map(({ stream, sent }) => [stream, { epoch: this.log(stream).epoch, offset: sent }]),
      )
      this.send(socket, { type: 'ping', message: 0, streams })
    }
  }

  /** cut drops every connection, as a network does. */
  cut() {
    for (const socket of this.#subscribed.keys()) socket.drop()
    this.#subscribed.clear()
  }

  /** subscriptions is what is subscribed on a socket. @param {FakeSocket} [socket] */
  subscriptions(socket = this.socket) {
    return [...(this.#subscribed.get(socket)?.values() ?? [])].map(({ stream }) => stream)
  }

  /**
   * answer does what a command asks for.
   *
   * @param {FakeSocket} socket
   * @param {Command} command
   */
  answer(socket, { command, identifier, history }) {
    const identifiers = this.#subscribed.get(socket)
    if (!identifiers) return
    const { stream_name, signed_stream_name: signed } = JSON.parse(identifier)
    /** @type {string} */
    const stream = stream_name ?? JSON.parse(atob(signed.split('--')[0]))
    const { epoch, messages } = this.log(stream)
    const known = identifiers.get(identifier)
    const after = history?.streams[stream]
    if (command === 'unsubscribe') identifiers.delete(identifier)
    if (command === 'subscribe') {
      const at = known ?? { stream, sent: messages.length, replays: 0 }
      identifiers.set(identifier, at)
      this.send(socket, { type: 'confirm_subscription', identifier, streams: { [stream]: { epoch, offset: at.sent } } })
      if (after && known) this.send(socket, { type: 'confirm_history', identifier })
      else if (after) this.#replay(socket, identifier, at, after)
    }
    if (command === 'history' && known && after) this.#replay(socket, identifier, known, after)
  }

  /**
   * later runs the next step of a replay; replace it to decide when.
   * @param {() => void} f
   */
  later(f) {
    this.#platform.setTimeout(f, 0)
  }

  /**
   * @param {FakeSocket} socket
   * @param {string} identifier
   * @param {Subscribed} subscription
   * @param {Position} after
   */
  #replay(socket, identifier, subscription, after) {
    const { epoch, first, messages } = this.log(subscription.stream)
    const reason =
      after.epoch !== epoch ? 'epoch_changed'
      : after.offset > messages.length ? 'ahead'
      : after.offset + 1 < first ? 'trimmed'
      : ''
    if (reason) return this.#reset(socket, identifier, subscription, reason)
    // A request moves the one place where the wire is, also that of a replay under way.
    subscription.sent = after.offset
    if (!subscription.replays++) this.#proceed(socket, identifier, subscription)
  }

  /**
   * proceed sends one page of a replay. Live messages wait until it is through.
   *
   * @param {FakeSocket} socket
   * @param {string} identifier
   * @param {Subscribed} subscription
   */
  #proceed(socket, identifier, subscription) {
    if (this.#subscribed.get(socket)?.get(identifier) !== subscription || !subscription.replays) return
    const { stream, sent } = subscription
    const { epoch, first, messages } = this.log(stream)
    if (sent + 1 < first) return this.#reset(socket, identifier, subscription, 'trimmed')
    const page = messages.slice(sent, sent + this.page).map((message, i) => ({ offset: sent + i + 1, message }))
    if (page.length) {
      subscription.sent += page.length
      this.send(socket, { type: 'messages', identifier, stream_id: stream, epoch, replay: true, messages: page })
      return this.later(() => this.#proceed(socket, identifier, subscription))
    }
    for (; subscription.replays; subscription.replays--) this.send(socket, { type: 'confirm_history', identifier })
  }

  /**
   * @param {FakeSocket} socket
   * @param {string} identifier
   * @param {Subscribed} subscription
   * @param {string} reason
   */
  #reset(socket, identifier, subscription, reason) {
    const { stream } = subscription
    const { epoch, first, messages } = this.log(stream)
    subscription.sent = messages.length
    subscription.replays = 0
    this.send(socket, { type: 'reset', identifier, stream_id: stream, reason, epoch, first, offset: messages.length })
  }
}
