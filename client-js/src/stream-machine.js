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

import { add, compareEpochs, gate, hole, start } from './reorder.js'

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
 *   | { type: 'confirm', epoch: string, offset: number, head?: number }
 *   | ({ type: 'message' } & Arrival)
 *   | { type: 'head', epoch: string, offset: number }
 *   | { type: 'replayed' }
 *   | { type: 'reset', reason: string, epoch: string, first: number, offset: number }
 *   | { type: 'down' }
 *   | { type: 'tick' }
 *   | { type: 'pause', position: Position | null }
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
 * request: ask for what follows the position; exact when the answer to this
 * very position matters, again when an earlier request brought nothing.
 * @typedef {{ type: 'deliver', messages: readonly Arrival[] }
 *   | { type: 'state', value: Name }
 *   | { type: 'gap', value: Gap }
 *   | { type: 'recovered', value: Recovered }
 *   | { type: 'reset', value: Reset }
 *   | { type: 'request', exact: boolean, again: boolean }
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
  const { position } = s.gate

  /** @param {Name} name */
  const enter = (name) => {
    if (s.name !== name) effects.push({ type: 'state', value: (s.name = name) })
  }
  const ask = () => {
    s.tries++
    s.mark = /** @type {Position} */ (s.gate.position).offset
    s.wake = event.now + Math.min(REQUEST_DEADLINE_MAX, REQUEST_DEADLINE * 2 ** (s.tries - 1)) * (0.5 + event.random)
    effects.push({ type: 'request', exact: s.doubt, again: s.tries > 1 })
  }
  /**
   * hear takes note of what the server says the head is.
   * @param {string} epoch
   * @param {number} offset
   */
  const hear = (epoch, offset) => {
    const at = /** @type {Position} */ (s.gate.position)
    if (epoch !== at.epoch) s.doubt = true
    else {
      s.head = Math.max(s.head, offset)
      if (offset >= at.offset) s.doubt = false
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
      s.wake = null
      s.tries = 0
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
        const before = hole(s.gate)?.before ?? s.head + 1
        effects.push({ type: 'gap', value: { epoch: at.epoch, after: at.offset, before } })
      }
    }
    if (!patience) ask()
    else s.wake ??= event.now + patience
  }

  switch (event.type) {
    case 'open':
      s.up = false
      s.asked = event.asked
      s.floor = position?.offset ?? 0
      s.since ??= position
      enter(position ? 'resuming' : 'subscribing')
      break

    case 'confirm': {
      const { epoch, offset, head = offset } = event
      const first = !s.up
      s.up = true
      if (!position) {
        const at = { epoch, offset: s.fromStart ? 0 : offset }
        s.head = Math.max(head, s.gate.held.at(-1)?.offset ?? 0)
        pass(start(s.gate, at))
        if (s.fromStart && behind(s)) s.since = at
        settle(0)
        break
      }
      hear(epoch, head)
      if (first && epoch === position.epoch && head < s.floor) s.doubt = true
      if (first && s.asked) {
        s.tries = 1
        s.mark = position.offset
        settle(REQUEST_DEADLINE)
      } else settle(first ? 0 : GAP_DELAY)
      break
    }

    case 'message': {
      const { epoch, offset } = event
      if (position && compareEpochs(epoch, position.epoch) < 0) break
      if (position) hear(epoch, offset)
      if (!s.paused || !position) pass(add(s.gate, event))
      settle(GAP_DELAY)
      break
    }

    case 'head':
      if (!position) break
      hear(event.epoch, event.offset)
      settle(GAP_DELAY)
      break

    case 'replayed':
      // Everything asked for has been sent. What is still missing was lost.
      if (s.up && !s.paused && position && behind(s) && s.tries) {
        if (position.offset > s.mark) s.tries = 1
        s.mark = position.offset
        s.wake = Math.min(s.wake ?? Infinity, event.now + GAP_DELAY * s.tries)
      }
      break

    case 'reset': {
      const { reason, epoch, first, offset } = event
      if (!position) break
      const lost =
        epoch !== position.epoch ||
        (reason === 'trimmed' && position.offset + 1 < first) ||
        (reason === 'ahead' && position.offset > offset)
      if (!lost) {
        // It was meant for another handle; the wire goes on from the head for all.
        hear(epoch, offset)
        settle(GAP_DELAY)
        break
      }
      const at = { epoch, offset: s.fromStart ? Math.max(0, first - 1) : offset }
      s.gate = gate(at)
      s.head = offset
      s.doubt = false
      s.since = null
      s.tries = 0
      s.wake = null
      s.up = true
      enter('reset')
      effects.push({ type: 'reset', value: { reason, epoch, first, offset, from: position } })
      if (behind(s)) s.since = at
      settle(0)
      break
    }

    case 'down':
      // Held messages and the head were words of a socket that is gone.
      s.gate = gate(position)
      s.head = position?.offset ?? 0
      s.doubt = false
      s.up = false
      s.wake = null
      s.tries = 0
      if (s.name !== 'idle') {
        s.since ??= position
        enter('suspended')
      }
      break

    case 'tick':
      if (s.wake === null || event.now < s.wake) break
      s.wake = null
      if (!s.up || s.paused || !position || !behind(s)) break
      if (s.tries && position.offset > s.mark) {
        // It is coming: give it the time of a first request.
        s.tries = 1
        s.mark = position.offset
        s.wake = event.now + REQUEST_DEADLINE
      } else if (s.tries < REQUEST_TRIES) ask()
      else effects.push({ type: 'stuck' })
      break

    case 'pause':
      s.paused = true
      s.wake = null
      s.tries = 0
      if (event.position) {
        const at = event.position
        s.gate = gate(at)
        if (position) hear(position.epoch, position.offset)
        if (s.since) s.since = at
      }
      break

    case 'unpause':
      s.paused = false
      settle(0)
      break

    case 'close':
      s.wake = null
      s.gate = gate(position)
      enter('closed')
  }
  return { state: s, effects }
}
