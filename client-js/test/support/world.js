import assert from 'node:assert/strict'
import { createClient } from '../../src/index.js'
import { FakeServer, VirtualPlatform } from '../../src/testing.js'

/** @typedef {import('../../src/index.js').Options} Options */
/** @typedef {import('../../src/index.js').After} After */
/** @typedef {import('../../src/stream.js').Stream} Stream */

/**
 * world is a client, a server in memory and the clock between them.
 *
 * @param {Options & { create?: typeof createClient, seed?: number }} [options]
 */
export function world({ create = createClient, seed, ...options } = {}) {
  const platform = new VirtualPlatform(seed)
  const server = new FakeServer(platform)
  const client = create('ws://fake/cable', { platform, WebSocket: server.WebSocket, minDelay: 100, ...options })
  return {
    platform,
    server,
    client,
    /** @param {number} [ms] */
    run: (ms = 1000) => platform.advance(ms),
    /** @param {string} name @param {After} [after] */
    open: (name, after) => record(client.stream(name, after === undefined ? {} : { after })),
    /** Commands of every socket, in order, without identifiers. */
    commands: () => server.sockets.flatMap(({ sent }) => sent.map(short)),
  }
}

/** @param {import('../../src/testing.js').Command} command */
const short = ({ command, history }) => {
  const [at] = Object.values(history?.streams ?? {})
  return at ? `${command} after ${at.epoch}:${at.offset}` : command
}

/** record keeps all that a stream tells. @param {Stream} stream */
export function record(stream) {
  /** @type {any[]} */ const data = []
  /** @type {import('../../src/index.js').Message[]} */ const messages = []
  /** @type {string[]} */ const states = []
  /** @type {any[]} */ const events = []
  /** @type {import('../../src/index.js').ChronocastError[]} */ const errors = []
  stream.on('message', (m) => {
    // The position has moved before a handler hears of the message.
    assert.deepEqual(stream.position, { epoch: m.epoch, offset: m.offset })
    messages.push(m)
    data.push(m.data)
  })
  stream.on('state', (state) => states.push(state))
  for (const name of /** @type {const} */ (['gap', 'recovered', 'reset'])) {
    stream.on(name, (/** @type {any} */ value) => events.push([name, value]))
  }
  stream.on('error', (error) => errors.push(error))
  return { stream, data, messages, states, events, errors }
}

/** upTo is the numbers from 1 to n, or from a to b. @param {number} a @param {number} [b] */
export const upTo = (a, b) => Array.from({ length: b === undefined ? a : b - a + 1 }, (_, i) => i + (b === undefined ? 1 : a))

/**
 * publish fills the stream up to the last offset given; each payload is its offset.
 *
 * @param {ReturnType<typeof world>} w
 * @param {number} from @param {number} [to]
 */
export function publish(w, from, to = from) {
  const { offset } = w.server.head(S)
  assert.ok(from === to || from === offset + 1)
  for (const n of upTo(offset + 1, to)) w.server.publish(S, n)
}

/** The stream that most tests are about. */
export const S = 'chat/42'
