import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { identifierOf } from '../src/frames.js'
import { S, publish, record, upTo, world } from './support/world.js'

describe('messages', () => {
  test('falsy payloads are delivered', async () => {
    const w = world()
    const s = w.open(S)
    await w.run()
    const falsy = [0, false, '', null]
    for (const data of falsy) w.server.publish(S, data)
    await w.run()
    assert.deepEqual(s.data, falsy)
    w.server.cut()
    const more = w.open(S, { ...w.server.head(S), offset: 0 })
    await w.run()
    assert.deepEqual(more.data, falsy, 'replayed ones too')
  })

  test('B04: 1, 3, 2 reach the handler as 1, 2, 3', async () => {
    const w = world()
    const s = w.open(S)
    await w.run()
    const { epoch } = w.server.head(S)
    for (const offset of [1, 3, 2]) {
      w.server.socket.deliver({ identifier: identifierOf(S), message: `<p>${offset}</p>`, stream_id: S, epoch, offset })
    }
    assert.deepEqual(s.data, ['<p>1</p>', '<p>2</p>', '<p>3</p>'])
    assert.deepEqual(s.states, ['subscribing', 'live', 'gap', 'live'])
    assert.deepEqual(s.events, [
      ['gap', { epoch, after: 1, before: 3 }],
      ['recovered', { from: { epoch, offset: 1 }, to: { epoch, offset: 3 }, count: 2 }],
    ])
    await w.run()
    assert.deepEqual(w.commands(), ['subscribe'], 'what heals by itself costs no request')
  })

  test('a lost message is asked for after a short wait', async () => {
    const w = world()
    const s = w.open(S)
    await w.run()
    const { send } = w.server
    w.server.send = () => {}
    publish(w, 1, 3)
    w.server.send = send
    publish(w, 4, 5)
    await w.run(40)
    assert.deepEqual(s.data, [])
    assert.equal(w.commands().length, 1)
    await w.run(30)
    assert.deepEqual(s.data, upTo(5))
    assert.deepEqual(w.commands().slice(1), [`history after ${w.server.head(S).epoch}:0`])
    const { epoch } = w.server.head(S)
    assert.deepEqual(s.events, [
      ['gap', { epoch, after: 0, before: 4 }],
      ['recovered', { from: { epoch, offset: 0 }, to: { epoch, offset: 5 }, count: 5 }],
    ])
  })

  test('B37: a lost newest message is noticed from the head in a ping', async () => {
    const w = world()
    const s = w.open(S)
    await w.run()
    const { send } = w.server
    publish(w, 1, 2)
    w.server.send = () => {}
    publish(w, 3)
    w.server.send = send
    await w.run(1000)
    assert.deepEqual(s.data, [1, 2])
    await w.run(6000) // two heartbeats
    assert.deepEqual(s.data, [1, 2, 3])
    assert.deepEqual(s.events[0], ['gap', { epoch: w.server.head(S).epoch, after: 2, before: 4 }])
  })

  test('B118: frames without an offset do not move the position', async () => {
    const w = world()
    const s = w.open(S)
    await w.run()
    publish(w, 1, 3)
    await w.run()
    const { position } = s.stream
    w.server.ping()
    w.server.send(w.server.socket, { type: 'ping', message: 99 })
    w.server.send(w.server.socket, { type: 'error', identifier: identifierOf(S), command: 'message', reason: 'unknown_command', message: 'no' })
    await w.run()
    w.server.cut()
    publish(w, 4, 5)
    await w.run()
    assert.deepEqual(position, { epoch: w.server.head(S).epoch, offset: 3 })
    assert.deepEqual(s.data, upTo(5))
  })

  test('B166: a handler that throws is told of and skips nothing', async () => {
    const w = world()
    const stream = w.client.stream(S)
    /** @type {any[]} */ const seen = []
    /** @type {any[]} */ const other = []
    /** @type {any[]} */ const errors = []
    stream.on('message', (m) => {
      seen.push(m.data)
      if (m.data === 5) throw new Error('five')
    })
    stream.on('message', (m) => other.push(m.data))
    stream.on('error', (e) => errors.push(e))
    await w.run()
    publish(w, 7)
    await w.run()
    assert.deepEqual(seen, upTo(7))
    assert.deepEqual(other, upTo(7))
    assert.equal(stream.state, 'live')
    assert.deepEqual(errors.map((e) => [e.code, e.cause.message]), [['handler', 'five']])
  })

  test('B166: an error nobody listens for reaches the client, and else is reported', async () => {
    const w = world()
    const boom = () => {
      throw new Error('boom')
    }
    const stream = w.client.stream(S)
    stream.on('message', boom)
    await w.run()
    publish(w, 1)
    await w.run()
    assert.equal(w.platform.reports.length, 1)
    /** @type {string[]} */ const codes = []
    w.client.on('error', (e) => codes.push(e.code))
    stream.on('state', boom)
    publish(w, 2)
    await w.run()
    w.server.cut()
    assert.deepEqual(codes, ['handler', 'handler'])
    // A listener for errors that throws itself must not go round in circles.
    stream.on('error', boom)
    w.client.on('error', boom)
    publish(w, 3)
    await w.run()
    assert.ok(w.platform.reports.length > 1)
    assert.equal(stream.position?.offset, 3)
  })

  test('B52: unsubscribe and subscribe on every message, each message once', async () => {
    const w = world()
    /** @type {number[]} */ const seen = []
    const open = () => {
      const stream = w.client.stream(S)
      stream.on('message', (m) => {
        seen.push(m.data)
        stream.close()
        open()
      })
    }
    open()
    await w.run()
    publish(w, 1000)
    await w.run(200_000)
    assert.deepEqual(seen, upTo(1000))
  })

  test('B52: also when they come in one frame, or out of order', async () => {
    const w = world()
    /** @type {number[]} */ const seen = []
    const open = () => {
      const stream = w.client.stream(S)
      stream.on('message', (m) => {
        seen.push(m.data)
        stream.close()
        open()
      })
    }
    open()
    await w.run()
    const { send } = w.server
    w.server.send = () => {}
    publish(w, 50)
    w.server.send = send
    const { epoch } = w.server.head(S)
    const frame = (/** @type {number[]} */ offsets) => ({
      type: 'messages', identifier: identifierOf(S), stream_id: S, epoch, messages: offsets.map((offset) => ({ offset, message: offset })),
    })
    w.server.socket.deliver(frame([1, 2, 3, 4]))
    w.server.socket.deliver(frame([6, 7, 9, 10]))
    w.server.socket.deliver(frame([5, 8]))
    w.server.socket.deliver(frame(upTo(11, 50)))
    await w.run(60_000)
    assert.deepEqual(seen, upTo(50))
  })

  test('B164: 1,000 switches between 10 streams, no foreign message', async () => {
    const w = world()
    const names = upTo(10).map((n) => `thread/${n}`)
    /** @type {string[]} */ const foreign = []
    let shown = w.client.stream('thread/1')
    let count = 0
    for (let i = 0; i < 1000; i++) {
      shown.close()
      const name = /** @type {string} */ (names[(i * 7) % 10])
      shown = w.client.stream(name)
      shown.on('message', (m) => {
        count++
        if (m.data.of !== name) foreign.push(m.data.of)
      })
      if (i % 2 === 0) await w.run(5)
      for (const of of names) w.server.publish(of, { of })
      if (i % 4 === 0) await w.run(5)
    }
    await w.run()
    assert.deepEqual(foreign, [])
    assert.ok(count > 0)
    assert.equal(w.server.subscriptions().length, 1)
  })

  test('frames for nobody are not minded, malformed ones are told', async () => {
    const w = world()
    /** @type {string[]} */ const codes = []
    w.client.on('error', (e) => codes.push(e.code))
    const s = w.open(S)
    await w.run()
    const { socket } = w.server
    socket.deliver({ type: 'confirm_subscription', identifier: 'other', streams: {} })
    socket.deliver({ type: 'presence', identifier: identifierOf(S) })
    socket.deliver({ type: 'confirm_subscription', identifier: identifierOf(S) })
    socket.deliver({ type: 'error', reason: 'malformed', message: 'no command' })
    socket.deliver('nonsense')
    assert.deepEqual(codes, ['malformed', 'malformed'])
    publish(w, 1)
    await w.run()
    assert.deepEqual(s.data, [1])
  })
})

