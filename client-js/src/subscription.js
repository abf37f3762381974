import { ChronocastError } from './errors.js'
import { backoff } from './backoff.js'
import { encode } from './frames.js'
import { compareEpochs } from './reorder.js'
import { behind } from './stream-machine.js'
import { Handle } from './stream.js'

/** @typedef {import('./reorder.js').Position} Position */
/** @typedef {import('./frames.js').Frame} Frame */

/**
 * Link is what a subscription needs of its client.
 * @typedef {object} Link
 * @property {import('./platform.js').Platform} platform
 * @property {number} maxDelay
 * @property {boolean} up commands can be sent
 * @property {(text: string) => void} send
 * @property {() => void} restart gives up this socket for a new one
 * @property {(subscription: Subscription) => void} forget
 * @property {(error: ChronocastError, thrown?: unknown) => void} error
 */

/** First wait for the answer to a subscribe; grows with each further one. */
const CONFIRM_DEADLINE = 1500
/** Unanswered subscribes after which the socket is taken to be broken. */
const CONFIRM_TRIES = 8
/** Rejections that pass by themselves. */
const PASSING = ['store_unavailable', 'too_many_subscriptions']

/**
 * Subscription is the one subscription on the wire that all handles of a
 * stream share. Every frame goes to every handle; each drops what it has.
 * Their wishes for history are gathered into one request, from the lowest
 * position that waits, because the server sends on from the last one asked.
 */
export class Subscription {
  /** @type {Set<Handle>} */
  handles = new Set()
  /** @type {Position | null} message being handed over right now */
  at = null

  /** @type {'none' | 'asked' | 'confirmed'} */
  #wire = 'none'
  /** subscribes of this socket that have no answer yet */
  #open = 0
  #attempt = 0
  /** @type {number | null} */
  #retryAt = null
  /** @type {Position | null} newest position the server told of on this socket */
  #known = null
  /** @type {Position | null} newest one handed over */
  #told = null
  /** @type {Position | null} what a request under way asks from */
  #pending = null
  #wanted = false
  #again = false
  /** @type {Set<Handle>} */
  #doubtful = new Set()
  /** 0 when nothing is being dispatched */
  #depth = 0
  /** @type {unknown} */
  #timer
  /** @type {number | null} */
  #timerAt = null

  /**
   * @param {Link} link
   * @param {string} name
   */
  constructor(link, name) {
    this.link = link
    this.name = name
  }

  /**
   * open adds a handle. On a confirmed subscription "now" is the message being
   * handed over at this moment, or else the newest one the server told of.
   *
   * @param {import('./stream.js').After} after
   */
  open(after) {
    const handle = new Handle(this, after)
    this.handles.add(handle)
    const at = this.at ?? this.#known
    this.#dispatch(() => {
      if (!this.link.up) return
      if (this.#wire === 'none') return this.#subscribe()
      handle.step({ type: 'open', asked: false })
      if (this.#wire === 'confirmed' && at && this.#known) {
        handle.step({ type: 'confirm', ...at, head: at.epoch === this.#known.epoch ? this.#known.offset : at.offset })
      }
    })
    return handle
  }

  /**
   * close takes a handle away. The subscription outlives its last handle until
   * the end of this turn, so that whoever opens another at once misses nothing.
   *
   * @param {Handle} handle
   */
  close(handle) {
    this.handles.delete(handle)
    this.flush()
    if (!this.handles.size) queueMicrotask(() => this.#leave())
  }

  #leave() {
    if (this.handles.size) return
    if (this.#wire !== 'none' && this.link.up) this.link.send(encode('unsubscribe', this.name))
    this.#wire = 'none'
    this.#pending = this.#retryAt = null
    this.flush()
    // Kept while an answer is due, which would otherwise be taken for that of a later subscription.
    if (!this.#open || !this.link.up) this.link.forget(this)
  }

  up() {
    this.#dispatch(() => this.#subscribe())
  }

  down() {
    this.#wire = 'none'
    this.#open = this.#attempt = 0
    this.#known = this.#told = this.#pending = this.#retryAt = null
    this.#dispatch(() => this.#each({ type: 'down' }))
    if (!this.handles.size) this.link.forget(this)
  }

  /** renew subscribes from scratch on the same socket. */
  renew() {
    if (!this.link.up || this.#wire === 'none') return
    this.link.send(encode('unsubscribe', this.name))
    this.#attempt = 0
    this.#dispatch(() => {
      this.#each({ type: 'down' })
      this.#subscribe()
    })
  }

  /** @param {Frame} frame */
  receive(frame) {
    this.#dispatch(() => {
      switch (frame.type) {
        case 'messages':
          for (const m of frame.messages) {
            this.#note(m)
            for (const handle of this.handles) handle.step({ type: 'message', ...m })
            this.#told = { epoch: m.epoch, offset: m.offset }
          }
          break
        case 'confirm':
          this.#confirm(frame.heads.get(this.name))
          break
        case 'ping':
          this.head(frame.heads.get(this.name))
          break
        case 'replayed':
          this.#pending = null
          this.#each(frame)
          break
        case 'reset':
          this.#pending = null
          this.#known = { epoch: frame.epoch, offset: frame.offset }
          this.#each(frame)
          break
        case 'reject':
          this.#refused(frame.reason, 'the server refused the subscription: ' + frame.reason)
          break
        case 'error':
          if (frame.command === 'subscribe') this.#refused(frame.reason, frame.message || frame.reason, true)
          else {
            this.#pending = null
            this.#fail(new ChronocastError(frame.reason, frame.message || frame.reason))
          }
      }
    })
  }

