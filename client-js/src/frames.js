/** The frames of chronocast-v1-json. */

import { ChronocastError } from './errors.js'

/** @typedef {import('./reorder.js').Position} Position */
/** @typedef {import('./reorder.js').Arrival} Arrival */

export const SUBPROTOCOL = 'chronocast-v1-json'

/**
 * @typedef {{ type: 'welcome' }
 *   | { type: 'ping', heads: Map<string, Position> }
 *   | { type: 'confirm', identifier: string, heads: Map<string, Position> }
 *   | { type: 'reject', identifier: string, reason: string }
 *   | { type: 'messages', identifier: string, messages: Arrival[] }
 *   | { type: 'replayed', identifier: string }
 *   | { type: 'reset', identifier: string, reason: string, epoch: string, first: number, offset: number }
 *   | { type: 'error', command: string, identifier: string, reason: string, message: string }
 *   | { type: 'disconnect', reason: string, reconnect: boolean }
 *   | { type: 'unknown' }} Frame
 */

/** @param {string} stream */
export const identifierOf = (stream) => JSON.stringify({ channel: '$pubsub', stream_name: stream })

/**
 * encode returns the text of a command. With a position it asks for everything
 * after it.
 *
 * @param {'subscribe' | 'unsubscribe' | 'history'} command
 * @param {string} stream
 * @param {Position | null} [after]
 */
export function encode(command, stream, after) {
  const history = after && { streams: { [stream]: { epoch: after.epoch, offset: after.offset } } }
  return JSON.stringify({ command, identifier: identifierOf(stream), ...(history && { history }) })
}

/**
 * decode reads one frame. It throws a ChronocastError when the text is no
 * frame of this protocol; a frame type it does not know is no error.
 *
 * @param {unknown} text
 * @returns {Frame}
 */
export function decode(text) {
  if (typeof text !== 'string') throw malformed('a frame that is not text')
  /** @type {any} */
  let f
  try {
    f = JSON.parse(text)
  } catch {
    throw malformed('a frame that is not JSON')
  }
  if (!f || typeof f !== 'object') throw malformed('a frame that is not an object')
  const { identifier, type, reason = '' } = f
  switch (type) {
    case 'welcome':
      return { type }
    case 'ping':
      return { type, heads: heads(f.streams) }
    case 'confirm_subscription':
      return { type: 'confirm', identifier, heads: heads(f.streams) }
    case 'reject_subscription':
      return { type: 'reject', identifier, reason }
    case 'confirm_history':
      return { type: 'replayed', identifier }
    case 'messages': {
      const size = text.length / (f.messages.length || 1)
      return {
        type,
        identifier,
        messages: f.messages.map((/** @type {any} */ m) => arrival(f.epoch, m, f.replay, size)),
      }
    }
    case 'reset':
    case 'reject_history':
      position(f)
      if (!isOffset(f.first)) throw malformed('a reset without its first offset')
      return { type: 'reset', identifier, reason, epoch: f.epoch, first: f.first, offset: f.offset }
    case 'error':
      return { type, identifier, reason, command: f.command ?? '', message: f.message ?? '' }
    case 'disconnect':
      return { type, reason, reconnect: f.reconnect !== false }
    case undefined:
      if ('message' in f) {
        return { type: 'messages', identifier, messages: [arrival(f.epoch, f, f.replay, text.length)] }
      }
  }
  return { type: 'unknown' }
}

/**
 * @param {string} epoch
 * @param {any} m
 * @param {unknown} replay
 * @param {number} size
 * @returns {Arrival}
 */
function arrival(epoch, m, replay, size) {
  position({ epoch, offset: m.offset })
  return { epoch, offset: m.offset, data: m.message, replayed: replay === true, size }
}

/** @param {any} streams */
function heads(streams) {
  return new Map(Object.entries(streams ?? {}).map(([stream, at]) => [stream, position(at)]))
}

/**
 * position checks a pair that came from outside: the offset must be an integer
 * that a number holds exactly, the epoch decimal digits.
 *
 * @param {any} at
 * @returns {Position}
 */
export function position(at) {
  const { epoch, offset } = at ?? {}
  if (!isOffset(offset) || typeof epoch !== 'string' || !/^[1-9]\d{0,18}$/.test(epoch)) {
    throw malformed('a position that is none: ' + `${epoch}:${offset}`.slice(0, 50))
  }
  return { epoch, offset }
}

/** @param {unknown} n */
const isOffset = (n) => Number.isSafeInteger(n) && /** @type {number} */ (n) >= 0

/** @param {string} what */
const malformed = (what) => new ChronocastError('malformed', 'the server sent ' + what)
