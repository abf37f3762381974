import { createClient } from '../index.js'

/**
 * What is used of a client of createClient.
 * @typedef {object} Client
 * @property {(target: string | Record<string, unknown>, options: { after: import('../stream.js').After }) => import('../stream.js').Stream} stream
 * @property {(event: 'state', listener: (state: import('../connection.js').ConnectionState) => void) => () => void} on
 */

/**
 * @typedef {object} Settings
 * @property {string | URL} [url] the WebSocket endpoint; default is what <meta name="action-cable-url"> says, or /cable
 * @property {import('../connection.js').Token} [token] as for createClient
 * @property {Client} [client] one that the page has already, instead of url and token
 * @property {'none' | 'refresh' | 'reload'} [reset] what to do when a stream cannot be continued, by default what
 *   <meta name="chronocast-reset"> says, or a page refresh by Turbo
 */

/** @type {Settings} */
let settings = {}
/** @type {Client | null} */
let client = null

/** meta is what the page's head says under a name. @param {string} name */
export const meta = (name) => globalThis.document?.querySelector(`meta[name="${name}"]`)?.getAttribute('content')

/**
 * configure sets what differs from the defaults. It is to be called while the
 * page's scripts are first run: the client is made right afterwards.
 *
 * @param {Settings} options
 */
export function configure(options) {
  if (client) throw new Error('chronocast: configure() comes too late, the streams of this page are open')
  settings = { ...settings, ...options }
}

/** started says whether the client has been made. */
export const started = () => !!client

/** theClient is the one of the page, made when it is first needed. @returns {Client} */
export function theClient() {
  return (client ??= settings.client ?? createClient(settings.url ?? (meta('action-cable-url') || '/cable'), { ...settings }))
}

/** onReset is the word for what to do after a reset. */
export const onReset = () => settings.reset ?? meta('chronocast-reset') ?? 'refresh'
