import { ChronocastError } from './errors.js'
import { Emitter } from './emitter.js'
import { initial, step } from './stream-machine.js'

/** @typedef {import('./reorder.js').Position} Position */
/** @typedef {import('./reorder.js').Arrival} Arrival */
/** @typedef {import('./stream-machine.js').Name} StreamState */
/** @typedef {import('./stream-machine.js').Event} MachineEvent */
/** @typedef {import('./stream-machine.js').Effect} Effect */
/** @typedef {import('./subscription.js').Subscription} Subscription */

/** @typedef {'start' | 'now' | Position} After */

/**
 * replayed tells that it was read back from history.
 * @template [Data=any]
 * @typedef {{ data: Data, offset: number, epoch: string, replayed: boolean }} Message
 */

/**
 * @template [Data=any]
 * @typedef {object} StreamEvents
 * @property {Message<Data>} message
 * @property {StreamState} state
 * @property {import('./stream-machine.js').Gap} gap
 * @property {import('./stream-machine.js').Recovered} recovered
 * @property {import('./stream-machine.js').Reset} reset
 * @property {ChronocastError} error
 */

/** What a loop over a stream may leave waiting before the stream is paused. */
const QUEUE = { count: 1024, size: 4 << 20 }

/**
 * @template T
 * @typedef {T extends any ? Omit<T, 'now' | 'random'> : never} Timeless
 */

/**
 * Handle drives the machine of one stream() call: it feeds events in, carries
 * the effects out, and hands messages to listeners and loops.
 */
export class Handle {
  /** @type {Emitter<StreamEvents>} */
  emitter = new Emitter()
  /** @type {Set<Loop>} */
  loops = new Set()
  /** @type {Position | null} what has been handed over of a run being delivered */
  handed = null
  /** @type {Effect[]} */
  #effects = []
  #running = false

  /**
   * @param {Subscription} subscription
   * @param {After} after
   */
  constructor(subscription, after) {
    this.subscription = subscription
    this.state = initial(after)
  }

  get position() {
    let slowest = this.handed ?? this.state.gate.position
    for (const { queue } of this.loops) {
      const next = queue[0]
      if (next && (slowest?.epoch !== next.epoch || slowest.offset >= next.offset)) {
        slowest = { epoch: next.epoch, offset: next.offset - 1 }
      }
    }
    return slowest
  }

  get closed() {
    return this.state.name === 'closed'
  }

  /**
   * step takes one event. Effects of an event that happens inside a listener
   * come after those of the event that led there.
   *
   * @param {Timeless<MachineEvent>} event
   */
  step(event) {
    const { now, random } = this.subscription.link.platform
    const { state, effects } = step(
      this.state,
      /** @type {MachineEvent} */ ({ ...event, now: now(), random: random() }),
    )
    this.state = state
    this.#effects.push(...effects)
    if (this.#running) return
    this.#running = true
    for (let effect; (effect = this.#effects.shift()); ) this.#run(effect)
    this.#running = false
    this.subscription.flush()
  }

  /** @param {Effect} effect */
  #run(effect) {
    switch (effect.type) {
      case 'deliver':
        this.#deliver(effect.messages)
        break
      case 'request':
        this.subscription.request(this, effect.exact, effect.again)
        break
      case 'stuck':
        this.error(new ChronocastError('stuck', 'missing messages do not come: subscribing anew'))
        this.subscription.renew()
        break
      default:
        this.emit(effect.type, effect.value)
    }
  }

  /** @param {readonly Arrival[]} messages */
  #deliver(messages) {
    const { subscription } = this
    const outer = subscription.at
    for (const { data, offset, epoch, replayed, size } of messages) {
      // A pause goes back to what was handed over: the rest will come again.
      if (this.closed || this.state.paused) break
      this.handed = subscription.at = { epoch, offset }
      const message = { data, offset, epoch, replayed }
      this.emit('message', message)
      for (const loop of this.loops) loop.push(message, size)
      this.repause()
    }
    this.handed = null
    subscription.at = outer
  }

  /** repause pauses while nobody takes messages or a loop has enough waiting. */
  repause() {
    if (this.closed) return
    const paused =
      !(this.emitter.count('message') || this.loops.size) || [...this.loops].some((loop) => loop.full)
    if (paused === this.state.paused) return
    this.step(paused ? { type: 'pause', position: this.handed } : { type: 'unpause' })
  }

  /** @param {ChronocastError} [error] */
  close(error) {
    if (this.closed) return
    this.#effects = []
    if (error) this.error(error)
    this.step({ type: 'close' })
    for (const loop of this.loops) loop.end(error)
    this.subscription.close(this)
  }

  /**
   * @template {keyof StreamEvents} Name
   * @param {Name} name
   * @param {StreamEvents[Name]} value
   */
  emit(name, value) {
    return this.emitter.emit(name, value, (thrown) => {
      if (name === 'error') this.subscription.link.error(/** @type {ChronocastError} */ (value), thrown)
      else this.error(new ChronocastError('handler', `a ${name} listener threw: ${thrown}`, thrown))
    })
  }

  /** @param {ChronocastError} error */
  error(error) {
    if (!this.emit('error', error)) this.subscription.link.error(error)
  }
}

/** Loop is one `for await` over a stream. */
class Loop {
  /** @type {(Message & { size: number })[]} */
  queue = []
  full = false
  #size = 0
  /** @type {{ resolve: (result: IteratorResult<Message, undefined>) => void, reject: (error: unknown) => void }[]} */
  #waiting = []
  #done = false
  /** @type {ChronocastError | undefined} */
  #error

