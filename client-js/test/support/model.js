import assert from 'node:assert/strict'
import { createClient } from '../../src/index.js'
import { FakeServer, VirtualPlatform } from '../../src/testing.js'

/** @typedef {import('../../src/index.js').Position} Position */
/** @typedef {import('../../src/index.js').After} After */
/** @typedef {import('../../src/testing.js').FakeSocket} FakeSocket */

/**
 * Manners of a network. ordered: frames keep their order, connections break.
 * shuffled: they arrive in any order. hostile: and some twice or not at all.
 * @typedef {'ordered' | 'shuffled' | 'hostile'} Manner
 */

/**
 * Op is one thing that happens. n picks among what there is.
 * @typedef {{ do: 'publish' | 'burst' | 'cut' | 'wait' | 'doze' | 'ping' | 'renumber' | 'trim' | 'open' | 'close' | 'mute' | 'listen'
 *   | 'disconnect' | 'connect' | 'spoil', n: number }} Op
 */

const STREAMS = ['a', 'b']

/** What the runs of one property came across, to show that they are worth something. */
export const tally = { messages: 0, replayed: 0, resets: 0, gaps: 0, recovered: 0, throws: 0, sockets: 0, lost: 0, doubled: 0, readers: 0 }

/** Truth is all that was ever published: the reference every reader is held to. */
class Truth {
  /** @type {Map<string, string[]>} payloads as text, by stream and epoch */
  #lives = new Map()
  /** @type {Map<string, number>} lowest offset kept, by stream and epoch */
  first = new Map()

  /** @param {string} stream @param {string} epoch */
  life(stream, epoch) {
    const key = stream + ' ' + epoch
    let life = this.#lives.get(key)
    if (!life) this.#lives.set(key, (life = []))
    return life
  }

  /** @param {string} stream @param {Position} at */
  issued(stream, { epoch, offset }) {
    const life = this.#lives.get(stream + ' ' + epoch)
    return !!life && offset <= life.length
  }
}

/** Reader is one stream() handle with the invariants it must keep. */
class Reader {
  /** @type {Position | null} where the reference stands */
  at = null
  /** @type {{ epoch: string, offset: number }[]} */
  seen = []
  thrown = 0
  told = 0
  closed = false
  /** @type {(() => void) | null} */
  #off = null

  /**
   * @param {World} world
   * @param {string} name
   * @param {After} after
   * @param {'plain' | 'throws' | 'reopens'} kind
   */
  constructor(world, name, after, kind) {
    this.world = world
    this.name = name
    this.fromStart = after === 'start'
    this.kind = kind
    if (typeof after === 'object') this.at = after
    this.stream = this.#open(after)
  }

  /** @param {After} after */
  #open(after) {
    const stream = this.world.client.stream(this.name, { after })
    stream.on('state', (state) => {
      // A confirmation with offset k means that k+1 comes first.
      if (state === 'live' || state === 'resuming') this.at ??= stream.position
    })
    stream.on('gap', (gap) => {
      tally.gaps++
      assert.ok(gap.after + 1 < gap.before)
    })
    stream.on('recovered', ({ from, to, count }) => {
      tally.recovered++
      assert.deepEqual(to, stream.position)
      assert.equal(from.epoch, to.epoch)
      assert.equal(count, to.offset - from.offset)
      const got = this.seen.filter((m) => m.epoch === to.epoch && m.offset > from.offset && m.offset <= to.offset)
      assert.equal(got.length, count, 'recovered tells the true count')
    })
    stream.on('reset', (reset) => {
      tally.resets++
      const { from, epoch, first, offset, reason } = reset
      if (this.at) assert.deepEqual(from, this.at, 'a reset names what could not be continued')
      const kept = this.world.truth.first.get(this.name + ' ' + epoch) ?? 1
      assert.ok(from.epoch !== epoch || from.offset + 1 < kept, `a reset for a reason, not ${reason}`)
      this.at = { epoch, offset: this.fromStart ? first - 1 : offset }
    })
    stream.on('error', (error) => {
      if (error.code === 'handler') this.told++
      if (error.cause instanceof assert.AssertionError) throw error.cause
    })
    this.stream = stream
    this.listen()
    return stream
  }

  listen() {
    this.#off ??= this.stream.on('message', (m) => {
      const { epoch, offset, data, replayed } = m
      tally.messages++
      if (replayed) tally.replayed++
      assert.deepEqual(this.stream.position, { epoch, offset }, 'the position moves before the handler runs')
      assert.equal(data, this.world.truth.life(this.name, epoch)[offset - 1], 'byte-equal')
      if (!this.at && this.fromStart) this.at = { epoch, offset: 0 }
      if (this.at) assert.deepEqual({ epoch, offset: offset - 1 }, this.at, 'in order, once, without a hole')
      this.at = { epoch, offset }
      this.seen.push(this.at)
      if (this.kind === 'throws' && offset % 3 === 0) {
        this.thrown++
        tally.throws++
        throw new Error('on purpose')
      }
      if (this.kind === 'reopens' && offset % 4 === 0) {
        this.stream.close()
        this.#off = null
        this.fromStart = false
        this.#open(this.at)
      }
    })
  }

  mute() {
    this.#off?.()
    this.#off = null
  }

  close() {
    this.closed = true
    this.stream.close()
  }
}

/** World is a server, a network with bad manners, and one client with readers. */
export class World {
  truth = new Truth()
  /** @type {Reader[]} */
  readers = []
  /** What an invariant said from within a listener. @type {unknown} */
  failure = null
  #published = 0
  #spoil = 0

