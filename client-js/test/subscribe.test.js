import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { identifierOf } from '../src/frames.js'
import { settle } from '../src/testing.js'
import { S, publish, upTo, world } from './support/world.js'

describe('subscribing', () => {
  test('B28: "now" begins right after the offset of the confirmation', async () => {
    const w = world()
    publish(w, 5)
    const s = w.open(S)
    await w.run()
    assert.deepEqual(s.stream.position, w.server.head(S))
    publish(w, 6, 8)
    await w.run()
    assert.deepEqual(s.data, [6, 7, 8])
    assert.deepEqual(s.states, ['subscribing', 'live'])
    assert.deepEqual(w.commands(), ['subscribe'])
    assert.ok(s.messages.every((m) => !m.replayed))
  })

  test('B28: live messages that overtake the confirmation are kept for it', async () => {
    const w = world()
    publish(w, 5)
    w.server.connected = (socket) => void w.platform.setTimeout(() => (socket.accept(), socket.deliver({ type: 'welcome' })), 0)
    const s = w.open(S)
    await w.run(10)
    const { epoch } = w.server.head(S)
    const identifier = identifierOf(S)
    w.server.socket.deliver({ identifier, message: 7, stream_id: S, epoch, offset: 7 })
    w.server.socket.deliver({ identifier, message: 6, stream_id: S, epoch, offset: 6 })
    assert.deepEqual(s.data, [])
    w.server.socket.deliver({ type: 'confirm_subscription', identifier, streams: { [S]: { epoch, offset: 5 } } })
    assert.deepEqual(s.data, [6, 7])
    assert.equal(s.stream.state, 'live')
  })

  test('"start" brings all that is kept, then what is new', async () => {
    const w = world()
    publish(w, 250)
    const s = w.open(S, 'start')
    await w.run()
    publish(w, 251, 253)
    await w.run()
    assert.deepEqual(s.data, upTo(253))
    assert.deepEqual(s.messages.map((m) => m.replayed), [...Array(250).fill(true), false, false, false])
    const { epoch } = w.server.head(S)
    assert.deepEqual(s.events, [['recovered', { from: { epoch, offset: 0 }, to: { epoch, offset: 250 }, count: 250 }]])
  })

  test('"start" of a stream never used is live at once, at (epoch, 0)', async () => {
    const w = world()
    const s = w.open(S, 'start')
    await w.run()
    assert.deepEqual(s.stream.position, { ...w.server.head(S), offset: 0 })
    assert.deepEqual(s.states, ['subscribing', 'live'])
    assert.deepEqual(s.events, [])
    publish(w, 1)
    await w.run()
    assert.deepEqual(s.data, [1])
  })

  test('B16: what was published between the rendering of the page and the subscribe is delivered', async () => {
    const w = world()
    publish(w, 41)
    const rendered = w.server.head(S)
    publish(w, 42, 44)
    const s = w.open(S, rendered)
    await w.run()
    publish(w, 45)
    await w.run()
    assert.deepEqual(s.data, [42, 43, 44, 45])
    assert.deepEqual(w.commands(), [`subscribe after ${rendered.epoch}:41`])
  })

  test('B25: a swallowed confirmation is asked for again, with growing waits, and ends in one subscription', async () => {
    const w = world()
    const send = w.server.send
    let swallowed = 0
    w.server.send = (socket, /** @type {any} */ frame) => {
      if (frame.type === 'confirm_subscription' && swallowed < 3) swallowed++
      else send.call(w.server, socket, frame)
    }
    const s = w.open(S)
    await w.run(30_000)
    publish(w, 3)
    await w.run()
    assert.equal(swallowed, 3)
    assert.deepEqual(w.commands(), ['subscribe', 'subscribe', 'subscribe', 'subscribe'])
    assert.deepEqual(w.server.subscriptions(), [S])
    assert.deepEqual(s.data, [1, 2, 3])
    assert.equal(w.server.sockets.length, 1)
  })

  test('a socket on which no subscribe is ever answered is given up', async () => {
    const w = world()
    const send = w.server.send
    w.server.send = (socket, /** @type {any} */ frame) => {
      if (frame.type !== 'confirm_subscription' || socket !== w.server.sockets[0]) send.call(w.server, socket, frame)
    }
    const s = w.open(S)
    await w.run(600_000)
    assert.equal(w.server.sockets.length, 2)
    assert.equal(s.stream.state, 'live')
    assert.deepEqual(s.errors.map((e) => e.code), ['unanswered'])
  })

  test('B22: a repeated confirmation neither loses nor doubles', async () => {
    const w = world()
    const s = w.open(S)
    await w.run()
    publish(w, 3)
    w.server.answer(w.server.socket, { command: 'subscribe', identifier: identifierOf(S) })
    publish(w, 4, 5)
    w.server.answer(w.server.socket, { command: 'subscribe', identifier: identifierOf(S) })
    await w.run()
    assert.deepEqual(s.data, upTo(5))
    assert.deepEqual(s.events, [])
  })

  test('B17: 1,000 times close and open again, whole turns apart or not', async () => {
    const w = world()
    let s = w.open(S)
    await w.run()
    for (let i = 0; i < 1000; i++) {
      s.stream.close()
      if (i % 2) await settle()
      if (i % 3 === 0) await w.run(1)
      s = w.open(S)
    }
    await w.run()
    assert.equal(s.stream.state, 'live')
    assert.deepEqual(w.server.subscriptions(), [S])
    publish(w, 1)
    await w.run()
    assert.deepEqual(s.data, [1])
  })

  test('closing the last stream unsubscribes, once', async () => {
    const w = world()
    const s = w.open(S)
    await w.run()
    s.stream.close()
    s.stream.close()
    await w.run()
    assert.deepEqual(w.commands(), ['subscribe', 'unsubscribe'])
    assert.deepEqual(w.server.subscriptions(), [])
    assert.deepEqual(s.states, ['subscribing', 'live', 'closed'])
    publish(w, 1)
    await w.run()
    assert.deepEqual(s.data, [])
  })

  test('a rejection closes the stream with an error, and not the others', async () => {
    const w = world()
    const s = w.open(S)
    const other = w.open('other')
    await w.run()
    w.server.send(w.server.socket, { type: 'reject_subscription', identifier: identifierOf(S), reason: 'unauthorized' })
    await w.run()
    assert.equal(s.stream.state, 'closed')
    assert.deepEqual(s.errors.map((e) => [e.code, e.cause]), [['rejected', 'unauthorized']])
    assert.equal(other.stream.state, 'live')
  })

  test('an unavailable store is told and the subscribe tried again', async () => {
    const w = world()
    const answer = w.server.answer
    let refused = 0
    w.server.answer = (socket, command) => {
      if (command.command !== 'subscribe' || refused === 20) return answer.call(w.server, socket, command)
      refused++
      const { identifier } = command
      w.server.send(socket, { type: 'error', command: 'subscribe', identifier, reason: 'store_unavailable', message: 'no answer in time' })
    }
    const s = w.open(S)
    await w.run(600_000)
    assert.equal(s.stream.state, 'live')
    assert.equal(w.server.sockets.length, 1, 'an answer is no reason for a new socket')
    assert.deepEqual(new Set(s.errors.map((e) => e.code)), new Set(['store_unavailable']))
    assert.equal(s.errors.length, 20)
  })

  test('too many subscriptions pass, too', async () => {
    const w = world()
    const s = w.open(S)
    await w.run(0)
    await w.run(5)
    w.server.send(w.server.socket, { type: 'reject_subscription', identifier: identifierOf(S), reason: 'too_many_subscriptions' })
    await w.run()
    assert.notEqual(s.stream.state, 'closed')
  })

  test('what cannot name a stream or a position is refused at once', () => {
    const { client } = world()
    for (const name of /** @type {any[]} */ (['', undefined, 4])) assert.throws(() => client.stream(name), TypeError)
    for (const after of /** @type {any[]} */ ([
      'end', 4, null, {}, { epoch: 7, offset: 1 }, { epoch: '7' }, { epoch: '7', offset: -1 }, { epoch: '7', offset: 2 ** 53 }, { epoch: '', offset: 1 },
    ])) {
      assert.throws(() => client.stream(S, { after }), TypeError, JSON.stringify(after))
    }
    client.close()
    assert.throws(() => client.stream(S), /closed/)
    assert.throws(() => client.connect(), /closed/)
  })
})

