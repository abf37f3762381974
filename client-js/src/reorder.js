/**
 * The in-order gate. It passes the message that follows its position, holds
 * what is early, drops what is old. It is a value: every function returns a
 * new gate and leaves the one it was given as it was.
 */

/**
 * A place in a stream. The two halves are kept and changed together.
 * @typedef {{ readonly epoch: string, readonly offset: number }} Position
 */

/**
 * @typedef {object} Arrival
 * @property {string} epoch
 * @property {number} offset
 * @property {any} data
 * @property {boolean} replayed read back from history rather than live
 * @property {number} size what it counts against the bound, about its length in bytes
 */

/**
 * held ascends by offset, without repeats, and is of one epoch. While position
 * is null nothing passes and everything is held.
 * @typedef {{ readonly position: Position | null, readonly held: readonly Arrival[] }} Gate
 */

/** @typedef {{ readonly count: number, readonly size: number }} Bounds */

/** @type {Bounds} */
export const BOUNDS = { count: 1024, size: 4 << 20 }

/**
 * compareEpochs orders two epochs without turning them into numbers, which
 * they do not fit: decimal digits without leading zeros.
 *
 * @param {string} a
 * @param {string} b
 */
export const compareEpochs = (a, b) => a.length - b.length || (a < b ? -1 : a > b ? 1 : 0)

/**
 * @param {Position | null} [position]
 * @returns {Gate}
 */
export const gate = (position = null) => ({ position, held: [] })

/**
 * start gives a gate its position and lets pass what it held for it.
 *
 * @param {Gate} before
 * @param {Position} position
 */
export function start(before, position) {
  return release(
    position,
    before.held.filter((m) => m.epoch === position.epoch && m.offset > position.offset),
  )
}

/**
 * add puts one message to the gate. newer means that the message is of a later
 * epoch than the position: nothing changes, and the owner has to find out how
 * the stream goes on.
 *
 * @param {Gate} before
 * @param {Arrival} message
 * @param {Bounds} [bounds]
 * @returns {{ gate: Gate, passed: readonly Arrival[], newer: boolean }}
 */
export function add(before, message, bounds = BOUNDS) {
  const { position, held } = before
  const order = compareEpochs(message.epoch, (position ?? held[0] ?? message).epoch)
  if (order > 0 && !position) return add(gate(), message, bounds)

  let at = held.length
  while (at && message.offset < /** @type {Arrival} */ (held[at - 1]).offset) at--
  const last = held[at - 1] ?? position
  if (order || (last && message.offset <= last.offset)) {
    return { gate: before, passed: [], newer: order > 0 }
  }
  const opened = release(position, [...held.slice(0, at), message, ...held.slice(at)], bounds)
  return { ...opened, newer: false }
}

/**
 * release moves the position over the messages that follow it and holds the
 * others. Over the bound the highest go: history brings them again.
 *
 * @param {Position | null} position
 * @param {readonly Arrival[]} messages ascending
 * @param {Bounds} [bounds]
 * @returns {{ gate: Gate, passed: readonly Arrival[] }}
 */
function release(position, messages, bounds = BOUNDS) {
  let n = 0
  while (position && messages[n]?.offset === position.offset + 1) {
    position = { epoch: position.epoch, offset: position.offset + 1 }
    n++
  }
  let size = 0
  let end = n
  for (; end < messages.length && end - n < bounds.count; end++) {
    size += /** @type {Arrival} */ (messages[end]).size
    if (size > bounds.size) break
  }
  return { gate: { position, held: messages.slice(n, end) }, passed: messages.slice(0, n) }
}
