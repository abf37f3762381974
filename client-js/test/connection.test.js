import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { STALE_AFTER, WATCH_INTERVAL } from '../src/connection.js'
import { createClient } from '../src/index.js'
import { FakeServer, FakeSocket, VirtualPlatform } from '../src/testing.js'
import { S, publish, upTo, world } from './support/world.js'

/** @param {ReturnType<typeof world>} w */
const watch = ({ client }) => {
  /** @type {string[]} */ const states = []
  /** @type {string[]} */ const codes = []
  client.on('state', (state) => states.push(state))
  client.on('error', (error) => codes.push(error.code))
  return { states, codes }
}

describe('connecting', () => {
  test('begins with the first stream, offers only our subprotocol, waits for the welcome', async () => {
    const w = world()
    const { states } = watch(w)
    await w.run(60_000)
    assert.equal(w.server.sockets.length, 0)
    assert.equal(w.client.state, 'idle')
    w.server.connected = () => {}
    w.open(S)
    await w.run(10)
    const { socket } = w.server
    assert.deepEqual(socket.protocols, ['chronocast-v1-json'])
    assert.equal(socket.url, 'ws://fake/cable')
    socket.accept()
    assert.deepEqual(w.commands(), [])
    assert.equal(w.client.state, 'connecting')
    socket.deliver({ type: 'welcome', sid: 'x' })
    assert.deepEqual(w.commands(), ['subscribe'])
    assert.deepEqual(states, ['connecting', 'connected'])
  })

  test('http addresses become ws ones', () => {
    for (const [url, want] of /** @type {const} */ ([
      ['http://h/cable', 'ws://h/cable'],
      ['https://h/cable?a=1', 'wss://h/cable?a=1'],
      [new URL('wss://h/'), 'wss://h/'],
    ])) {
      const platform = new VirtualPlatform()
      const server = new FakeServer(platform)
      createClient(url, { platform, WebSocket: server.WebSocket }).connect()
      assert.equal(server.socket.url, want)
    }
    assert.throws(() => createClient('/cable', { WebSocket: FakeServer.prototype.WebSocket }))
  })

  test('without a WebSocket it says so', () => {
    const had = globalThis.WebSocket
    // @ts-expect-error: Node 20 has none, later ones do
    delete globalThis.WebSocket
    try {
      assert.throws(() => createClient('ws://h/'), /WebSocket/)
    } finally {
      if (had) globalThis.WebSocket = had
    }
  })

  test('a server that chose another subprotocol is left for good, until told to connect', async () => {
    const w = world()
    const { codes, states } = watch(w)
    w.server.connected = (socket) => void w.platform.setTimeout(() => socket.accept('actioncable-v1-json'), 0)
    const s = w.open(S)
    await w.run(600_000)
    assert.deepEqual(codes, ['protocol'])
    assert.equal(w.server.sockets.length, 1)
    assert.deepEqual(states, ['connecting', 'closed'])
    w.server.connected = FakeServer.prototype.connected
    w.client.connect()
    await w.run()
    assert.equal(s.stream.state, 'live')
  })

  test('a connection that never gets its welcome is given up', async () => {
    const w = world()
    const { codes } = watch(w)
    const connected = w.server.connected
    w.server.connected = (socket) => {
      if (w.server.sockets.length > 2) connected.call(w.server, socket)
      else if (w.server.sockets.length > 1) socket.accept()
    }
    const s = w.open(S)
    await w.run(40_000)
    assert.deepEqual(codes, ['timeout', 'timeout'])
    assert.equal(s.stream.state, 'live')
  })

  test('a WebSocket class that throws is one more failed attempt', async () => {
    const WebSocket = class extends FakeSocket {
      /** @param {string} url */
      constructor(url) {
        super(url)
        throw new SyntaxError('bad protocol')
      }
    }
    const w = world({ WebSocket })
    const { codes } = watch(w)
    w.open(S)
    await w.run(10_000)
    assert.ok(codes.length > 2)
    assert.deepEqual(new Set(codes), new Set(['connect']))
    assert.equal(w.client.state, 'waiting')
  })

  test('errors nobody listens for are reported, none is thrown', async () => {
    const w = world()
    w.client.on('state', () => {
      throw new Error('state')
    })
    w.open(S)
    await w.run()
    assert.equal(w.platform.reports.length, 2)
    assert.equal(w.client.state, 'connected')
  })

  test('closing in the middle of anything leaves nothing behind', async () => {
    for (const at of ['connecting', 'connected', 'waiting']) {
      const w = world()
      const s = w.open(S)
      w.client.on('state', (state) => {
        if (state === at) w.client.close()
      })
      if (at === 'connecting') w.client.disconnect(), w.client.connect()
      await w.run(5)
      w.server.cut()
      await w.run()
      assert.equal(w.client.state, 'closed', at)
      assert.equal(s.stream.state, 'closed', at)
      assert.equal(w.platform.watchers, 0)
      const sockets = w.server.sockets.length
      w.server.pinging = false
      await w.run(600_000)
      assert.equal(w.server.sockets.length, sockets, at)
      assert.ok(w.server.sockets.every((socket) => socket.readyState === 3), at)
    }
  })
})

