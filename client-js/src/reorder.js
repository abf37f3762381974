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
 * @typedef {{ readonly position: Position | null, readonly held: readonly Arrival[], readonly size: number }} Gate
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
export const gate = (position = null) => ({ position, held: [], size: 0 })

/**
 * start gives a gate its position and lets pass what it held for it.
 *
 * @param {Gate} before
 * @param {Position} position
 */
export function start(before, position) {
  const held = before.held.filter((m) => m.epoch === position.epoch && m.offset > position.offset)
  return release({ position, held, size: held.reduce((size, m) => size + m.size, 0) })
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
  const epoch = position?.epoch ?? held[0]?.epoch ?? message.epoch
  const order = compareEpochs(message.epoch, epoch)
  if (order > 0) {
    if (!position) return add(gate(), message, bounds)
    return { gate: before, passed: [], newer: true }
  }
  const next = (position?.offset ?? -1) + 1
  if (order < 0 || message.offset < next) return { gate: before, passed: [], newer: false }
  if (position && message.offset === next) {
    const opened = release({ ...before, position: { epoch, offset: next } })
    return { gate: opened.gate, passed: [message, ...opened.passed], newer: false }
  }
  return { gate: hold(before, message, bounds), passed: [], newer: false }
}

/**
 * hole is the first run of missing offsets as far as the gate can see, both
 * bounds exclusive, or null.
 *
 * @param {Gate} gate
 */
export function hole({ position, held }) {
  return position && held[0] ? { after: position.offset, before: held[0].offset } : null
}

/**
 * release moves the position over the held messages that follow it.
 *
 * @param {Gate & { position: Position }} before
 * @returns {{ gate: Gate, passed: readonly Arrival[] }}
 */
function release(before) {
  const { epoch, offset } = before.position
  const passed = []
  let { size } = before
  for (const m of before.held) {
    if (m.offset !== offset + passed.length + 1) break
    passed.push(m)
    size -= m.size
  }
  if (!passed.length) return { gate: before, passed }
  const position = { epoch, offset: offset + passed.length }
  return { gate: { position, held: before.held.slice(passed.length), size }, passed }
}

/**
 * hold keeps a message that is early. Over the bound the highest go: history
 * brings them again.
 *
 * @param {Gate} before
 * @param {Arrival} message
 * @param {Bounds} bounds
 * @returns {Gate}
 */
function hold(before, message, bounds) {
  const held = [...before.held]
  let at = held.length
  while (at && /** @type {Arrival} */ (held[at - 1]).offset > message.offset) at--
  if (held[at - 1]?.offset === message.offset) return before
  held.splice(at, 0, message)
  let size = before.size + message.size
  while (held.length > bounds.count || size > bounds.size) {
    size -= /** @type {Arrival} */ (held.pop()).size
  }
  return { position: before.position, held, size }
}
