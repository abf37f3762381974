import assert from 'node:assert/strict'
import { test } from 'node:test'
import { S, world } from './support/world.js'

const long = [
  ['x'.repeat(255), 'x'.repeat(256)],
  ['é'.repeat(127) + 'x', 'é'.repeat(128)],
  ['語'.repeat(85), '語'.repeat(85) + 'x'],
  ['😀'.repeat(63) + 'xyz', '😀'.repeat(64)],
]

test('a name that no stream can have is refused at once, and sends nothing', async () => {
  const w = world()
  w.open(S)
  await w.run()
  const sent = w.commands().length
  const bad = [
    '', '\0', 'a\nb', 'a\x1f', 'a\x7f', 'a\x80', 'a\x9fb', '\ud800', 'a\udc00b', '\udc00\ud800', 'x'.repeat(70_000),
    undefined, null, 7, {}, ['a'],
    ...long.map(([, over]) => over),
  ]
  for (const name of bad) {
    assert.throws(() => w.client.stream(/** @type {string} */ (name)), (/** @type {Error} */ thrown) => {
      assert.ok(thrown instanceof TypeError, JSON.stringify(name))
      assert.match(thrown.message, /^chronocast: a stream name is 1 to 255 bytes/)
      return true
    }, `${JSON.stringify(name)}`)
  }
  await w.run()
  assert.equal(w.commands().length, sent)
  assert.equal(w.server.sockets.length, 1)
})

test('every other name is taken as it is', async () => {
  for (const name of [' ', 'a b', '\xa0', '\u2028', '😀', '__proto__', '..', 'a"\\', '\ufffd', '\uffff', ...long.map(([most]) => most ?? '')]) {
    const w = world()
    const s = w.open(name)
    await w.run()
    w.server.publish(name, 1)
    await w.run()
    assert.deepEqual(s.data, [1], JSON.stringify(name))
  }
})

for (const [code, told] of /** @type {const} */ ([[1003, ['refused']], [1009, ['refused']], [1001, []], [1006, []], [1011, []]])) {
  test(`a socket that ends with ${code} ${told.length ? 'tells that a frame of ours was refused' : 'is told by the state alone'}`, async () => {
    const w = world()
    /** @type {string[]} */ const codes = []
    w.client.on('error', (error) => codes.push(error.code))
    const s = w.open(S)
    await w.run()
    w.server.socket.drop(code)
    await w.run(60_000)
    assert.deepEqual(codes, told)
    assert.equal(s.stream.state, 'live') // and it goes on
  })
}