describe('tokens', () => {
  /** @param {ReturnType<typeof world>} w */
  const shown = (w) => w.server.sockets.map(({ url }) => new URL(url).searchParams.get('token'))

  test('a token travels in the query', async () => {
    const w = world({ token: 'abc.def+/=&' })
    w.open(S)
    await w.run()
    assert.deepEqual(shown(w), ['abc.def+/=&'])
    assert.deepEqual(w.server.socket.protocols, ['chronocast-v1-json'])
  })

  test('a token is kept while the server takes it, and not after an attempt that failed', async () => {
    let n = 0
    const w = world({ token: async () => `t${++n}` })
    const s = w.open(S)
    await w.run()
    for (let i = 0; i < 3; i++) {
      w.server.cut()
      await w.run(10_000)
      assert.equal(s.stream.state, 'live')
    }
    assert.deepEqual(shown(w), ['t1', 't1', 't1', 't1'])
    w.server.accepting = false
    w.server.cut()
    await w.run(200)
    w.server.accepting = true
    await w.run(10_000)
    assert.equal(s.stream.state, 'live')
    assert.equal(shown(w)[4], 't1')
    assert.equal(shown(w)[5], 't2')
  })

  test('a client that lets go and connects again shows the same token', async () => {
    let n = 0
    const w = world({ token: () => `t${++n}` })
    w.open(S)
    await w.run()
    w.client.disconnect()
    await w.run()
    w.client.connect()
    await w.run()
    assert.deepEqual(shown(w), ['t1', 't1'])
  })

  test('B142: an expired token is asked for anew, and the stream goes on exactly', async () => {
    let n = 0
    const w = world({ token: async () => `t${++n}` })
    const s = w.open(S)
    await w.run()
    publish(w, 1, 3)
    w.server.send(w.server.socket, { type: 'disconnect', reason: 'token_expired', reconnect: false })
    await w.run(1)
    publish(w, 4, 6)
    await w.run(10_000)
    publish(w, 7)
    await w.run()
    assert.deepEqual(shown(w), ['t1', 't2'])
    assert.deepEqual(s.data, upTo(7))
  })

  test('B142: no dead end when tokens cannot be had for a while', async () => {
    let working = false
    const w = world({ token: () => (working ? 't' : Promise.reject(new Error('sign in'))) })
    const { codes } = watch(w)
    const s = w.open(S)
    await w.run(300_000)
    assert.deepEqual(new Set(codes), new Set(['connect']))
    assert.equal(w.server.sockets.length, 0)
    working = true
    await w.run(60_000)
    assert.equal(s.stream.state, 'live')
  })

  test('B142: a token function that never answers is called again', async () => {
    let calls = 0
    const w = world({ token: () => (++calls < 3 ? new Promise(() => {}) : 't') })
    watch(w)
    const s = w.open(S)
    await w.run(60_000)
    assert.equal(calls, 3)
    assert.equal(s.stream.state, 'live')
  })

  test('B142: with a fixed token an expired one is the end, told as an error', async () => {
    const w = world({ token: 't' })
    const { codes, states } = watch(w)
    const s = w.open(S)
    await w.run()
    w.server.send(w.server.socket, { type: 'disconnect', reason: 'token_expired', reconnect: false })
    await w.run(100_000)
    assert.deepEqual(codes, ['disconnected'])
    assert.equal(states.at(-1), 'closed')
    assert.equal(s.stream.state, 'suspended')
    assert.equal(w.server.sockets.length, 1)
  })
})

