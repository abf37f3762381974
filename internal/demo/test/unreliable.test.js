import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Link, dataFrame, disturbance, longestDelay } from '../assets/unreliable.js'

/** A socket as far as the page's class needs one. */
class Base extends EventTarget {
  /** @type {unknown[]} */
  sent = []
  closed = 0
  /** @type {((event: any) => void) | null} */
  #listener = null
  set onmessage(/** @type {any} */ f) {
    if (this.#listener) this.removeEventListener('message', this.#listener)
    this.#listener = f
    if (f) this.addEventListener('message', f)
  }
  /** @param {unknown} data */
  send(data) {
    this.sent.push(data)
  }
  close() {
    this.closed++
  }
  /** @param {unknown} frame */
  serve(frame) {
    this.dispatchEvent(new MessageEvent('message', { data: JSON.stringify(frame) }))
  }
}

/** @param {number} offset */
const message = (offset) => ({ identifier: 'I', message: 'm' + offset, stream_id: 's', epoch: '7', offset })
/** @param {number[]} offsets */
const replay = (offsets) => ({
  type: 'messages', identifier: 'I', stream_id: 's', epoch: '7', replay: true,
  messages: offsets.map((offset) => ({ offset, message: 'm' + offset })),
})

/** @param {() => number} [random] */
function setup(random) {
  const link = new Link(random)
  /** @type {any[]} */
  const got = []
  /** @type {number[]} */
  const seen = []
  link.observe = (frame) => seen.push(...frame.messages.map((m) => m.offset))
  const Class = /** @type {any} */ (link.socketClass(/** @type {any} */ (Base)))
  const open = () => {
    const socket = new Class('ws://x/cable', [])
    socket.onmessage = (/** @type {any} */ { data }) => got.push(JSON.parse(data))
    return socket
  }
  return { link, got, seen, open, offsets: () => got.flatMap((f) => f.messages?.map((/** @type {any} */ m) => m.offset) ?? (f.offset ? [f.offset] : [])) }
}

/** @param {number} seed */
const random = (seed) => () => (seed = (seed * 16807) % 2147483647) / 2147483647

test('left alone it hands over every frame once, at once, in order', () => {
  const { got, seen, open, offsets } = setup()
  const socket = open()
  socket.serve({ type: 'welcome' })
  for (const offset of [1, 2, 3]) socket.serve(message(offset))
  socket.serve(replay([2, 3]))
  assert.equal(got[0].type, 'welcome')
  assert.deepEqual(offsets(), [1, 2, 3, 2, 3])
  assert.deepEqual(seen, offsets())
})

test('shuffled, every frame comes once, within the longest delay, and not in order', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const { link, got, seen, open, offsets } = setup(random(42))
  link.shuffle = true
  const socket = open()
  const all = Array.from({ length: 50 }, (_, i) => i + 1)
  for (const offset of all) socket.serve(message(offset))
  assert.equal(got.length, 0)
  t.mock.timers.tick(longestDelay(500) + 1)
  assert.notDeepEqual(offsets(), all)
  assert.deepEqual(offsets().toSorted((a, b) => a - b), all)
  assert.deepEqual(seen, offsets())
})

test('control frames pass, but the end of a replay stays behind what it ends', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const { link, got, open } = setup(random(7))
  link.shuffle = true
  const socket = open()
  socket.serve(message(1))
  socket.serve(replay([2, 3]))
  for (const type of ['ping', 'confirm_subscription', 'reset', 'error', 'disconnect', 'confirm_history']) socket.serve({ type })
  assert.deepEqual(got.map((f) => f.type), ['ping', 'confirm_subscription', 'reset', 'error', 'disconnect'])
  t.mock.timers.tick(1000)
  assert.equal(got.length, 8)
  assert.equal(got.at(-1).type, 'confirm_history')
})

test('held frames are bounded, whatever the timers do', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const { link, got, open } = setup()
  link.shuffle = true
  const socket = open()
  for (let offset = 1; offset <= 200; offset++) socket.serve(message(offset))
  assert.equal(got.length, 200 - 64)
})

test('drop loses live frames only', () => {
  const { link, open, offsets } = setup(() => 0.05)
  link.drop = true
  const socket = open()
  socket.serve(message(1))
  socket.serve(replay([1, 2]))
  assert.deepEqual(offsets(), [1, 2])
  assert.equal(link.dropped, 1)
})

test('a cut loses what is held and what is sent; the next socket is silent, then complete', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const { link, got, open, offsets } = setup(random(3))
  link.shuffle = true
  const first = open()
  first.serve(message(1))
  link.cut(1500)
  first.serve(message(2))
  first.send('lost')
  assert.equal(first.closed, 1)
  assert.deepEqual(first.sent, [])
  const second = open()
  link.shuffle = false
  second.serve({ type: 'welcome' })
  second.serve(message(3))
  t.mock.timers.tick(1499)
  assert.equal(got.length, 0)
  t.mock.timers.tick(1)
  assert.equal(got[0].type, 'welcome')
  assert.deepEqual(offsets(), [3])
  first.serve(message(4)) // was on its way when the connection was cut
  assert.deepEqual(offsets(), [3])
  second.send('heard')
  assert.deepEqual(second.sent, ['heard'])
})

test('a socket closed by the client says nothing more', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const { link, got, seen, open } = setup()
  link.shuffle = true
  const socket = open()
  socket.serve(message(1))
  socket.close()
  t.mock.timers.tick(1000)
  assert.equal(got.length + seen.length, 0)
  assert.equal(link.sockets.size, 0)
})

test('frames without messages are told from those with', () => {
  assert.equal(dataFrame(null), null)
  assert.equal(dataFrame('text'), null)
  assert.equal(dataFrame({ type: 'ping', message: 5 }), null)
  for (const falsy of [0, false, '', null]) {
    assert.deepEqual(dataFrame({ message: falsy, stream_id: 's', epoch: '7', offset: 1 })?.messages, [{ offset: 1, message: falsy }])
  }
})


test('the page says what it does to the frames, and nothing else', () => {
  const words = [[true, false], [false, true], [true, true], [false, false]].map(([shuffle = false, drop = false]) => disturbance({ shuffle, drop }))
  assert.deepEqual(words.map((w) => [/shuffles/.test(w), /drops/.test(w), /on purpose/.test(w)]), [
    [true, false, true],
    [false, true, true],
    [true, true, true],
    [false, false, false],
  ])
})
