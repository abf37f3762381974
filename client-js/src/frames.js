/** The frames of chronocast-v1-json. */

import { ChronocastError } from './errors.js'

/** @typedef {import('./reorder.js').Position} Position */
/** @typedef {import('./reorder.js').Arrival} Arrival */

export const SUBPROTOCOL = 'chronocast-v1-json'

/**
 * Frame is what decode makes of a frame: positions are checked, and one
 * message is told like several.
 *
 * @typedef {{ type: 'welcome' }
 *   | { type: 'ping', heads: [stream: string, at: Position][] }
 *   | { type: 'confirm_subscription', identifier: string, heads: [stream: string, at: Position][] }
 *   | { type: 'reject_subscription', identifier: string, reason: string }
 *   | { type: 'messages', identifier: string, messages: Arrival[] }
 *   | { type: 'confirm_history', identifier: string }
 *   | { type: 'reset', identifier: string, reason: string, epoch: string, first: number, offset: number }
 *   | { type: 'error', command?: string, identifier?: string, reason: string, message: string }
 *   | { type: 'disconnect', reason: string, reconnect?: boolean }} Frame
 */

/**
 * isName says whether a server would take name for that of a stream: 1 to 255
 * bytes of UTF-8, so no lone surrogates, without control characters.
 *
 * @param {unknown} name
 */
export const isName = (name) =>
  typeof name === 'string' && /^[^\p{Cc}\p{Cs}]+$/u.test(name) && new TextEncoder().encode(name).length < 256

/** @param {string} stream */
export const identifierOf = (stream) => JSON.stringify({ channel: '$pubsub', stream_name: stream })

/**
 * encode returns the text of a command. With a position of the named stream it
 * asks for everything after it.
 *
 * @param {'subscribe' | 'unsubscribe' | 'history'} command
 * @param {string} identifier
 * @param {string | null} [stream]
 * @param {Position | null} [after]
 */
export const encode = (command, identifier, stream, after) =>
  JSON.stringify({ command, identifier, history: stream && after ? { streams: { [stream]: after } } : undefined })

/**
 * decode reads one frame; null stands for a type it does not know. It throws a
 * ChronocastError when the text is no frame of this protocol.
 *
 * @param {any} text
 * @returns {Frame | null}
 */
export function decode(text) {
  try {
    const f = JSON.parse(text)
    /**
     * @param {any} m
     * @param {number} size
     * @returns {Arrival}
     */
    const arrival = (m, size) => {
      const { epoch, offset } = position({ epoch: f.epoch, offset: m.offset })
      return { epoch, offset, data: m.message, replayed: !!f.replay, size }
    }
    switch (f.type) {
      case undefined:
        return { type: 'messages', identifier: f.identifier, messages: [arrival(f, text.length)] }
      case 'messages':
        return { ...f, messages: f.messages.map((/** @type {any} */ m) => arrival(m, text.length / f.messages.length)) }
      case 'ping':
      case 'confirm_subscription':
        return { ...f, heads: Object.entries(f.streams ?? {}).map(([stream, at]) => [stream, position(at)]) }
      case 'reset':
        return { ...f, ...position(f), first: position({ epoch: f.epoch, offset: f.first }).offset }
      case 'welcome':
      case 'reject_subscription':
      case 'confirm_history':
      case 'error':
      case 'disconnect':
        return f
    }
    return null
  } catch (thrown) {
    throw new ChronocastError('malformed', `the server sent no frame: ${thrown}`, thrown)
  }
}

/**
 * position checks a pair that came from outside: the epoch must be decimal
 * digits, the offset an integer that a number holds exactly.
 *
 * @param {any} at
 * @returns {Position}
 */
export function position({ epoch, offset }) {
  if (!/^[1-9]\d{0,18}$/.test(epoch) || typeof epoch !== 'string' || !(Number.isSafeInteger(offset) && offset >= 0)) {
    throw new TypeError(`${epoch}:${offset} is no position`)
  }
  return { epoch, offset }
}