describe('reconnecting', () => {
  test('a disconnect frame: for good, or to come back', async () => {
    for (const reconnect of [true, undefined, false]) {
      const w = world()
      const { codes } = watch(w)
      w.open(S)
      await w.run()
      w.server.send(w.server.socket, { type: 'disconnect', reason: 'server_restart', reconnect })
      await w.run(60_000)
      assert.equal(w.client.state, reconnect === false ? 'closed' : 'connected')
      assert.deepEqual(codes, reconnect === false ? ['disconnected'] : [])
    }
  })

  test('the first reconnect comes at once, with jitter', async () => {
    const waits = upTo(200).map((seed) => {
      const platform = new VirtualPlatform(seed)
      const server = new FakeServer(platform)
      const client = createClient('ws://fake/', { platform, WebSocket: server.WebSocket })
      client.stream(S).on('message', () => {})
      while (client.state !== 'connected') platform.fire()
      while (!server.subscriptions().length || platform.due === platform.now()) platform.fire()
      server.cut()
      const cut = platform.now()
      while (server.sockets.length < 2) platform.fire()
      return platform.now() - cut
    })
    assert.ok(waits.every((wait) => wait <= 500))
    const early = waits.filter((wait) => wait < 250).length
    assert.ok(early > 70 && early < 130, `${early} of 200 within half the window`)
  })

  test('B82: after 24 hours of failures it still tries, at the capped interval, and recovers', async () => {
    const w = world({ minDelay: 500, maxDelay: 30_000 })
    const s = w.open(S)
    await w.run()
    publish(w, 1, 5)
    await w.run()
    w.server.accepting = false
    w.server.cut()
    w.server.pinging = false
    /** @type {number[]} */ const times = []
    const connected = w.server.connected
    w.server.connected = (socket) => {
      times.push(w.platform.now())
      connected.call(w.server, socket)
    }
    await w.run(86_400_000)
    const waits = times.slice(1).map((time, i) => time - /** @type {number} */ (times[i]))
    assert.ok(Math.max(...waits) <= 30_000)
    const late = waits.slice(20)
    const mean = late.reduce((a, b) => a + b, 0) / late.length
    assert.ok(mean > 14_000 && mean < 16_000, `mean wait ${mean}`)
    publish(w, 6, 9)
    w.server.accepting = true
    w.server.pinging = true
    await w.run(31_000)
    assert.deepEqual(s.data, upTo(9))
  })

  test('B76: 2,000 clients come back spread out after an outage', () => {
    const platform = new VirtualPlatform(3)
    const server = new FakeServer(platform)
    const clients = upTo(2000).map(() => {
      const client = createClient('ws://fake/', { platform, WebSocket: server.WebSocket })
      client.stream(S).on('message', () => {})
      return client
    })
    const until = (/** @type {number} */ ms) => {
      for (const end = platform.now() + ms; platform.due <= end; ) platform.fire()
    }
    until(2000)
    assert.ok(clients.every((client) => client.state === 'connected'))
    server.accepting = false
    server.cut()
    const cut = platform.now()
    const before = server.sockets.length
    /** @type {number[]} */ const attempts = []
    const connected = server.connected
    server.connected = (socket) => {
      attempts.push(platform.now() - cut)
      connected.call(server, socket)
    }
    until(60_000)
    server.accepting = true
    /** @type {number[]} */ const returns = []
    for (const client of clients) {
      client.on('state', (state) => {
        if (state === 'connected') returns.push(platform.now() - cut - 60_000)
      })
    }
    until(32_000)
    assert.equal(returns.length, 2000)
    const perSecond = (/** @type {number[]} */ times) => {
      const counts = new Map()
      for (const time of times) counts.set(Math.floor(time / 1000), (counts.get(Math.floor(time / 1000)) ?? 0) + 1)
      return counts
    }
    const most = Math.max(...perSecond(returns).values())
    assert.ok(most <= 200, `at most a tenth in any second, but ${most} of 2,000`)
    const tries = perSecond(attempts)
    for (let second = 5; second < 60; second++) {
      assert.ok((tries.get(second) ?? 0) <= attempts.length / 10, `attempts in second ${second}`)
    }
    assert.ok(attempts.length < 2000 * 12, `${attempts.length} attempts in a minute`)
    assert.ok(server.sockets.length > before)
  })

  test('B76: sent away by a restarting server, they come back more widely spread than after a cut', async () => {
    const waits = upTo(100).map(async (seed) => {
      const w = world({ seed, minDelay: 500 })
      w.open(S)
      await w.run()
      w.server.send(w.server.socket, { type: 'disconnect', reason: 'server_restart', reconnect: true })
      await w.run(0)
      const gone = w.platform.now()
      while (w.server.sockets.length < 2) w.platform.fire()
      return w.platform.now() - gone
    })
    const all = await Promise.all(waits)
    assert.ok(Math.max(...all) > 1500 && Math.max(...all) <= 2000, `${Math.max(...all)}`)
  })

  test('a server that welcomes and goes is not taken for one that is back', async () => {
    const w = world({ minDelay: 500 })
    w.server.connected = (socket) => void w.platform.setTimeout(() => {
      socket.accept()
      socket.deliver({ type: 'welcome' })
      socket.drop()
    }, 0)
    w.open(S)
    await w.run(120_000)
    assert.ok(w.server.sockets.length < 20, `${w.server.sockets.length} attempts in two minutes`)
  })

  test('B83: what happens can be seen: client and stream tell their states', async () => {
    const w = world()
    const { states } = watch(w)
    const s = w.open(S)
    await w.run()
    w.server.accepting = false
    w.server.cut()
    await w.run(1000)
    w.server.renumber(S)
    w.server.accepting = true
    await w.run(60_000)
    assert.deepEqual([...new Set(states)], ['connecting', 'connected', 'waiting'])
    assert.equal(states.at(-1), 'connected')
    assert.deepEqual(s.states, ['subscribing', 'live', 'suspended', 'resuming', 'reset', 'live'])
  })
})

