import { ChronocastError } from './errors.js'
import { backoff } from './backoff.js'
import { encode } from './frames.js'
import { compareEpochs } from './reorder.js'
import { behind } from './stream-machine.js'
import { Handle } from './stream.js'

/** @typedef {import('./reorder.js').Position} Position */
/** @typedef {import('./frames.js').Frame} Frame */

/**
 * Host is what a subscription tells its client.
 * @typedef {object} Host
 * @property {() => void} idle it is neither used nor on the wire any more
 * @property {(error: ChronocastError) => void} error an error that no stream listens for
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
  #attempt = 0
  /** @type {number | null} when to ask again for a confirmation */
  #retryAt = null
  /** @type {Position | null} newest position the server told of on this socket */
  #known = null
  /** @type {Position | null} where a request under way begins */
  #pending = null
  #wanted = false
  #again = false
  /** @type {Position[]} */
  #doubts = []
  /** depth of the calls that end in one flush */
  #depth = 0
  /** @type {unknown} */
  #timer
  #timerAt = Infinity

  /**
   * @param {string} identifier
   * @param {string | null} name of the stream; null until the server tells it
   * @param {import('./connection.js').Connection} connection
   * @param {Host} host
   */
  constructor(identifier, name, connection, host) {
    this.identifier = identifier
    this.name = name
    this.connection = connection
    this.host = host
  }

  /**
   * open adds a handle. It joins at the end of this turn, when whoever opened it
   * listens. On a confirmed subscription "now" is the message being handed over
   * at this moment, or else the newest one the server told of.
   *
   * @param {import('./stream.js').After} after
   */
  open(after) {
    const handle = new Handle(this, after)
    const { at } = this
    this.handles.add(handle)
    queueMicrotask(() => this.#join(handle, at))
    return handle
  }

  /**
   * @param {Handle} handle
   * @param {Position | null} at
   */
  #join(handle, at) {
    if (handle.state.name !== 'idle' || this.connection.state !== 'connected') return
    this.#gather(() => {
      if (this.#wire === 'none') return this.#subscribe()
      handle.step({ type: 'open', asked: false })
      const known = this.#known
      if (this.#wire === 'confirmed' && known) {
        handle.step({ type: 'confirm', at: at?.epoch === known.epoch ? at : known, head: known.offset })
      }
    })
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
    queueMicrotask(() => {
      if (this.handles.size) return
      if (this.#wire !== 'none') this.#send('unsubscribe')
      this.#off()
    })
  }

  up() {
    this.#gather(() => this.#subscribe())
  }

  down() {
    this.#gather(() => {
      this.#each({ type: 'down' })
      this.#off()
    })
  }

  /** renew subscribes from scratch on the same socket. */
  renew() {
    if (this.#wire === 'none') return
    this.#send('unsubscribe')
    this.#gather(() => {
      this.#each({ type: 'down' })
      this.#subscribe()
    })
  }

  #off() {
    this.#wire = 'none'
    this.#known = this.#pending = this.#retryAt = null
    if (!this.handles.size) this.host.idle()
  }

  /** @param {Frame} frame */
  receive(frame) {
    this.#gather(() => {
      switch (frame.type) {
        case 'messages':
          for (const message of frame.messages) {
            if (this.#wire === 'none') break // a handler let go of the connection
            this.#note(message)
            for (const handle of this.handles) handle.step({ type: 'message', message })
          }
          break
        case 'confirm_subscription':
          for (const [stream, at] of frame.heads) if (stream === (this.name ??= stream)) this.#confirm(at)
          break
        case 'confirm_history':
          this.#pending = null
          this.#each({ type: 'replayed' })
          break
        case 'reset':
          this.#pending = null
          if (this.#note(frame)) this.#each(frame)
          break
        case 'reject_subscription':
          this.#refused(frame.reason, PASSING.includes(frame.reason))
          break
        case 'error':
          if (frame.command === 'subscribe') this.#refused(frame.reason, true, frame.message)
          else this.#fail(frame.reason, frame.message)
      }
    })
  }

  /** @param {Position} at */
  head(at) {
    this.#gather(() => {
      if (this.#note(at)) this.#each({ type: 'head', at })
    })
  }

  /** @param {Position} at */
  #confirm(at) {
    if (this.#wire === 'none') return
    this.#wire = 'confirmed'
    this.#attempt = 0
    this.#retryAt = null
    if (!this.#note(at)) at = /** @type {Position} */ (this.#known)
    this.#each({ type: 'confirm', at, head: at.offset })
  }

  /**
   * @param {string} reason
   * @param {boolean} passing it is worth trying again
   * @param {string} [message]
   */
  #refused(reason, passing, message = 'the server refuses: ' + reason) {
    if (passing) {
      // The next try is under way already. An answer is no sign of a broken socket.
      this.#attempt = Math.min(this.#attempt, CONFIRM_TRIES - 2)
      return this.#fail(reason, message)
    }
    this.#wire = 'none'
    this.#retryAt = null
    for (const handle of [...this.handles]) handle.close(new ChronocastError('rejected', message, reason))
  }

  /**
   * @param {string} code
   * @param {string} message
   */
  #fail(code, message) {
    for (const handle of [...this.handles]) handle.error(new ChronocastError(code, message))
  }

  #subscribe() {
    this.#attempt = 0
    this.#pending = this.#ask()
    for (const handle of this.handles) {
      const { paused, gate } = handle.state
      handle.step({ type: 'open', asked: !paused && !!gate.position && gate.position.epoch === this.#pending?.epoch })
    }
  }

  /** ask sends the subscribe, and will again until it is answered. */
  #ask() {
    const { platform, options } = this.connection
    // Without the name the position cannot be told: the answer brings it, and a request follows.
    const lowest = this.#lowest(({ state }) => !!this.name && !state.paused)
    this.#wire = 'asked'
    this.#send('subscribe', lowest)
    this.#retryAt =
      platform.now() +
      CONFIRM_DEADLINE / 2 +
      backoff(this.#attempt++, platform.random(), CONFIRM_DEADLINE, options.maxDelay)
    return lowest
  }

  /**
   * request is a handle's wish for what follows its position.
   * @param {{ doubt: Position | null, again: boolean }} wish
   */
  request({ doubt, again }) {
    this.#wanted = true
    this.#again ||= again
    if (doubt) this.#doubts.push(doubt)
  }

  /** flush sends what was wished for and sets the timer, once all handles have been served. */
  flush() {
    if (this.#depth) return
    if (this.#wanted && this.#wire === 'confirmed') {
      for (const position of this.#doubts) this.#send('history', position)
      // A request moves the wire for all handles, so that after one for a doubt the others are in need again.
      const lowest = this.#lowest(({ state }) => !state.paused && !state.doubt && behind(state))
      const pending = this.#doubts.length || this.#again ? null : this.#pending
      if (lowest && !(pending?.epoch === lowest.epoch && pending.offset <= lowest.offset)) {
        this.#pending = lowest
        this.#send('history', lowest)
      }
    }
    this.#wanted = this.#again = false
    this.#doubts = []
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
      const order = lowest ? compareEpochs(position.epoch, lowest.epoch) || lowest.offset - position.offset : 1
      if (order > 0) lowest = position
    }
    return lowest
  }

  /**
   * note keeps the newest position the server told of. It returns false for one
   * of an earlier epoch: that word is older than others heard on this socket.
   *
   * @param {Position} at
   */
  #note({ epoch, offset }) {
    const known = this.#known
    const order = known ? compareEpochs(epoch, known.epoch) : 1
    if (order > 0 || (!order && known && offset > known.offset)) this.#known = { epoch, offset }
    return order >= 0
  }

  /**
   * @param {Parameters<typeof encode>[0]} command
   * @param {Position | null} [after]
   */
  #send(command, after) {
    this.connection.send(encode(command, this.identifier, this.name, after))
  }

  /** @param {Parameters<Handle['step']>[0]} event */
  #each(event) {
    for (const handle of [...this.handles]) handle.step(event)
  }

  /** @param {() => void} work */
  #gather(work) {
    this.#depth++
    work()
    this.#depth--
    this.flush()
  }

  #schedule() {
    const { platform } = this.connection
    const at = Math.min(this.#retryAt ?? Infinity, ...[...this.handles].map(({ state }) => state.wake ?? Infinity))
    if (at === this.#timerAt) return
    platform.clearTimeout(this.#timer)
    this.#timerAt = at
    if (at < Infinity) this.#timer = platform.setTimeout(() => this.#tick(), at - platform.now())
  }

  #tick() {
    this.#timerAt = Infinity
    this.#gather(() => {
      this.#each({ type: 'tick' })
      if (this.connection.platform.now() < (this.#retryAt ?? Infinity)) return
      if (this.#attempt <= CONFIRM_TRIES) this.#ask()
      else {
        this.#fail('unanswered', 'a subscribe is not answered: connecting anew')
        this.connection.restart()
      }
    })
  }
}