  /** @param {Position} [at] */
  head(at) {
    if (!at) return
    this.#note(at)
    this.#each({ type: 'head', ...at })
  }

  /** @param {Position} [at] */
  #confirm(at) {
    if (!at) return
    if (this.#open) this.#open--
    if (this.#wire === 'none') {
      if (!this.handles.size && !this.#open) this.link.forget(this)
      return
    }
    this.#wire = 'confirmed'
    this.#attempt = 0
    this.#retryAt = null
    this.#note(at)
    // A late answer to an earlier subscribe lies before what has been handed over since.
    const told = this.#told
    const from = told && told.epoch === at.epoch && told.offset > at.offset ? told : at
    this.#each({ type: 'confirm', ...from })
  }

  /**
   * @param {string} reason
   * @param {string} message
   * @param {boolean} [passing]
   */
  #refused(reason, message, passing = PASSING.includes(reason)) {
    if (this.#open) this.#open--
    if (this.#wire === 'none') return
    if (passing) {
      this.#wire = 'asked'
      this.#retry()
      this.#fail(new ChronocastError(reason, message))
      return
    }
    this.#wire = 'none'
    this.#retryAt = null
    for (const handle of [...this.handles]) handle.close(new ChronocastError('rejected', message, reason))
  }

  /** @param {ChronocastError} error */
  #fail(error) {
    for (const handle of [...this.handles]) handle.error(error)
  }

  #subscribe() {
    const lowest = this.#lowest((handle) => !handle.state.paused)
    this.#wire = 'asked'
    this.#pending = lowest
    this.#send(lowest)
    for (const handle of this.handles) {
      const { position } = handle.state.gate
      handle.step({ type: 'open', asked: !!lowest && lowest.epoch === position?.epoch && !handle.state.paused })
    }
  }

  /** @param {Position | null} after */
  #send(after) {
    this.#open++
    this.link.send(encode('subscribe', this.name, after))
    this.#retry()
  }

  #retry() {
    const { now, random } = this.link.platform
    const wait = CONFIRM_DEADLINE / 2 + backoff(this.#attempt++, random(), CONFIRM_DEADLINE, this.link.maxDelay)
    this.#retryAt = now() + wait
  }

  /**
   * request is a handle's wish for what follows its position.
   *
   * @param {Handle} handle
   * @param {boolean} exact the answer to this very position matters
   * @param {boolean} again an earlier request brought nothing
   */
  request(handle, exact, again) {
    if (exact) this.#doubtful.add(handle)
    this.#wanted = true
    this.#again ||= again || exact
  }

  /** flush sends what was wished for and sets the timer, once all handles have been served. */
  flush() {
    if (this.#depth) return
    if (this.#wanted && this.link.up && this.#wire === 'confirmed') {
      for (const handle of this.#doubtful) {
        const { position } = handle.state.gate
        if (handle.state.doubt && position) this.link.send(encode('history', this.name, position))
      }
      const lowest = this.#lowest(({ state }) => state.up && !state.paused && !state.doubt && behind(state))
      const pending = this.#pending
      const covered = !this.#again && pending?.epoch === lowest?.epoch && pending && lowest && pending.offset <= lowest.offset
      if (lowest && !covered) {
        this.#pending = lowest
        this.link.send(encode('history', this.name, lowest))
      }
    }
    this.#wanted = this.#again = false
    this.#doubtful.clear()
    this.#schedule()
  }

  /**
   * lowest is the lowest position of the handles that want is true for, of the
   * newest epoch among them.
   *
   * @param {(handle: Handle) => boolean} want
   */
  #lowest(want) {
    /** @type {Position | null} */
    let lowest = null
    for (const handle of this.handles) {
      const { position } = handle.state.gate
      if (!position || !want(handle)) continue
      const order = lowest ? compareEpochs(position.epoch, lowest.epoch) : 1
      if (order > 0 || (!order && lowest && position.offset < lowest.offset)) lowest = position
    }
    return lowest
  }

  /** @param {Position} at */
  #note({ epoch, offset }) {
    const order = this.#known ? compareEpochs(epoch, this.#known.epoch) : 1
    if (order > 0 || (!order && offset > (this.#known?.offset ?? 0))) this.#known = { epoch, offset }
  }

  /** @param {Parameters<Handle['step']>[0]} event */
  #each(event) {
    for (const handle of [...this.handles]) handle.step(event)
  }

  /** @param {() => void} work */
  #dispatch(work) {
    this.#depth++
    try {
      work()
    } finally {
      this.#depth--
    }
    this.flush()
  }

  #schedule() {
    /** @type {number | null} */
    let at = this.handles.size ? this.#retryAt : null
    for (const { state } of this.handles) {
      if (state.wake !== null && (at === null || state.wake < at)) at = state.wake
    }
    if (at === this.#timerAt) return
    const { platform } = this.link
    if (this.#timerAt !== null) platform.clearTimeout(this.#timer)
    this.#timerAt = at
    if (at !== null) this.#timer = platform.setTimeout(() => this.#tick(), Math.max(0, at - platform.now()))
  }

  #tick() {
    this.#timerAt = null
    const now = this.link.platform.now()
    this.#dispatch(() => {
      this.#each({ type: 'tick' })
      if (this.#retryAt === null || now < this.#retryAt || !this.link.up) return
      if (this.#attempt > CONFIRM_TRIES) {
        this.#fail(new ChronocastError('unanswered', 'the server does not answer a subscription: connecting anew'))
        this.link.restart()
      } else this.#send(this.#lowest(({ state }) => !state.paused))
    })
  }
}
