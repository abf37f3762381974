import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { identifierOf } from '../src/frames.js'
import { S, publish, upTo, world } from './support/world.js'

describe('reset', () => {
  test('B47: away past retention: one reset, then exact from the new base', async () => {
    const w = world()
    const s = w.open(S)
    const start = w.open(S, 'start')
    await w.run()
    publish(w, 1, 10)
    await w.run()
    w.server.accepting = false
    w.server.cut()
    publish(w, 11, 100)
    w.server.trim(S, 61)
    w.server.accepting = true
    await w.run(60_000)
    publish(w, 101, 102)
    await w.run()
    const { epoch } = w.server.head(S)
    const reset = { reason: 'trimmed', epoch, first: 61, offset: 100, from: { epoch, offset: 10 } }
    assert.deepEqual(s.events, [['reset', reset]])
    assert.deepEqual(s.data, [...upTo(10), 101, 102])
    assert.deepEqual(s.states.slice(-4), ['suspended', 'resuming', 'reset', 'live'])
    assert.deepEqual(start.events, [
      ['reset', reset],
      ['recovered', { from: { epoch, offset: 60 }, to: { epoch, offset: 100 }, count: 40 }],
    ])
    assert.deepEqual(start.data, [...upTo(10), ...upTo(61, 102)])
  })

  test('"start" on a stream that lost its beginning: a reset names the first one kept', async () => {
    const w = world()
    publish(w, 1000)
    w.server.trim(S, 901)
    const s = w.open(S, 'start')
    await w.run()
    assert.equal(s.events[0][0], 'reset')
    assert.equal(s.events[0][1].first, 901)
    assert.deepEqual(s.data, upTo(901, 1000))
  })

  test('B58: an old epoch after the store was made anew: reset, and message 1 of the new life is delivered', async () => {
    const w = world()
    const s = w.open(S, 'start')
    await w.run()
    publish(w, 500)
    await w.run()
    const old = w.server.head(S)
    w.server.cut()
    w.server.renumber(S)
    publish(w, 1, 600)
    await w.run(5000)
    publish(w, 601)
    await w.run()
    assert.deepEqual(s.data, [...upTo(500), ...upTo(601)])
    const { epoch } = w.server.head(S)
    assert.deepEqual(s.events[0], ['reset', { reason: 'epoch_changed', epoch, first: 1, offset: 600, from: old }])
    assert.equal(s.messages[500]?.epoch, epoch)
  })

  test('a stream is renumbered under a live subscription', async () => {
    const w = world()
    const s = w.open(S)
    await w.run()
    publish(w, 1, 3)
    await w.run()
    w.server.renumber(S)
    publish(w, 1, 2)
    await w.run()
    assert.deepEqual(s.data, [1, 2, 3, 1, 2])
    assert.deepEqual(s.events.map(([name]) => name), ['reset'])
  })

  test('the word of a reset is lost: a message of the new life asks for the truth', async () => {
    const w = world()
    const s = w.open(S)
    await w.run()
    publish(w, 1, 3)
    await w.run()
    const { send } = w.server
    w.server.send = () => {}
    w.server.renumber(S)
    w.server.send = send
    publish(w, 1, 2)
    await w.run(100)
    publish(w, 3)
    await w.run()
    assert.deepEqual(s.data, [1, 2, 3, 3])
    assert.deepEqual(s.events.map(([name]) => name), ['reset'])
    assert.deepEqual(s.states.slice(2), ['resuming', 'reset', 'live'])
  })

  test('a position ahead of the stream is reset', async () => {
    const w = world()
    publish(w, 100)
    const s = w.open(S, { ...w.server.head(S), offset: 500 })
    await w.run()
    publish(w, 101)
    await w.run()
    assert.deepEqual(s.events.map(([name, { reason }]) => [name, reason]), [['reset', 'ahead']])
    assert.deepEqual(s.data, [101])
  })

  test('ahead is found out even when another reader asks from further back', async () => {
    const w = world()
    publish(w, 100)
    const { epoch } = w.server.head(S)
    const behind = w.open(S, { epoch, offset: 50 })
    const ahead = w.open(S, { epoch, offset: 500 })
    await w.run(10_000)
    publish(w, 101)
    await w.run()
    assert.deepEqual(ahead.events.map(([name]) => name), ['reset'])
    assert.deepEqual(ahead.data, [101])
    assert.deepEqual(behind.data, upTo(51, 101))
    assert.deepEqual(behind.events.map(([name]) => name), ['recovered'])
  })

  test('a reset of one reader is none for the others', async () => {
    const w = world()
    publish(w, 100)
    const live = w.open(S)
    await w.run()
    w.server.trim(S, 51)
    const { epoch } = w.server.head(S)
    const old = w.open(S, { epoch, offset: 10 })
    const other = w.open(S, { epoch: '5', offset: 99 })
    publish(w, 101)
    await w.run(20_000)
    publish(w, 102)
    await w.run()
    assert.deepEqual(live.data, [101, 102])
    assert.deepEqual(live.events, [])
    assert.deepEqual([old, other].map((s) => s.events[0][1].reason), ['trimmed', 'epoch_changed'])
    for (const s of [old, other]) {
      assert.deepEqual(s.events.filter(([name]) => name === 'reset').length, 1)
      assert.deepEqual(s.data.slice(-1), [102])
      assert.equal(s.stream.state, 'live')
    }
  })

  test('B50: a word of an earlier epoch, late on the same socket, does not lead back', async () => {
    const w = world()
    const s = w.open(S)
    await w.run()
    publish(w, 1, 3)
    await w.run()
    const old = w.server.head(S)
    w.server.renumber(S)
    publish(w, 1, 2)
    await w.run()
    const identifier = identifierOf(S)
    w.server.socket.deliver({ type: 'reset', identifier, stream_id: S, reason: 'ahead', ...old, first: 1 })
    w.server.socket.deliver({ type: 'confirm_subscription', identifier, streams: { [S]: old } })
    w.server.socket.deliver({ type: 'ping', message: 1, streams: { [S]: { ...old, offset: 9 } } })
    w.server.socket.deliver({ identifier, message: 'old', stream_id: S, ...old, offset: 4 })
    publish(w, 3)
    await w.run()
    assert.deepEqual(s.data, [1, 2, 3, 1, 2, 3])
    assert.deepEqual(s.stream.position, w.server.head(S))
  })
})

