import { ChronocastError } from '../errors.js'
import { position } from '../frames.js'
import { sourceOf } from './source.js'

/** @typedef {import('../reorder.js').Position} Position */
/** @typedef {import('./source.js').Shown} Shown */

/** Where there are no elements, the module can be imported all the same. */
const Base = /** @type {typeof HTMLElement} */ (globalThis.HTMLElement ?? class {})

/** snake turns a name of a dataset into that of a member. @param {string} name */
const snake = (name) => name.replace(/[A-Z]/g, (letter) => '_' + letter.toLowerCase())

/**
 * ChronocastStreamSource stands for a stream in a page:
 *
 *     <chronocast-stream-source stream="chat/42" epoch="1796061414123456" offset="41">
 *     <chronocast-stream-source signed-stream-name="…">
 *
 * epoch and offset say what the page shows, first by the server that rendered
 * it and then by us. `state` is offline, resuming, live, reset or rejected,
 * `connected` is there while messages arrive as they are published.
 */
export class ChronocastStreamSource extends Base {
  static observedAttributes = ['stream', 'channel', 'signed-stream-name', 'epoch', 'offset']

  /** Attribute names of the position. */
  static at = { epoch: 'epoch', offset: 'offset' }

  /** @type {ReturnType<typeof sourceOf> | null} */
  #source = null
  /** between connectedCallback and disconnectedCallback */
  #here = false
  #scheduled = false

  constructor() {
    super()
    // Turbo takes what is not in the new page off an element it morphs.
    this.addEventListener('turbo:before-morph-attribute', (/** @type {any} */ event) => {
      const { attributeName, mutationType } = event.detail
      const ours = ['connected', 'state', ...Object.values(this.#at)]
      if (event.target === this && mutationType === 'remove' && ours.includes(attributeName)) event.preventDefault()
    })
  }

  get #at() {
    return /** @type {typeof ChronocastStreamSource} */ (this.constructor).at
  }

  /** What client.stream takes, or null while the element does not say. */
  get target() {
    const signed = this.getAttribute('signed-stream-name')
    if (!signed) return this.getAttribute('stream')
    return { channel: this.getAttribute('channel') ?? '$pubsub', signed_stream_name: signed }
  }

  /** The position the attributes say, or null. @returns {Position | null} */
  get #said() {
    const epoch = this.getAttribute(this.#at.epoch)
    const offset = this.getAttribute(this.#at.offset)
    if (!epoch && !offset) return null
    try {
      return position({ epoch, offset: /^\d+$/.test(offset ?? '') ? Number(offset) : NaN })
    } catch (thrown) {
      reportError(new ChronocastError('malformed', `a stream source says where it begins, and ${thrown}`, thrown))
      return null
    }
  }

  connectedCallback() {
    this.#here = true
    const { target } = this
    if (this.#source) return
    this.#bare()
    // A preview is on show until the real page is there, which has an element of its own.
    if (!target || document.documentElement.hasAttribute('data-turbo-preview')) return
    this.#source = sourceOf(target)
    this.#source.join(this, this.#said)
  }

  disconnectedCallback() {
    this.#here = false
    this.#source?.leave(this)
    this.#source = null
    this.#bare()
  }

  /** bare takes off what was true of another time: a snapshot of a page has it too. */
  #bare() {
    this.removeAttribute('connected')
    this.removeAttribute('state')
  }

  /**
   * @param {string} name
   * @param {string | null} before
   * @param {string | null} after
   */
  attributeChangedCallback(name, before, after) {
    // An element of a page that was there before this module is told of each of
    // its attributes first, and then that it is connected.
    if (!this.#here || before === after) return
    if (Object.values(this.#at).includes(name)) {
      if (this.#scheduled || !this.#source) return
      this.#scheduled = true
      // The halves change one after the other.
      queueMicrotask(() => {
        this.#scheduled = false
        const at = this.#source && this.#said
        if (at) this.#source?.move(at)
      })
    } else {
      const said = this.#said
      const last = this.#source?.position
      this.#source?.leave(this)
      this.#source = null
      // A position that we have put there is that of the stream before.
      if (said && said.epoch === last?.epoch && said.offset === last.offset) {
        for (const half of Object.values(this.#at)) this.removeAttribute(half)
      }
      this.connectedCallback()
    }
  }

  /**
   * show is called by the source.
   *
   * @param {Shown} state
   * @param {boolean} connected
   * @param {Position | null} position
   */
  show(state, connected, position) {
    if (this.getAttribute('state') !== state) {
      this.setAttribute('state', state)
      this.dispatchEvent(new CustomEvent('chronocast:state', { bubbles: true, detail: { state } }))
    }
    this.toggleAttribute('connected', connected)
    if (!position) return
    this.setAttribute(this.#at.epoch, position.epoch)
    this.setAttribute(this.#at.offset, String(position.offset))
  }
}

/** The element of turbo-rails, read by Chronocast: same name, same attributes. */
export class TurboCableStreamSource extends ChronocastStreamSource {
  static observedAttributes = ['channel', 'signed-stream-name', 'data-epoch', 'data-offset']
  static at = { epoch: 'data-epoch', offset: 'data-offset' }

  get target() {
    const channel = this.getAttribute('channel')
    if (!channel) return null
    // Position and page are not part of what is subscribed to: pages share a subscription.
    const { epoch, offset, page, ...params } = this.dataset
    const members = Object.entries(params).map(([name, value]) => [snake(name), value])
    return { channel, signed_stream_name: this.getAttribute('signed-stream-name'), ...Object.fromEntries(members) }
  }
}