  /**
   * @param {Manner} manner
   * @param {number} seed
   * @param {(task: () => void) => void} schedule runs a task some time
   */
  constructor(manner, seed, schedule) {
    this.manner = manner
    this.schedule = schedule
    this.platform = new VirtualPlatform(seed)
    this.platform.report = (error) => {
      this.failure ??= /** @type {any} */ (error)?.cause ?? error
    }
    this.server = new FakeServer(this.platform)
    this.server.pinging = false
    this.server.page = 3
    this.server.later = (step) => this.schedule(step)
    /** @type {Map<FakeSocket, string[]>} */
    const lines = new Map()
    this.server.connected = (socket) => {
      tally.sockets++
      lines.set(socket, [])
      this.schedule(() => this.server.welcome(socket))
    }
    this.server.send = (socket, frame) => {
      const text = JSON.stringify(frame)
      let times = 1
      if (this.manner === 'hostile' && this.#spoil) {
        this.#spoil--
        times = this.platform.random() < 0.5 ? 0 : 2
        if (times) tally.doubled++
        else tally.lost++
      }
      for (; times; times--) {
        if (this.manner === 'ordered') {
          const line = /** @type {string[]} */ (lines.get(socket))
          line.push(text)
          this.schedule(() => socket.deliver(/** @type {string} */ (line.shift())))
        } else this.schedule(() => socket.deliver(text))
      }
    }
    this.client = createClient('ws://model/', { platform: this.platform, WebSocket: this.server.WebSocket, minDelay: 100 })
    this.client.on('error', (error) => {
      if (error.cause || error.code !== 'timeout') this.failure ??= error.cause ?? error
    })
    for (const stream of STREAMS) this.truth.life(stream, this.server.log(stream).epoch)
  }

  /** pass lets time go by, without waiting for promises. @param {number} ms */
  pass(ms) {
    const end = this.platform.now() + ms
    while (this.platform.due <= end) this.platform.fire()
    this.platform.setTimeout(() => {}, end - this.platform.now())
    this.platform.fire()
  }

  /** @param {Op} op */
  run({ do: what, n }) {
    const { server, client } = this
    const stream = /** @type {string} */ (STREAMS[n % STREAMS.length])
    const open = this.readers.filter((reader) => !reader.closed)
    const reader = open[n % (open.length || 1)]
    switch (what) {
      case 'publish':
        return this.#publish(stream, 1)
      case 'burst':
        return this.#publish(stream, 2 + (n % 9))
      case 'cut':
        return server.cut()
      case 'wait':
        return this.pass(20 * (n % 10))
      case 'doze':
        return this.pass(1000 * (n % 10))
      case 'ping':
        return server.ping()
      case 'renumber':
        server.renumber(stream)
        this.truth.life(stream, server.log(stream).epoch)
        return
      case 'trim':
        server.trim(stream, server.head(stream).offset - (n % 5))
        this.truth.first.set(stream + ' ' + server.log(stream).epoch, server.log(stream).first)
        return
      case 'open': {
        if (open.length > 4) return
        const { epoch, offset } = server.head(stream)
        const after = n % 3 === 0 ? 'now' : n % 3 === 1 ? 'start' : { epoch, offset: Math.max(0, offset - (n % 7)) }
        this.readers.push(new Reader(this, stream, after, n % 5 === 0 ? 'throws' : n % 5 === 1 ? 'reopens' : 'plain'))
        tally.readers++
        return
      }
      case 'close':
        return reader?.close()
      case 'mute':
        return reader?.mute()
      case 'listen':
        return reader?.listen()
      case 'disconnect':
        return client.disconnect()
      case 'connect':
        return client.connect()
      case 'spoil':
        this.#spoil += 1 + (n % 3)
    }
  }

  /** check holds after everything that happens. */
  check() {
    if (this.failure) throw this.failure
    for (const { stream, name, closed } of this.readers) {
      if (closed) continue
      const { position } = stream
      assert.ok(!position || this.truth.issued(name, position), `${JSON.stringify(position)} was never issued`)
    }
  }

  /**
   * heal ends the trouble: frames arrive in order, the server pings. All readers
   * must come to the head within five minutes.
   */
  async heal() {
    const tasks = /** @type {(() => void)[]} */ ([])
    this.manner = 'ordered'
    this.schedule = (/** @type {() => void} */ task) => void tasks.push(task)
    this.client.connect()
    for (const reader of this.readers) if (!reader.closed) reader.listen()
    const there = () =>
      this.readers.every(({ closed, stream, name }) => {
        const { epoch, offset } = this.server.head(name)
        const { position } = stream
        return closed || (stream.state === 'live' && position?.epoch === epoch && position.offset === offset)
      })
    for (let ms = 0; ms < 300_000; ms += 3000) {
      this.server.ping()
      while (tasks.length) tasks.shift()?.()
      await null
      this.check()
      if (there()) break
      this.pass(3000)
    }
    this.check()
    for (const { closed, stream, name, kind, thrown, told } of this.readers) {
      if (!closed) {
        assert.deepEqual(stream.position, this.server.head(name), `${stream.state}, ${kind}`)
        assert.equal(stream.state, 'live')
      }
      assert.equal(told, thrown, 'every throw is told')
    }
    this.client.close()
  }

  /** @param {string} stream @param {number} count */
  #publish(stream, count) {
    for (; count; count--) {
      const data = `${stream} ${++this.#published}`
      this.truth.life(stream, this.server.log(stream).epoch).push(data)
      this.server.publish(stream, data)
    }
  }
}
