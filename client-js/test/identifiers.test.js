import assert from 'node:assert/strict'
import { test } from 'node:test'
import { publish, record, S, upTo, world } from './support/world.js'

/** A name as a server signs it: the JSON text of the stream in base64, and a signature. @param {string} stream */
const signed = (stream) => `${btoa(JSON.stringify(stream))}--0123`
const channel = { channel: 'Turbo::StreamsChannel', signed_stream_name: signed(S) }

test('a stream given as an identifier is named by the server, and resumes by that name', async () => {
  const w = world()
  const s = record(w.client.stream(channel, { after: { epoch: w.server.head(S).epoch, offset: 0 } }))
  publish(w, 1, 3)
  assert.equal(s.stream.name, null)
  await w.run()
  assert.equal(s.stream.name, S)
  assert.deepEqual(s.data, upTo(3))
  w.server.cut()
  publish(w, 4, 6)
  await w.run(10_000)
  publish(w, 7)
  await w.run()
  assert.deepEqual(s.data, upTo(7))
  assert.equal(w.server.socket.sent[0]?.identifier, JSON.stringify(channel))
  const { epoch } = w.server.head(S)
  assert.deepEqual(w.commands(), ['subscribe', `history after ${epoch}:0`, `subscribe after ${epoch}:3`])
})

test('streams of one identifier share a subscription, those of another do not', async () => {
  const w = world()
  const a = record(w.client.stream(channel))
  const b = record(w.client.stream({ ...channel }))
  const c = record(w.client.stream({ ...channel, extra: 1 }))
  await w.run()
  publish(w, 1, 2)
  await w.run()
  assert.deepEqual([a.data, b.data, c.data], [[1, 2], [1, 2], [1, 2]])
  assert.deepEqual(w.commands(), ['subscribe', 'subscribe'])
})

test('B37: a lost last message is noticed by the name that a ping tells', async () => {
  const w = world()
  const s = record(w.client.stream(channel))
  await w.run()
  const { send } = w.server
  w.server.send = () => {}
  publish(w, 1)
  w.server.send = send
  await w.run(10_000)
  assert.deepEqual(s.data, [1])
})
