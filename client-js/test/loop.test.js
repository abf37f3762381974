import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { identifierOf } from '../src/frames.js'
import { settle } from '../src/testing.js'
import { S, publish, record, upTo, world } from './support/world.js'

/** @typedef {import('../src/stream.js').Stream} Stream */

/**
 * take reads n messages from a loop, letting the world go on while it waits.
 *
 * @param {ReturnType<typeof world>} w
 * @param {AsyncIterator<any>} loop
 * @param {number} n
 */
async function take(w, loop, n) {
  /** @type {any[]} */ const taken = []
  while (taken.length < n) {
    /** @type {IteratorResult<any> | undefined} */ let result
    loop.next().then((r) => (result = r))
    await settle()
    for (let i = 0; !result && i < 1000; i++) await w.run(10)
    if (!result || result.done) break
    taken.push(result.value.data)
  }
  return taken
}

describe('for await', () => {
  test('gives the same messages, and ends when the stream is closed', async () => {
    const w = world()
    const stream = w.client.stream(S, { after: 'start' })
    /** @type {number[]} */ const seen = []
    let over = false
    const reading = (async () => {
      for await (const m of stream) seen.push(m.data)
      over = true
    })()
    publish(w, 5)
    await w.run()
    publish(w, 8)
    await w.run()
    assert.deepEqual(seen, upTo(8))
    assert.equal(over, false)
    stream.close()
    await reading
    assert.equal(over, true)
    assert.deepEqual(await stream[Symbol.asyncIterator]().next(), { done: true, value: undefined })
  })

  test('several loops and a listener all get every message', async () => {
    const w = world()
    const stream = w.client.stream(S)
    /** @type {number[][]} */ const seen = [[], [], []]
    stream.on('message', (m) => seen[2]?.push(m.data))
    for (const list of seen.slice(0, 2)) void (async () => { for await (const m of stream) list.push(m.data) })()
    await w.run()
    publish(w, 5)
    await w.run()
    assert.deepEqual(seen, [upTo(5), upTo(5), upTo(5)])
  })

  test('back-pressure: a slow loop holds a bounded queue and reads the rest again', async () => {
    const w = world()
    const stream = w.client.stream(S)
    const loop = stream[Symbol.asyncIterator]()
    await w.run()
    publish(w, 5000)
    await w.run()
    assert.ok(stream.position && stream.position.offset === 0, 'nothing has been taken')
    const commands = w.commands().length
    publish(w, 6000)
    await w.run(20_000)
    assert.equal(w.commands().length, commands, 'a full loop asks for nothing')
    assert.deepEqual(await take(w, loop, 6000), upTo(6000))
    assert.ok(w.commands().length - commands < 12)
    publish(w, 6001)
    assert.deepEqual(await take(w, loop, 1), [6001])
  })

  test('back-pressure counts bytes, too', async () => {
    const w = world()
    const stream = w.client.stream(S)
    const loop = stream[Symbol.asyncIterator]()
    await w.run()
    const big = 'x'.repeat(1 << 20)
    for (let i = 1; i <= 20; i++) w.server.publish(S, { i, big })
    await w.run()
    const taken = await take(w, loop, 20)
    assert.deepEqual(taken.map(({ i }) => i), upTo(20))
    assert.ok(w.commands().some((c) => c.startsWith('history')))
  })

  test('a slow loop rides over a cut and a reset', async () => {
    const w = world()
    const stream = w.client.stream(S, { after: 'start' })
    const loop = stream[Symbol.asyncIterator]()
    publish(w, 3000)
    await w.run()
    assert.deepEqual(await take(w, loop, 10), upTo(10))
    w.server.cut()
    publish(w, 3500)
    await w.run(10_000)
    assert.deepEqual(await take(w, loop, 2000), upTo(11, 2010))
    w.server.trim(S, 3401)
    const rest = await take(w, loop, 3500 - 3400 + (3000 - 2010))
    const gone = rest.findIndex((n, i) => i > 0 && n !== rest[i - 1] + 1)
    assert.deepEqual(rest.slice(gone), upTo(3401, 3500).slice(0, rest.length - gone))
    assert.deepEqual(rest.slice(0, gone), upTo(2011, 2010 + gone))
  })

  test('the position is that of the last message taken', async () => {
    const w = world()
    const stream = w.client.stream(S)
    const loop = stream[Symbol.asyncIterator]()
    await w.run()
    publish(w, 20)
    await w.run()
    for (const n of upTo(20)) {
      const { value } = await loop.next()
      assert.equal(value?.data, n)
      assert.deepEqual(stream.position, { epoch: value?.epoch, offset: n })
    }
  })

  test('a loop that was left can be taken up where it was', async () => {
    const w = world()
    const stream = w.client.stream(S)
    /** @type {number[]} */ const seen = []
    const read = async (/** @type {number} */ until) => {
      for await (const m of stream) {
        seen.push(m.data)
        if (m.data === until) break
      }
    }
    const first = read(7)
    await w.run()
    publish(w, 20)
    await w.run()
    await first
    assert.equal(stream.state === 'closed', false)
    const second = read(25)
    publish(w, 30)
    await w.run()
    await second
    assert.deepEqual(seen, upTo(25))
    const s = record(stream)
    await w.run()
    assert.deepEqual(s.data, upTo(26, 30))
  })

  test('calls of next that wait are answered in their order, and all end', async () => {
    const w = world()
    const stream = w.client.stream(S)
    const loop = stream[Symbol.asyncIterator]()
    const results = Promise.all([loop.next(), loop.next(), loop.next()])
    await w.run()
    publish(w, 2)
    await w.run()
    await loop.return?.()
    assert.deepEqual((await results).map((r) => r.value?.data), [1, 2, undefined])
    assert.equal((await loop.next()).done, true)
  })

  test('leaving a loop while others take messages does not take theirs', async () => {
    const w = world()
    const stream = w.client.stream(S)
    /** @type {number[]} */ const seen = []
    stream.on('message', (m) => seen.push(m.data))
    const loop = stream[Symbol.asyncIterator]()
    await w.run()
    publish(w, 10)
    await w.run()
    await loop.next()
    assert.equal(stream.position?.offset, 1, 'the slowest reader tells the position')
    await loop.return?.()
    publish(w, 12)
    await w.run()
    assert.deepEqual(seen, upTo(12))
    assert.deepEqual(stream.position, w.server.head(S))
  })

  test('a rejection fails the loop after what had come', async () => {
    const w = world()
    w.client.on('error', () => {})
    const stream = w.client.stream(S)
    const loop = stream[Symbol.asyncIterator]()
    await w.run()
    publish(w, 2)
    await w.run()
    w.server.send(w.server.socket, { type: 'reject_subscription', identifier: identifierOf(S), reason: 'unauthorized' })
    await w.run()
    assert.deepEqual(await take(w, loop, 2), [1, 2])
    await assert.rejects(loop.next(), /unauthorized/)
    assert.equal((await loop.next()).done, true)
  })
})