test('listeners: the undo undoes one listening, and an unlistened stream waits where it is', async () => {
  const w = world()
  const stream = w.client.stream(S)
  /** @type {number[]} */ const seen = []
  const listener = (/** @type {{ data: number }} */ m) => seen.push(m.data)
  const off = stream.on('message', listener)
  const offAgain = stream.on('message', listener)
  await w.run()
  publish(w, 1)
  await w.run()
  assert.deepEqual(seen, [1, 1])
  offAgain()
  offAgain()
  publish(w, 2, 2)
  await w.run()
  assert.deepEqual(seen, [1, 1, 2])
  off()
  publish(w, 3, 9)
  await w.run()
  assert.equal(stream.position?.offset, 2)
  w.server.cut()
  publish(w, 10, 11)
  await w.run()
  assert.equal(stream.position?.offset, 2)
  const s = record(stream)
  await w.run()
  assert.deepEqual(s.data, upTo(3, 11))
})

test('listeners: one that takes itself off in the middle of a run leaves the rest for later', async () => {
  const w = world()
  const stream = w.client.stream(S)
  /** @type {number[]} */ const seen = []
  const off = stream.on('message', (m) => {
    seen.push(m.data)
    if (m.data === 2) off()
  })
  await w.run()
  const { send } = w.server
  w.server.send = () => {}
  publish(w, 1)
  w.server.send = send
  publish(w, 2, 5)
  await w.run()
  assert.deepEqual(seen, [1, 2])
  stream.on('message', (m) => seen.push(m.data))
  publish(w, 6, 6)
  await w.run()
  assert.deepEqual(seen, upTo(6))
})
