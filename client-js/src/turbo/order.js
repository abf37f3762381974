/**
 * Keeps Turbo rendering in the order of arrival.
 *
 * Turbo lets every <turbo-stream> wait by itself before it renders: for an
 * animation frame while the page is visible, for a timer while it is hidden. A
 * page that is hidden in between renders the later one first, and the earlier
 * one, over it, when the page is looked at again. Here the one whose wait ends
 * first renders all that came before it, and then itself.
 */

/**
 * View is one showing of a stream in a page. What has arrived for it and is
 * not rendered yet is dropped when it is over.
 * @typedef {{ over: boolean }} View
 */

/**
 * @typedef {object} Entry
 * @property {() => unknown} run
 * @property {() => boolean} off it is not to be rendered
 * @property {boolean} [at] nothing to render, only a place between the others
 * @property {Promise<unknown>} [done]
 */

/** @type {Entry[]} arrived, and not yet their turn */
let waiting = []
/** @type {Promise<unknown>} ends with the last rendering that has had its turn */
let rendered = Promise.resolve()
/** @type {View | null} that of the message being handed over */
let view = null

/** turn renders everything up to the entry, and what waits for nothing else. @param {Entry} entry */
function turn(entry) {
  let end = waiting.indexOf(entry) + 1
  while (end && waiting[end]?.at) end++
  for (const next of waiting.splice(0, end)) {
    next.done = rendered.then(() => next.off() || next.run())
    rendered = next.done.catch(() => {}) // Turbo tells of it, and the next one renders all the same
  }
  return entry.done
}

/** @param {any} event */
function take(event) {
  const { detail } = event
  const of = view
  let { render } = detail
  /** @type {Entry} */
  const entry = {
    run: () => render(detail.newStream),
    off: () => event.defaultPrevented || !!of?.over,
  }
  waiting.push(entry)
  Object.defineProperty(detail, 'render', {
    configurable: true,
    enumerable: true,
    // Other listeners of this event find and leave their own; Turbo asks when it has been dispatched.
    get: () => (event.eventPhase ? render : () => turn(entry)),
    set: (other) => (render = other),
  })
}

/**
 * keepOrder serialises the rendering of every <turbo-stream> of the page.
 * Returns its undo.
 *
 * @param {EventTarget} page
 */
export function keepOrder(page) {
  page.addEventListener('turbo:before-stream-render', take)
  return () => page.removeEventListener('turbo:before-stream-render', take)
}

/**
 * deliver runs f, which hands a message to Turbo, and then once all that came
 * with it has been rendered.
 *
 * @param {View} of
 * @param {() => void} f
 * @param {() => void} then
 */
export function deliver(of, f, then) {
  view = of
  f()
  view = null
  const entry = { run: then, off: () => of.over, at: true }
  waiting.push(entry)
  if (waiting.every((other) => other.at || other.off())) turn(entry)
}
