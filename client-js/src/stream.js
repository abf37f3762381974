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
      const next = queue[0]?.message
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
    const { platform } = this.subscription.connection
    const moment = { now: platform.now(), random: platform.random() }
    const { state, effects } = step(this.state, { ...event, ...moment })
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
        this.subscription.request(effect)
        break
      case 'stuck':
        this.error(new ChronocastError('stuck', 'what is missing does not come: subscribing anew'))
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

  /** taken says whether anybody takes messages. */
  get taken() {
    return this.emitter.has('message') || this.loops.size > 0
  }

  /** repause pauses while nobody takes messages or a loop has enough waiting. */
  repause() {
    const paused = !this.taken || [...this.loops].some((loop) => loop.full)
    if (paused !== this.state.paused) this.step(paused ? { type: 'pause', at: this.handed } : { type: 'unpause' })
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
    this.emitter.emit(name, value, (thrown) => {
      const error = new ChronocastError('handler', `a listener for ${name} threw: ${thrown}`, thrown)
      if (name === 'error') this.subscription.host.error(error)
      else this.error(error)
    })
  }

  /** @param {ChronocastError} error */
  error(error) {
    if (this.emitter.has('error')) this.emit('error', error)
    else this.subscription.host.error(error)
  }
}

/** Loop is one `for await` over a stream. */
class Loop {
  /** @type {{ message: Message, size: number }[]} */
  queue = []
  /** enough is waiting; until all of it is taken */
  full = false
  #size = 0
  /** @type {(() => void)[]} */
  #waiting = []
  #done = false
  /** @type {ChronocastError | undefined} */
  #error

  /** @param {Handle} handle */
  constructor(handle) {
    this.handle = handle
    this.#done = handle.closed
    handle.loops.add(this)
    handle.repause()
  }

  /**
   * @param {Message} message
   * @param {number} size
   */
  push(message, size) {
    this.queue.push({ message, size })
    this.#size += size
    this.full ||= this.queue.length >= QUEUE.count || this.#size >= QUEUE.size
    this.#wake()
  }

  #wake() {
    for (const go of this.#waiting.splice(0)) go()
  }

  /** @returns {Promise<IteratorResult<Message, undefined>>} */
  async next() {
    while (!this.queue.length && !this.#done) await new Promise((go) => this.#waiting.push(() => go(0)))
    const first = this.queue.shift()
    if (first) {
      this.#size -= first.size
      this.full &&= this.queue.length > 0
      this.handle.repause()
      return { done: false, value: first.message }
    }
    const error = this.#error
    this.#error = undefined
    if (error) throw error
    return { done: true, value: undefined }
  }

  /** @returns {Promise<IteratorResult<Message, undefined>>} */
  async return() {
    const { handle } = this
    const at = this.queue.length ? handle.position : null
    this.end()
    // When nobody else takes messages, who comes next finds what this loop left.
    if (at && !handle.taken) handle.step({ type: 'pause', at })
    handle.repause()
    return { done: true, value: undefined }
  }

  /**
   * end lets a loop finish at once, or fail after what is waiting was taken.
   * @param {ChronocastError} [error]
   */
  end(error) {
    this.#done = true
    this.#error = error
    this.handle.loops.delete(this)
    if (!error) this.queue = []
    this.#wake()
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

  /** @param {Handle} handle */
  constructor(handle) {
    this.#handle = handle
  }

  /** What the server calls the stream; null until it has told, where an identifier was given. */
  get name() {
    return this.#handle.subscription.name
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
