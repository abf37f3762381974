/**
 * A WebSocket that behaves badly on purpose. It sits between the network and
 * the client: what the server sent is real, only the hand-over is disturbed.
 *
 * Disturbed are the frames that carry messages. Frames that keep a connection
 * alive or answer a command (welcome, ping, confirm_subscription, reset, …) go
 * through at once: to lose those means to lose the connection, and for that
 * there is cut(). confirm_history says that what was asked for has been sent,
 * so it stays behind the frames it speaks of.
 */

/**
 * @typedef {object} DataFrame
 * @property {string} stream
 * @property {string} epoch
 * @property {boolean} replay read back from history
 * @property {{ offset: number, message: unknown }[]} messages
 */

/** More frames than this are never held: timers of a hidden page are slow. */
const MAX_HELD = 64

/**
 * dataFrame returns what a frame carries, or null for one without messages.
 *
 * @param {any} frame
 * @returns {DataFrame | null}
 */
export function dataFrame(frame) {
  if (!frame || typeof frame !== 'object') return null
  const { type, stream_id: stream, epoch, replay } = frame
  if (type === 'messages') return { stream, epoch, replay: replay === true, messages: frame.messages }
  if (type !== undefined || !('message' in frame)) return null
  return { stream, epoch, replay: replay === true, messages: [{ offset: frame.offset, message: frame.message }] }
}

/**
 * longestDelay is how long a frame may be held, in milliseconds, when frames
 * come at this interval: long enough for a few to overtake each other, at any
 * speed of the text.
 *
 * @param {number} interval
 */
export const longestDelay = (interval) => Math.min(700, Math.max(45, interval * 4))

/**
 * disturbance says in a clause what the page does to the frames.
 *
 * @param {{ shuffle: boolean, drop: boolean }} link
 */
export function disturbance({ shuffle, drop }) {
  if (shuffle && drop) return 'this page shuffles frames and drops one in ten, on purpose'
  if (shuffle) return 'this page shuffles frames on purpose'
  if (drop) return 'this page drops one frame in ten on purpose'
  return 'this page now leaves every frame as it is'
}

/** Link is the state of the bad network, shared by all sockets made for it. */
export class Link {
  shuffle = false
  drop = false
  /** frames kept from the client by drop */
  dropped = 0
  /** @type {(frame: DataFrame) => void} called before the client gets the frame */
  observe = () => {}
  /** @type {Set<{ sever: () => void, wake: () => void }>} */
  sockets = new Set()
  /** while true, new sockets say nothing */
  down = false
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer

  /** @param {() => number} [random] */
  constructor(random = Math.random) {
    this.random = random
  }

  /**
   * cut ends every connection and keeps new ones silent for a while.
   * @param {number} ms
   */
  cut(ms) {
    this.down = true
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => {
      this.down = false
      for (const socket of [...this.sockets]) socket.wake()
    }, ms)
    for (const socket of [...this.sockets]) socket.sever()
  }

  /**
   * socketClass returns a WebSocket class whose sockets are at the mercy of
   * this link. Frames reach the socket's listeners as message events, as ever.
   *
   * @param {typeof WebSocket} Base
   */
  socketClass(Base) {
    const link = this
    return class UnreliableSocket extends Base {
      /** @type {Set<{ text: string, frame: DataFrame | null, timer: ReturnType<typeof setTimeout> }>} */
      #held = new Set()
      /** @type {string[]} what came while the network was down */
      #silent = []
      /** events of our own making @type {WeakSet<Event>} */
      #ours = new WeakSet()
      #gone = false
      #due = 0 // when the last held frame will be released
      #last = 0
      #interval = 20

      /**
       * @param {string | URL} url
       * @param {string | string[]} [protocols]
       */
      constructor(url, protocols) {
        super(url, protocols)
        link.sockets.add(this)
        // The first listener: it takes each native event away from the others.
        this.addEventListener('message', (event) => {
          if (this.#ours.delete(event)) return
          event.stopImmediatePropagation()
          if (link.down) this.#silent.push(event.data)
          else this.#receive(event.data)
        })
        this.addEventListener('close', () => this.#discard())
      }

      /** @param {string} text */
      #receive(text) {
        /** @type {any} */
        let parsed = null
        try {
          parsed = JSON.parse(text)
        } catch {
          // the client will say so
        }
        const frame = dataFrame(parsed)
        if (!frame) {
          if (parsed?.type === 'confirm_history' && this.#held.size) return this.#hold(text, null, this.#due - performance.now() + 1)
          return this.#release(text, null)
        }
        const now = performance.now()
        this.#interval += (Math.min(500, now - this.#last) - this.#interval) * 0.1
        this.#last = now
        if (link.drop && !frame.replay && link.random() < 0.1) {
          link.dropped += frame.messages.length
          return
        }
        if (!link.shuffle) return this.#release(text, frame)
        this.#hold(text, frame, link.random() * longestDelay(this.#interval))
      }

      /**
       * @param {string} text
       * @param {DataFrame | null} frame
       * @param {number} ms
       */
      #hold(text, frame, ms) {
        const held = {
          text,
          frame,
          timer: setTimeout(() => {
            this.#held.delete(held)
            this.#release(text, frame)
          }, ms),
        }
        this.#held.add(held)
        this.#due = Math.max(this.#due, performance.now() + ms)
        const [first] = this.#held
        if (this.#held.size <= MAX_HELD || !first) return
        clearTimeout(first.timer)
        this.#held.delete(first)
        this.#release(first.text, first.frame)
      }

      /**
       * @param {string} text
       * @param {DataFrame | null} frame
       */
      #release(text, frame) {
        if (this.#gone) return
        if (frame) link.observe(frame)
        const event = new MessageEvent('message', { data: text })
        this.#ours.add(event)
        this.dispatchEvent(event)
      }

      #discard() {
        this.#gone = true
        link.sockets.delete(this)
        for (const { timer } of this.#held) clearTimeout(timer)
        this.#held.clear()
        this.#silent = []
      }

      /** wake hands over what came while the network was down. */
      wake() {
        const waiting = this.#silent
        this.#silent = []
        for (const text of waiting) this.#receive(text)
      }

      /** sever ends the connection as far as the client can see. */
      sever() {
        this.#discard()
        super.close()
      }

      /**
       * What is sent into a severed connection is lost.
       * @param {Parameters<WebSocket['send']>[0]} data
       */
      send(data) {
        if (!this.#gone) super.send(data)
      }

      /**
       * @param {number} [code]
       * @param {string} [reason]
       */
      close(code, reason) {
        this.#discard()
        super.close(code, reason)
      }
    }
  }
}
