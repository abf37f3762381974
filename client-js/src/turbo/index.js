/**
 * Turbo Streams over Chronocast: rendered once, in commit order, from the very
 * message after the one the page was rendered with.
 *
 *     import 'chronocast/turbo'
 *
 *     <chronocast-stream-source stream="chat/42" epoch="…" offset="41"></chronocast-stream-source>
 *
 * With <meta name="chronocast-takeover" content="true"> in the head, or
 * takeOver(), the elements of turbo-rails are read by Chronocast as well.
 */

import { ChronocastError } from '../errors.js'
import { ChronocastStreamSource, TurboCableStreamSource } from './element.js'
import { keepOrder } from './order.js'
import { configure, meta } from './settings.js'
import { pageRendered } from './source.js'

export { ChronocastError, configure }

/** @typedef {import('./settings.js').Settings} Settings */

/**
 * takeOver makes Chronocast read <turbo-cable-stream-source>. The element
 * belongs to whoever defines it first.
 */
export function takeOver() {
  const there = customElements.get('turbo-cable-stream-source')
  if (there === TurboCableStreamSource) return
  if (there) {
    throw new Error('chronocast: turbo-rails has defined <turbo-cable-stream-source> already: import chronocast/turbo and take over before it')
  }
  customElements.define('turbo-cable-stream-source', TurboCableStreamSource)
}

if (globalThis.customElements && !customElements.get('chronocast-stream-source')) {
  keepOrder(globalThis)
  addEventListener('turbo:render', pageRendered)
  customElements.define('chronocast-stream-source', ChronocastStreamSource)
  if ((meta('chronocast-takeover') ?? 'false') !== 'false') takeOver()
}