describe('a dead link', () => {
  test('silence is noticed, and the stream resumes on a new socket', async () => {
    const w = world()
    const s = w.open(S)
    await w.run()
    publish(w, 1, 3)
    await w.run()
    const [dead] = w.server.sockets
    const { send } = w.server
    w.server.send = (socket, frame) => {
      if (socket !== dead) send.call(w.server, socket, frame)
    }
    publish(w, 4, 9)
    await w.run(STALE_AFTER + 2 * WATCH_INTERVAL + 1000)
    assert.equal(w.server.sockets.length, 2)
    assert.deepEqual(s.data, upTo(9))
  })

  test('any frame proves life', async () => {
    const w = world()
    w.open(S)
    w.server.pinging = false
    for (let n = 1; n < 100; n++) {
      await w.run(5000)
      publish(w, n)
    }
    assert.equal(w.server.sockets.length, 1)
  })

  test('B157: a frozen tab whose socket is healthy does not reconnect', async () => {
    const w = world()
    w.open(S)
    await w.run(10_000)
    w.server.pinging = false
    const { socket } = w.server
    await w.platform.jump(60_000) // all timers run before any frame
    await w.run(1)
    socket.deliver({ type: 'ping', message: 1 })
    w.server.pinging = true
    await w.run(60_000)
    assert.equal(w.server.sockets.length, 1)
  })

  test('B157: a frozen tab whose socket is dead does', async () => {
    const w = world()
    const s = w.open(S)
    await w.run(10_000)
    const [dead] = w.server.sockets
    const { send } = w.server
    w.server.send = (socket, frame) => {
      if (socket !== dead) send.call(w.server, socket, frame)
    }
    await w.platform.jump(600_000)
    await w.run(WATCH_INTERVAL + 1000)
    assert.equal(w.server.sockets.length, 2)
    assert.equal(s.stream.state, 'live')
  })

  /**
   * throttled is a platform whose timers run once a minute, before the frames
   * that came meanwhile: a hidden tab at its worst.
   *
   * @param {(w: ReturnType<typeof world>, minute: () => Promise<void>) => Promise<void>} f
   */
  async function throttled(f) {
    const real = new VirtualPlatform()
    const server = new FakeServer(real)
    server.pinging = false
    /** @type {(() => void)[]} */ const timers = []
    /** @type {import('../src/platform.js').Platform} */
    const platform = {
      now: real.now, random: real.random, report: real.report, watch: real.watch,
      setTimeout: (run, ms) => {
        const timer = { at: real.now() + ms, run, off: false }
        timers.push(Object.assign(() => timer.at <= real.now() && !timer.off && (timer.off = true) && run(), { timer }))
        return timer
      },
      clearTimeout: (timer) => void (timer && (timer.off = true)),
    }
    const w = world({ platform, WebSocket: server.WebSocket })
    const minute = async () => {
      await real.advance(60_000)
      for (const run of timers.splice(0)) {
        run()
        if (!/** @type {any} */ (run).timer.off) timers.push(run)
      }
      if (server.sockets.length) for (let i = 0; i < 20; i++) server.socket.deliver({ type: 'ping', message: i })
      await real.advance(0)
    }
    await f(/** @type {any} */ ({ ...w, server, platform: real }), minute)
  }

  test('B158: timers that fire once a minute for an hour, no reconnect', async () => {
    await throttled(async (w, minute) => {
      w.client.stream(S).on('message', () => {})
      for (let i = 0; i < 60; i++) await minute()
      assert.equal(w.server.sockets.length, 1)
      assert.equal(w.client.state, 'connected')
    })
  })

  test('B158: the same hour drives a client that judges at the first look into reconnecting', async () => {
    await throttled(async (w, minute) => {
      let heard = w.platform.now()
      let reconnects = 0
      const { now, setTimeout } = w.platform
      const naive = () => {
        if (now() - heard > STALE_AFTER) reconnects++
      }
      w.client.stream(S).on('message', () => {})
      for (let i = 0; i < 60; i++) {
        setTimeout(naive, 60_000) // its look comes with the throttled timers
        await minute()
        heard = now()
      }
      assert.ok(reconnects > 50)
    })
  })

  test('B160: visible or online again during a long wait: an attempt within a second', async () => {
    for (const sign of /** @type {const} */ (['shown', 'online'])) {
      const w = world({ minDelay: 1000, maxDelay: 600_000, seed: 5 })
      const s = w.open(S)
      await w.run()
      w.server.accepting = false
      w.server.cut()
      await w.run(900_000)
      w.server.accepting = true
      const before = w.server.sockets.length
      assert.equal(w.client.state, 'waiting')
      w.platform.page(sign)
      await w.run(1000)
      assert.equal(w.server.sockets.length, before + 1, sign)
      assert.equal(s.stream.state, 'live', sign)
    }
  })

  test('B160: back on a link that died unseen, the missing ping tells within seconds', async () => {
    const w = world()
    const s = w.open(S)
    await w.run()
    const [dead] = w.server.sockets
    const { send } = w.server
    w.server.send = (socket, frame) => {
      if (socket !== dead) send.call(w.server, socket, frame)
    }
    w.platform.page('online')
    await w.run(WATCH_INTERVAL + 1500)
    assert.equal(w.server.sockets.length, 2)
    assert.equal(s.stream.state, 'live')
  })

  test('B160: a healthy link survives any number of signs', async () => {
    const w = world()
    w.open(S)
    await w.run()
    for (let i = 0; i < 100; i++) {
      w.platform.page(i % 2 ? 'shown' : 'online')
      await w.run(1000)
    }
    assert.equal(w.server.sockets.length, 1)
  })

  test('a page in the back/forward cache holds no socket, and resumes when it is shown', async () => {
    const w = world()
    const s = w.open(S)
    await w.run()
    publish(w, 1, 3)
    await w.run()
    w.platform.page('hidden')
    assert.equal(w.server.socket.readyState, 3)
    assert.equal(s.stream.state, 'suspended')
    publish(w, 4, 6)
    w.server.cut()
    await w.run(20_000)
    assert.equal(w.server.sockets.length, 1)
    w.platform.page('shown')
    await w.run(1000)
    assert.deepEqual(s.data, upTo(6))
  })

  test('a page that is left but lives on comes back by itself', async () => {
    const w = world({ maxDelay: 30_000 })
    const s = w.open(S)
    await w.run()
    w.platform.page('hidden')
    publish(w, 1, 3)
    await w.run(31_000)
    assert.deepEqual(s.data, upTo(3))
  })
})
