import assert from 'node:assert/strict'
import { once } from 'node:events'
import { after, before, describe, test } from 'node:test'
import { WebSocket, WebSocketServer } from 'ws'
import { SUBPROTOCOL } from '../src/frames.js'
import { createClient } from '../src/index.js'
import { FakeServer, FakeSocket, VirtualPlatform } from '../src/testing.js'
import { upTo } from './support/world.js'

/**
 * The same conversation on a real socket and on the fake one: the fake must
 * not know anything that the real one does not.
 */
describe('a real socket', () => {
  /** @type {WebSocketServer} */ let listener
  /** Frames go out by real sockets; what they say comes from the server in memory. */
  const platform = new VirtualPlatform()
  const server = new FakeServer(platform)
  /** @type {Map<FakeSocket, import('ws').WebSocket>} */ const wires = new Map()
  let chosen = SUBPROTOCOL

  before(async () => {
    listener = new WebSocketServer({ port: 0, host: '127.0.0.1', handleProtocols: (offered) => offered.has(chosen) && chosen })
    server.connected = () => {}
    server.later = setImmediate
    server.send = (socket, frame) => wires.get(socket)?.send(JSON.stringify(frame))
    listener.on('connection', (wire) => {
      const end = new FakeSocket('')
      wires.set(end, wire)
      server.welcome(end)
      wire.on('message', (text) => end.oncommand?.(JSON.parse(String(text))))
      wire.on('close', () => end.drop())
    })
    await once(listener, 'listening')
  })
  after(async () => {
    await Promise.all([...wires.values()].filter((wire) => wire.readyState !== wire.CLOSED).map((wire) => once(wire, 'close')))
    listener.close()
  })

  const url = () => `ws://127.0.0.1:${/** @type {import('node:net').AddressInfo} */ (listener.address()).port}/cable`
  const cut = () => {
    for (const wire of wires.values()) wire.terminate()
    server.cut()
  }

  test('subscribes, is cut again and again, resumes, loses nothing', async () => {
    const client = createClient(url(), { WebSocket, minDelay: 20 })
    const stream = client.stream('tokens')
    /** @type {number[]} */ const seen = []
    let recovered = 0
    stream.on('recovered', () => recovered++)
    let n = 0
    const publish = () => {
      for (let i = 0; i < 5 && n < 2000; i++) server.publish('tokens', ++n)
      if (n % 400 === 0) cut()
      if (n < 2000) setImmediate(publish)
    }
    stream.on('state', (state) => state === 'live' && n === 0 && publish())
    for await (const m of stream) {
      seen.push(m.data)
      if (m.data === 2000) break
    }
    assert.deepEqual(seen, upTo(2000))
    assert.ok(recovered > 0)
    client.close()
  })

  test('a server without our subprotocol refuses the socket; the client keeps trying', async () => {
    chosen = 'actioncable-v1-json'
    const client = createClient(url(), { WebSocket, minDelay: 5, maxDelay: 10 })
    client.stream('tokens').on('message', () => {})
    let tries = 0
    await new Promise((done) => client.on('state', (state) => state === 'connecting' && ++tries === 3 && done(0)))
    chosen = SUBPROTOCOL
    await new Promise((done) => client.on('state', (state) => state === 'connected' && done(0)))
    client.close()
  })
})
