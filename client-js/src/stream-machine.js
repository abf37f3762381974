/**
 * The life of one stream() handle, as a pure function: step(state, event)
 * returns the next state and what has to be done about it. No clock, no
 * socket, no randomness: `now` (milliseconds of any steady clock) and `random`
 * (0 to 1) come with the event.
 *
 *            open                confirm              a hole
 *   idle ──────────▶ subscribing ────────▶ live ◀───────────────▶ gap
 *                        │   confirm,       │ ▲       filled        │
 *                        │   older wanted   │ │ caught up           │
 *                        ▼                  │ │                     │
 *                    resuming ──────────────┼─┘◀─────── reset       │
 *                        ▲ open             │ down         ▲        │ down
 *                        └── suspended ◀────┴──────────────┼────────┘
 *                                     position cannot be continued
 *   any ── close ──▶ closed
 *
 * A handle is behind when the server has spoken of a newer message than the
 * last one passed (a message that came early, the head in a confirmation, a
 * ping or a reset), or when it is in doubt: the server has spoken of a life of
 * the stream that the position does not belong to. Both lead to a request for
 * history, which ends in messages or in a reset.
 */

import { add, compareEpochs, gate, start } from './reorder.js'

/** @typedef {import('./reorder.js').Position} Position */
/** @typedef {import('./reorder.js').Arrival} Arrival */
/** @typedef {import('./reorder.js').Gate} Gate */

/** @typedef {'idle' | 'subscribing' | 'live' | 'gap' | 'suspended' | 'resuming' | 'reset' | 'closed'} Name */

/**
 * @typedef {object} State
 * @property {Name} name
 * @property {boolean} fromStart a reset continues with the first message kept, not at the head
 * @property {Gate} gate
 * @property {number} head newest offset known to exist in the position's epoch
 * @property {boolean} doubt the position may be of another life of the stream
 * @property {Position | null} since where catching up began
 * @property {boolean} up confirmed on this socket
 * @property {boolean} asked the subscribe on this socket asked for what this handle misses
 * @property {number} floor offset of the position when that subscribe was sent
 * @property {boolean} paused nobody takes messages now
 * @property {number} tries requests made without getting any further
 * @property {number} mark offset of the position at the last request
 * @property {number | null} wake when the machine wants a tick
 */

/**
 * @typedef {{ now: number, random: number }} Moment
 * @typedef {Moment & (
 *     { type: 'open', asked: boolean }
 *   | { type: 'confirm', at: Position, head: number }
 *   | { type: 'message', message: Arrival }
 *   | { type: 'head', at: Position }
 *   | { type: 'replayed' }
 *   | { type: 'reset', reason: string, epoch: string, first: number, offset: number }
 *   | { type: 'down' }
 *   | { type: 'tick' }
 *   | { type: 'pause', at: Position | null }
 *   | { type: 'unpause' }
 *   | { type: 'close' }
 * )} Event
 */

/**
 * @typedef {object} Gap
 * @property {string} epoch
 * @property {number} after newest offset passed
 * @property {number} before lowest offset known beyond the missing ones
 */

/**
 * count is to.offset - from.offset: how many messages catching up brought.
 * @typedef {{ from: Position, to: Position, count: number }} Recovered
 */

/**
 * from is the position that could not be continued; offset is the head, first
 * the lowest offset still kept.
 * @typedef {{ reason: string, epoch: string, first: number, offset: number, from: Position }} Reset
 */

/**
 * request: ask for what follows the position; doubt holds the very position
 * when the answer to it matters, again: an earlier request brought nothing.
 * @typedef {{ type: 'deliver', messages: readonly Arrival[] }
 *   | { type: 'state', value: Name }
 *   | { type: 'gap', value: Gap }
 *   | { type: 'recovered', value: Recovered }
 *   | { type: 'reset', value: Reset }
 *   | { type: 'request', doubt: Position | null, again: boolean }
 *   | { type: 'stuck' }} Effect
 */

/** How long a hole may heal by itself: reordering usually does. */
export const GAP_DELAY = 50
/** How long the first request may bring nothing; doubles with each further one. */
export const REQUEST_DEADLINE = 2000
export const REQUEST_DEADLINE_MAX = 30_000
/** Requests that brought nothing before the subscription is made anew. */
export const REQUEST_TRIES = 5

/**
 * @param {'start' | 'now' | Position} after
 * @returns {State}
 */
export function initial(after) {
  return {
    name: 'idle',
    fromStart: after === 'start',
    gate: gate(typeof after === 'object' ? after : null),
    head: 0,
    doubt: false,
    since: null,
    up: false,
    asked: false,
    floor: 0,
    paused: true,
    tries: 0,
    mark: 0,
    wake: null,
  }
}

/**
 * behind says whether the state waits for something that history must bring.
 *
 * @param {State} state
 */
export const behind = ({ gate: { position }, head, doubt }) => !!position && (doubt || head > position.offset)

/**
 * @param {State} before
 * @param {Event} event
 * @returns {{ state: State, effects: Effect[] }}
 */
