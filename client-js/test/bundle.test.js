import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { test } from 'node:test'
import { gzipSync } from 'node:zlib'
import { bundle } from '../scripts/build.js'
import * as sources from '../src/index.js'
import { S, publish, upTo, world } from './support/world.js'

/** @type {typeof sources} */
const minified = await import(String(new URL('../dist/chronocast.min.js', import.meta.url)))

// Streams named by the identifier of a channel and tokens that are kept cost 80 bytes over 6 KiB.
const BUDGET = 6 * 1024 + 128
const TURBO_BUDGET = 8.75 * 1024

for (const [name, budget] of /** @type {const} */ ([['chronocast.min.js', BUDGET], ['chronocast-turbo.min.js', TURBO_BUDGET]])) {
  test(`${name} is what its sources give, byte for byte`, async () => {
    const committed = await readFile(new URL('../dist/' + name, import.meta.url), 'utf8')
    assert.ok(committed === (await bundle(name)), `dist/${name} is not that of src: npm run build`)
  })

  test(`${name} keeps its size budget after gzip`, async (t) => {
    const size = gzipSync(await bundle(name), { level: 9 }).length
    t.diagnostic(`${size} bytes of ${budget}`)
    assert.ok(size <= budget, `${size} bytes`)
  })
}

test('the module for Turbo can be imported where there is no page', async () => {
  for (const path of ['../src/turbo/index.js', '../dist/chronocast-turbo.min.js']) {
    assert.deepEqual(Object.keys(await import(String(new URL(path, import.meta.url)))).sort(), ['ChronocastError', 'configure', 'takeOver'])
  }
})

test('the bundle exports what the sources export, and nothing else is public', () => {
  assert.deepEqual(Object.keys(minified).sort(), ['ChronocastError', 'createClient'])
  assert.deepEqual(Object.keys(sources).sort(), Object.keys(minified).sort())
})

/** @param {object} o */
const members = (o) => Object.getOwnPropertyNames(Object.getPrototypeOf(o)).concat(Object.keys(o)).sort()

for (const [name, { createClient }] of Object.entries({ sources, minified })) {
  test(`${name}: the surface is the documented one, and all of it works`, async () => {
    const w = world({ create: createClient })
    assert.deepEqual(members(w.client), ['close', 'connect', 'constructor', 'disconnect', 'on', 'state', 'stream'])
    const s = w.open(S, 'start')
    assert.deepEqual(members(s.stream), ['close', 'constructor', 'name', 'on', 'position', 'state'])
    assert.equal(s.stream.name, S)
    await w.run()
    publish(w, 200)
    await w.run()
    w.server.cut()
    publish(w, 400)
    await w.run()
    w.client.disconnect()
    publish(w, 500)
    w.server.trim(S, 451)
    w.client.connect()
    await w.run()
    const { send } = w.server
    w.server.send = () => {}
    publish(w, 501)
    w.server.send = send
    publish(w, 502)
    await w.run()
    assert.deepEqual(s.data, [...upTo(400), ...upTo(451, 502)])
    assert.deepEqual(s.events.map(([event, detail]) => [event, Object.keys(detail).join()]), [
      ['recovered', 'from,to,count'],
      ['reset', 'reason,epoch,first,offset,from'],
      ['recovered', 'from,to,count'],
      ['gap', 'epoch,after,before'],
      ['recovered', 'from,to,count'],
    ])
    assert.deepEqual(Object.keys(s.messages[0] ?? {}), ['data', 'offset', 'epoch', 'replayed'])
    assert.ok(s.messages[1]?.replayed === false && s.messages[300]?.replayed === true)
    const loop = w.client.stream(S, { after: s.messages.at(-2) ?? 'now' })[Symbol.asyncIterator]()
    await w.run()
    assert.equal((await loop.next()).value?.data, 502)
    w.client.close()
    assert.equal((await loop.next()).done, true)
    assert.equal(s.stream.state, 'closed')
    assert.deepEqual(s.errors, [])
  })
}
