/**
 * Platform is all that the client takes from its surroundings. Tests put
 * another in its place.
 *
 * @typedef {object} Platform
 * @property {() => number} now milliseconds of a clock that only moves on; it is never compared with a server's
 * @property {(f: () => void, ms: number) => unknown} setTimeout
 * @property {(timer: any) => void} clearTimeout
 * @property {() => number} random
 * @property {(f: (sign: PageSign) => void) => () => void} watch tells of the page's life; returns its undo
 * @property {(error: unknown) => void} report the last resort for an error nobody listens for
 */

/** @typedef {'shown' | 'hidden' | 'online'} PageSign hidden: the page is left, perhaps for the back/forward cache */

/** @type {Platform} */
export const platform = {
  now: () => performance.now(),
  setTimeout: (f, ms) => setTimeout(f, ms),
  clearTimeout: (timer) => clearTimeout(timer),
  random: () => Math.random(),
  report: (error) => (globalThis.reportError ?? console.error)(error),
  watch(f) {
    const { window, document } = globalThis
    const stop = new AbortController()
    /**
     * @param {EventTarget | undefined} target
     * @param {string} type
     * @param {() => void} listener
     */
    const on = (target, type, listener) => target?.addEventListener?.(type, listener, { signal: stop.signal })
    const shown = () => document.visibilityState === 'visible' && f('shown')
    on(document, 'visibilitychange', shown)
    on(document, 'resume', shown)
    on(window, 'pageshow', shown)
    on(window, 'pagehide', () => f('hidden'))
    on(window, 'online', () => f('online'))
    return () => stop.abort()
  },
}