export function step(before, event) {
  /** @type {Effect[]} */
  const effects = []
  if (before.name === 'closed') return { state: before, effects }
  const s = { ...before }
  const { now, type } = event
  const { position } = s.gate

  /** @param {Name} name */
  const enter = (name) => {
    if (s.name !== name) effects.push({ type: 'state', value: (s.name = name) })
  }
  const calm = () => {
    s.tries = 0
    s.wake = null
  }
  /**
   * place puts the gate at a position where nothing is known to be missing.
   * @param {Position | null} at
   */
  const place = (at) => {
    s.gate = gate(at)
    s.head = at?.offset ?? 0
    s.doubt = false
    calm()
  }
  const ask = () => {
    const at = /** @type {Position} */ (s.gate.position)
    s.mark = at.offset
    s.wake = now + Math.min(REQUEST_DEADLINE_MAX, REQUEST_DEADLINE * 2 ** s.tries) * (0.5 + event.random)
    effects.push({ type: 'request', doubt: s.doubt ? at : null, again: s.tries++ > 0 })
  }
  /**
   * hear takes note of what the server says exists.
   * @param {Position} at
   */
  const hear = ({ epoch, offset }) => {
    const mine = /** @type {Position} */ (s.gate.position)
    if (epoch !== mine.epoch) s.doubt = true
    else {
      s.head = Math.max(s.head, offset)
      if (offset >= mine.offset) s.doubt = false
    }
  }
  /** @param {{ gate: Gate, passed: readonly Arrival[] }} opened */
  const pass = ({ gate, passed }) => {
    s.gate = gate
    if (passed.length) effects.push({ type: 'deliver', messages: passed })
  }
  /**
   * settle enters the state that the facts call for; patience is how long to
   * wait for what is missing before asking for it, 0 to ask now.
   * @param {number} patience
   */
  const settle = (patience) => {
    const at = s.gate.position
    if (!s.up || !at) return
    if (!behind(s)) {
      calm()
      enter('live')
      const from = s.since
      if (from) effects.push({ type: 'recovered', value: { from, to: at, count: at.offset - from.offset } })
      s.since = null
      return
    }
    if (s.name === 'subscribing') enter('resuming')
    if (s.paused) return
    if (s.name === 'live') {
      enter(s.doubt ? 'resuming' : 'gap')
      s.since = at
      if (!s.doubt) {
        const { epoch, offset } = at
        effects.push({ type: 'gap', value: { epoch, after: offset, before: s.gate.held[0]?.offset ?? s.head + 1 } })
      }
    }
    if (patience) s.wake ??= now + patience
    else ask()
  }

  switch (type) {
    case 'open':
      s.up = false
      s.asked = event.asked
      s.floor = position?.offset ?? 0
      s.since ??= position
      enter(position ? 'resuming' : 'subscribing')
      break

    case 'confirm': {
      const { at, head } = event
      const again = s.up
      s.up = true
      if (!position) {
        const begin = s.fromStart ? { ...at, offset: 0 } : at
        s.head = Math.max(head, s.gate.held.at(-1)?.offset ?? 0)
        pass(start(s.gate, begin))
        if (s.fromStart && behind(s)) s.since = begin
        settle(0)
        break
      }
      hear({ epoch: at.epoch, offset: head })
      if (!again && head < s.floor) s.doubt = true
      if (!again && s.asked) {
        s.tries = 1
        s.mark = position.offset
      }
      settle(again ? GAP_DELAY : s.asked ? REQUEST_DEADLINE : 0)
      break
    }

    case 'message': {
      const { message } = event
      if (position) {
        if (compareEpochs(message.epoch, position.epoch) < 0) break
        hear(message)
      }
      if (!s.paused) pass(add(s.gate, message))
      settle(GAP_DELAY)
      break
    }

    case 'head':
      if (!position) break
      hear(event.at)
      settle(GAP_DELAY)
      break

    case 'replayed':
      // All that was asked for has been sent. What is still missing was lost.
      if (!s.tries || !position) break
      if (position.offset > s.mark) s.tries = 1
      s.mark = position.offset
      s.wake = Math.min(s.wake ?? Infinity, now + GAP_DELAY * s.tries)
      break

    case 'reset': {
      const { epoch, first, offset } = event
      if (!position) break
      // The words may be another handle's: each compares with its own position.
      const reason = epoch === position.epoch ? event.reason : 'epoch_changed'
      const lost =
        epoch !== position.epoch ||
        (reason === 'trimmed' && position.offset + 1 < first) ||
        (reason === 'ahead' && position.offset > offset && (s.doubt || !s.up))
      if (!lost) {
        // The wire goes on from the head for all of us.
        hear(event)
        settle(GAP_DELAY)
        break
      }
      const at = { epoch, offset: s.fromStart ? Math.max(0, first - 1) : offset }
      place(at)
      s.head = offset
      s.up = true
      s.since = behind(s) ? at : null
      enter('reset')
      effects.push({ type: 'reset', value: { reason, epoch, first, offset, from: position } })
      settle(0)
      break
    }

    case 'down':
      // What was held and what the head was are words of a socket that is gone.
      place(position)
      s.up = false
      if (s.name === 'idle') break
      s.since ??= position
      enter('suspended')
      break

    case 'tick':
      if (s.wake === null || now < s.wake) break
      s.wake = null
      if (!position || !behind(s)) break
      if (s.tries && position.offset > s.mark) {
        // It is coming: give it the time of a first request.
        s.tries = 1
        s.mark = position.offset
        s.wake = now + REQUEST_DEADLINE
      } else if (s.tries < REQUEST_TRIES) ask()
      else effects.push({ type: 'stuck' })
      break

    case 'pause':
      s.paused = true
      s.asked = false
      calm()
      s.gate = gate(event.at ?? position)
      if (position) hear(position)
      if (event.at && s.since) s.since = event.at
      break

    case 'unpause':
      s.paused = false
      settle(0)
      break

    case 'close':
      calm()
      s.gate = gate(position)
      enter('closed')
  }
  return { state: s, effects }
}
