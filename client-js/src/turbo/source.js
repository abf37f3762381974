import { compareEpochs } from '../reorder.js'
import { deliver } from './order.js'
import { onReset, started, theClient } from './settings.js'

/** @typedef {import('../reorder.js').Position} Position */
/** @typedef {import('../stream-machine.js').Reset} Reset */
/** @typedef {import('./order.js').View} View */
/** @typedef {import('../index.js').Message} Message */

/**
 * @typedef {'offline' | 'resuming' | 'live' | 'reset' | 'rejected'} Shown what the attribute `state` says
 */

/**
 * An element that stands for a stream in the page.
 * @typedef {HTMLElement & { show: (state: Shown, connected: boolean, position: Position | null) => void }} Outlet
 */

/** How long a subscription outlives the last element of its stream, in ms: the next page often has one too. */
const LINGER = 2000
/** Pages that are told of a reset together refresh within this time, in ms. */
const SPREAD = 1000

/** @type {Map<string, Source>} by identifier */
const sources = new Map()

/**
 * sourceOf returns the one source for all elements of a stream.
 *
 * @param {string | Record<string, unknown>} target as client.stream takes it
 */
export function sourceOf(target) {
  const key = JSON.stringify(target)
  let source = sources.get(key)
  if (!source) sources.set(key, (source = new Source(target, key)))
  return source
}

/** Whether the link is up, or has not yet been seen to be down. */
let up = true

/** watch tells all sources of the link. It is called once, with the first of them. */
function watch() {
  theClient().on('state', (state) => {
    if (state !== 'connecting') up = state === 'connected'
    for (const source of sources.values()) source.show()
  })
}

/**
 * pageRendered is for when Turbo has rendered a page: what a reset has left
 * behind is gone.
 */
export function pageRendered() {
  for (const source of sources.values()) {
    source.stale = false
    source.show()
  }
}

/** @param {Position | null} a @param {Position | null} b */
const same = (a, b) => a?.epoch === b?.epoch && a?.offset === b?.offset

/** lowest of the newest epoch. @param {Position[]} positions */
const lowest = (positions) =>
  positions.reduce(
    (/** @type {Position | null} */ low, at) =>
      !low || (compareEpochs(at.epoch, low.epoch) || low.offset - at.offset) > 0 ? at : low,
    null,
  )

/** @param {(turbo: any) => void} f called once Turbo is on the page */
function withTurbo(f, tries = 0) {
  const { Turbo } = /** @type {any} */ (globalThis)
  if (Turbo?.connectStreamSource) return f(Turbo)
  if (tries === 200) console.warn('chronocast: streams wait for Turbo, which is not on this page: import @hotwired/turbo')
  setTimeout(() => withTurbo(f, tries + 1), 50)
}

/**
 * Source reads one stream for all elements of the page that name it, so that
 * each message is rendered once. Its position is that of the page: the last
 * message whose rendering is done, not the last one received. The elements
 * carry it, so that a snapshot of the page says by itself what it shows.
 */
class Source {
  /** @type {Position | null} */
  position = null
  /** a reset has left a hole in what the page shows */
  stale = false
  /** @type {Set<Outlet>} in the order they came */
  #outlets = new Set()
  /** @type {Set<Outlet>} those that the present view began with or that joined it */
  #settled = new Set()
  /** @type {Position[]} where elements say that a newly rendered page begins */
  #joined = []
  /** @type {Position[]} where elements say that a page rendered anew in its place begins */
  #moved = []
  /** @type {View} */
  #view = { over: true }
  /** @type {import('../stream.js').Stream | null} */
  #stream = null
  #scheduled = false
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer

  /**
   * @param {string | Record<string, unknown>} target
   * @param {string} key
   */
  constructor(target, key) {
    this.target = target
    this.key = key
  }

  /**
   * join adds an element of a page rendered at the position, if it says one.
   *
   * @param {Outlet} outlet
   * @param {Position | null} at
   */
  join(outlet, at) {
    this.#outlets.add(outlet)
    if (at) this.#joined.push(at)
    this.#schedule()
  }