  /** @param {Handle} handle */
  constructor(handle) {
    this.handle = handle
    if (handle.closed) this.#done = true
    else handle.loops.add(this)
    handle.repause()
  }

  /**
   * @param {Message} message
   * @param {number} size
   */
  push(message, size) {
    const taker = this.#waiting.shift()
    if (taker) return taker.resolve({ done: false, value: message })
    this.queue.push({ ...message, size })
    this.#size += size
    if (this.queue.length >= QUEUE.count || this.#size >= QUEUE.size) this.full = true
  }

  /** @returns {Promise<IteratorResult<Message, undefined>>} */
  next() {
    const first = this.queue.shift()
    if (first) {
      const { size, ...value } = first
      this.#size -= size
      if (!this.queue.length && this.full) {
        this.full = false
        this.handle.repause()
      }
      return Promise.resolve({ done: false, value })
    }
    if (!this.#done) return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }))
    const error = this.#error
    this.#error = undefined
    return error ? Promise.reject(error) : Promise.resolve({ done: true, value: undefined })
  }

  /** @returns {Promise<IteratorResult<Message, undefined>>} */
  return() {
    const { handle } = this
    const { position } = handle
    const left = this.queue.length
    this.end()
    if (left && !handle.closed && !handle.loops.size && !handle.emitter.count('message')) {
      // Nobody else takes messages: who comes next finds what this loop left.
      handle.step({ type: 'pause', position })
    } else handle.repause()
    return Promise.resolve({ done: true, value: undefined })
  }

  /**
   * end lets a loop finish at once, or fail after what is waiting was taken.
   * @param {ChronocastError} [error]
   */
  end(error) {
    this.#done = true
    this.handle.loops.delete(this)
    if (!error) this.queue = []
    const waiting = this.#waiting
    this.#waiting = []
    if (error && !waiting.length) this.#error = error
    for (const { resolve, reject } of waiting) {
      if (error) reject(error)
      else resolve({ done: true, value: undefined })
    }
  }

  [Symbol.asyncIterator]() {
    return this
  }
}

/**
 * Stream is one reader of a stream, with a position of its own. Any number of
 * them on one stream share a subscription.
 *
 * @template [Data=any]
 */
export class Stream {
  #handle

  /**
   * @param {Handle} handle
   * @param {string} name
   */
  constructor(handle, name) {
    this.#handle = handle
    /** @readonly */
    this.name = name
  }

  /** Position of the last message handed over, or null before the first confirmation. */
  get position() {
    return this.#handle.position
  }

  get state() {
    return this.#handle.state.name
  }

  /**
   * on adds a listener and returns its undo. Messages wait at the position
   * while nobody listens for them or loops over them.
   *
   * @template {keyof StreamEvents<Data>} Name
   * @param {Name} event
   * @param {(value: StreamEvents<Data>[Name]) => void} listener
   */
  on(event, listener) {
    const off = this.#handle.emitter.on(event, listener)
    this.#handle.repause()
    return () => {
      off()
      this.#handle.repause()
    }
  }

  close() {
    this.#handle.close()
  }

  /** @returns {AsyncIterableIterator<Message<Data>, undefined>} */
  [Symbol.asyncIterator]() {
    return new Loop(this.#handle)
  }
}