describe('several streams on one name', () => {
  test('B20: they share one subscription; closing one leaves the other all messages, once', async () => {
    const w = world()
    const a = w.open(S)
    const b = w.open(S)
    await w.run()
    publish(w, 1, 3)
    await w.run()
    a.stream.close()
    publish(w, 4, 6)
    await w.run()
    assert.deepEqual(w.commands(), ['subscribe'])
    assert.deepEqual(a.data, [1, 2, 3])
    assert.deepEqual(b.data, upTo(6))
  })

  test('each has its own position, and only who lacks older messages gets them', async () => {
    const w = world()
    publish(w, 50)
    const now = w.open(S)
    await w.run()
    const { epoch } = w.server.head(S)
    publish(w, 51, 60)
    await w.run()
    const start = w.open(S, 'start')
    const middle = w.open(S, { epoch, offset: 30 })
    publish(w, 61, 62)
    await w.run()
    publish(w, 63)
    await w.run()
    assert.deepEqual(now.data, upTo(51, 63))
    assert.deepEqual(start.data, upTo(63))
    assert.deepEqual(middle.data, upTo(31, 63))
    assert.deepEqual(w.commands().filter((c) => c.startsWith('subscribe')), ['subscribe'])
    for (const s of [now, start, middle]) assert.equal(s.stream.state, 'live')
  })

  test('one that joins a live subscription tells all its states and what it recovered', async () => {
    const w = world()
    w.open(S)
    await w.run()
    publish(w, 3)
    await w.run()
    const now = w.open(S)
    const head = w.open(S, w.server.head(S))
    const behind = w.open(S, { ...w.server.head(S), offset: 1 })
    await w.run()
    assert.deepEqual(now.states, ['subscribing', 'live'])
    assert.deepEqual(head.states, ['resuming', 'live'])
    assert.deepEqual(head.events.map(([name, { count }]) => [name, count]), [['recovered', 0]])
    assert.deepEqual(behind.states, ['resuming', 'live'])
    assert.deepEqual(behind.events.map(([name, { count }]) => [name, count]), [['recovered', 2]])
  })

  test('opened in one turn, one request serves them all, from the lowest position', async () => {
    const w = world()
    publish(w, 50)
    const { epoch } = w.server.head(S)
    const streams = [30, 10, 45].map((offset) => w.open(S, { epoch, offset }))
    await w.run()
    assert.deepEqual(w.commands(), [`subscribe after ${epoch}:10`])
    assert.deepEqual(streams.map((s) => s.data.length), [20, 40, 5])
  })

  test('a request for one does not take from another what it was being sent', async () => {
    const w = world()
    publish(w, 1000)
    const live = w.open(S)
    await w.run()
    const start = w.open(S, 'start')
    // The replay is under way when the live one finds a gap.
    await w.run(0)
    const { send } = w.server
    w.server.send = () => {}
    publish(w, 1001)
    w.server.send = send
    publish(w, 1002)
    await w.run(5000)
    assert.deepEqual(start.data, upTo(1002))
    assert.deepEqual(live.data, [1001, 1002])
  })
})

