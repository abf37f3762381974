import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { identifierOf } from '../src/frames.js'
import { S, publish, upTo, world } from './support/world.js'

describe('resuming', () => {
  test('B71, B56: after a cut the missed messages come once, and the count is true', async () => {
    const w = world()
    const s = w.open(S)
    await w.run()
    publish(w, 1, 10)
    await w.run()
    w.server.accepting = false
    w.server.cut()
    assert.equal(s.stream.state, 'suspended')
    publish(w, 11, 50)
    await w.run(3000)
    w.server.accepting = true
    await w.run(60_000)
    publish(w, 51)
    await w.run()
    assert.deepEqual(s.data, upTo(51))
    assert.deepEqual(s.states, ['subscribing', 'live', 'suspended', 'resuming', 'live'])
    const { epoch } = w.server.head(S)
    assert.deepEqual(s.events, [['recovered', { from: { epoch, offset: 10 }, to: { epoch, offset: 50 }, count: 40 }]])
  })

  test('B56: recovered is told also when nothing was missed; 1,000 random cuts counted', async () => {
    const w = world({ seed: 7 })
    const s = w.open(S)
    await w.run()
    let n = 0
    let missed = 0
    /** @type {number[]} */ const truth = []
    for (let i = 0; i < 1000; i++) {
      n++
      publish(w, n, n)
      await w.run(10)
      w.server.cut()
      const count = Math.floor(w.platform.random() * 4)
      if (count) publish(w, n + 1, n + count)
      n += count
      missed += count
      truth.push(count)
      await w.run(300)
    }
    assert.deepEqual(s.data, upTo(n))
    assert.deepEqual(s.events.map(([name, { count }]) => [name, count]), truth.map((count) => ['recovered', count]))
    assert.ok(missed > 1000 && truth.includes(0))
  })

  test('B73: disconnect, publish 10, connect: exact', async () => {
    const w = world()
    const s = w.open(S)
    const second = w.open('never confirmed')
    await w.run()
    publish(w, 1, 5)
    await w.run()
    w.client.disconnect()
    assert.equal(w.client.state, 'idle')
    assert.equal(s.stream.state, 'suspended')
    publish(w, 6, 15)
    await w.run(100_000)
    assert.equal(w.server.sockets.length, 1, 'nothing reconnects by itself')
    const third = w.open(S, s.stream.position ?? 'now')
    await w.run()
    assert.equal(w.server.sockets.length, 1, 'nor does a new stream')
    w.client.connect()
    w.client.connect()
    await w.run()
    assert.equal(w.server.sockets.length, 2)
    publish(w, 16)
    await w.run()
    assert.deepEqual(s.data, upTo(16))
    assert.deepEqual(third.data, upTo(6, 16))
    assert.equal(second.stream.state, 'live')
  })

  test('B73: let go in the middle of a frame, the rest comes after connect', async () => {
    const w = world()
    publish(w, 50)
    const s = w.open(S, 'start')
    s.stream.on('message', (m) => m.data === 20 && w.client.disconnect())
    await w.run()
    assert.deepEqual(s.data, upTo(20))
    w.client.connect()
    await w.run()
    assert.deepEqual(s.data, upTo(50))
  })

  test('B119: cut ten times before anything arrives, still resumes from the same place', async () => {
    const w = world()
    publish(w, 20)
    const at = { epoch: w.server.head(S).epoch, offset: 5 }
    const { send } = w.server
    w.server.send = (socket, /** @type {any} */ frame) => {
      if (frame.type === 'welcome') send.call(w.server, socket, frame)
    }
    const s = w.open(S, at)
    for (let i = 0; i < 10; i++) {
      await w.run(1000)
      w.server.cut()
    }
    assert.deepEqual(s.stream.position, at)
    w.server.send = send
    await w.run(60_000)
    assert.deepEqual(s.data, upTo(6, 20))
    assert.ok(w.commands().every((c) => c === `subscribe after ${at.epoch}:5`))
  })

  test('B119: cut in the middle of a replay', async () => {
    const w = world()
    publish(w, 1000)
    const s = w.open(S, 'start')
    const send = w.server.send
    let left = 0
    w.server.send = (socket, frame) => {
      if (left-- > 0) send.call(w.server, socket, frame)
    }
    for (let i = 0; i < 20; i++) {
      left = 4
      await w.run(1000)
      w.server.cut()
    }
    assert.deepEqual(s.data, upTo(1000))
  })

  test('B65, B161: cut every 200 ms while 2,000 tokens stream to two readers', async () => {
    const w = world()
    const a = w.open(S)
    const b = w.open(S, 'start')
    await w.run()
    for (let n = 1; n <= 2000; n++) {
      publish(w, n, n)
      await w.run(10)
      if (n % 20 === 0) w.server.cut()
    }
    await w.run(5000)
    assert.deepEqual(a.data, upTo(2000))
    assert.deepEqual(b.data, upTo(2000))
    assert.ok(w.server.sockets.length > 50)
  })

  test('frames of an earlier socket are not heard', async () => {
    const w = world()
    const s = w.open(S)
    await w.run()
    publish(w, 1, 2)
    const [first] = w.server.sockets
    w.server.cut()
    await w.run()
    assert.ok(first)
    first.readyState = 1
    first.deliver({ identifier: identifierOf(S), message: 'ghost', stream_id: S, epoch: w.server.head(S).epoch, offset: 3 })
    first.drop()
    await w.run()
    assert.deepEqual(s.data, [1, 2])
    assert.equal(w.server.sockets.length, 2)
  })

  test('requests that bring nothing are repeated, then the subscription is made anew', async () => {
    const w = world()
    const s = w.open(S)
    await w.run()
    const { answer } = w.server
    w.server.answer = (socket, command) => {
      if (command.command !== 'history') answer.call(w.server, socket, command)
    }
    const { send } = w.server
    w.server.send = () => {}
    publish(w, 1)
    w.server.send = send
    publish(w, 2)
    await w.run(200_000)
    const { epoch } = w.server.head(S)
    assert.deepEqual(w.commands(), [
      'subscribe',
      ...Array(5).fill(`history after ${epoch}:0`),
      'unsubscribe',
      `subscribe after ${epoch}:0`,
    ])
    assert.deepEqual(s.errors.map((e) => e.code), ['stuck'])
    assert.deepEqual(s.data, [1, 2])
    assert.equal(s.stream.state, 'live')
  })

  test('B167: the hour of the day plays no part', async () => {
    const now = Date.now
    try {
      for (const day of [-1, 0, 1]) {
        Date.now = () => now() + day * 86_400_000
        const w = world()
        const s = w.open(S)
        await w.run()
        publish(w, 1, 3)
        w.server.cut()
        publish(w, 4, 6)
        await w.run()
        assert.deepEqual(s.data, upTo(6))
      }
    } finally {
      Date.now = now
    }
  })
})