  /** @param {Outlet} outlet */
  leave(outlet) {
    this.#outlets.delete(outlet)
    this.#settled.delete(outlet)
    withTurbo((turbo) => this.#outlets.has(outlet) || turbo.disconnectStreamSource(outlet))
    this.#schedule()
  }

  /** move is for an element whose page was rendered anew around it. @param {Position} at */
  move(at) {
    if (same(at, this.position)) return
    this.#moved.push(at)
    this.#schedule()
  }

  /**
   * Elements come and go together, when one page takes the place of another.
   * The first ones wait until the page's scripts have run and called configure.
   */
  #schedule() {
    if (this.#scheduled) return
    this.#scheduled = true
    if (started()) queueMicrotask(() => this.#settle())
    else setTimeout(() => this.#settle(), 0)
  }

  #settle() {
    this.#scheduled = false
    if (!started()) watch()
    // With an element that stays the page stays, and shows what this source has brought it.
    const at = lowest(this.#settled.size ? this.#moved : [...this.#joined, ...this.#moved])
    this.#joined = []
    this.#moved = []
    this.#settled = new Set(this.#outlets)
    clearTimeout(this.#timer)
    if (!this.#outlets.size) {
      this.#view.over = true
      this.#timer = setTimeout(() => this.#end(), LINGER)
    } else if (this.#view.over || (at && !same(at, this.position))) this.#open(at)
    this.show()
  }

  /** open begins a view after the position, or with the next message. @param {Position | null} at */
  #open(at) {
    this.#view.over = true
    const view = (this.#view = { over: false })
    const before = this.#stream
    const stream = (this.#stream = theClient().stream(this.target, { after: at ?? 'now' }))
    this.position = at
    this.stale = false
    stream.on('state', () => {
      if (view.over) return
      this.position ??= stream.position
      this.show()
    })
    stream.on('recovered', (detail) => view.over || this.#tell('recovered', detail))
    stream.on('reset', (detail) => view.over || this.#reset(view, detail))
    stream.on('error', (error) => view.over || (this.#tell('error', error) && reportError(error)))
    withTurbo((turbo) => {
      if (!view.over) stream.on('message', (message) => view.over || this.#render(turbo, view, message))
    })
    before?.close() // after the other was opened: they share a subscription
  }

  #end() {
    this.#stream?.close()
    this.#stream = null
    sources.delete(this.key)
  }

  /**
   * @param {any} turbo
   * @param {View} view
   * @param {Message} message
   */
  #render(turbo, view, { epoch, offset, data }) {
    const [outlet] = this.#outlets
    if (!outlet) return
    this.position ??= { epoch, offset: offset - 1 }
    const event = new MessageEvent('message', { data, lastEventId: `${epoch}:${offset}` })
    turbo.connectStreamSource(outlet) // where it is not yet: an event that Turbo does not hear is lost
    deliver(view, () => outlet.dispatchEvent(event), () => this.#reached({ epoch, offset }))
  }

  /** @param {Position} position */
  #reached(position) {
    this.position = position
    this.show()
  }

  /**
   * @param {View} view
   * @param {Reset} detail
   */
  #reset(view, detail) {
    const { epoch, offset, from } = detail
    this.stale = true
    deliver(view, () => {}, () => this.#reached({ epoch, offset }))
    if (!this.#tell('reset', detail) || !this.#first(`${from.epoch}:${from.offset}`)) return
    const word = onReset()
    if (word !== 'none') {
      setTimeout(() => {
        if (word === 'reload') location.reload()
        else withTurbo((turbo) => turbo.renderStreamMessage('<turbo-stream action="refresh"></turbo-stream>'))
      }, Math.random() * SPREAD)
    }
  }

  /**
   * first says whether this position is lost for the first time: a page that is
   * rendered at the same lost position again must not be fetched for ever.
   *
   * @param {string} from
   */
  #first(from) {
    const key = 'chronocast:reset:' + this.key
    try {
      if (sessionStorage.getItem(key) === from) return false
      sessionStorage.setItem(key, from)
    } catch {} // a page without storage
    return true
  }

  /**
   * tell dispatches an event on every element, and says whether none has
   * prevented what happens by default.
   *
   * @param {'recovered' | 'reset' | 'error'} name
   * @param {unknown} detail
   */
  #tell(name, detail) {
    return [...this.#outlets]
      .map((outlet) => outlet.dispatchEvent(new CustomEvent('chronocast:' + name, { bubbles: true, cancelable: true, detail })))
      .every(Boolean)
  }

  /** show puts state and position on the elements. */
  show() {
    const state = this.#stream?.state ?? 'idle'
    const connected = up && ['live', 'gap', 'reset'].includes(state)
    /** @type {Shown} */
    const shown =
      state === 'closed' ? 'rejected'
      : !up || state === 'suspended' ? 'offline'
      : state !== 'live' && state !== 'reset' ? 'resuming'
      : this.stale ? 'reset'
      : 'live'
    for (const outlet of this.#outlets) outlet.show(shown, connected, this.position)
  }
}

