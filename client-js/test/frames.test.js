import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { ChronocastError } from '../src/errors.js'
import { decode, encode, identifierOf } from '../src/frames.js'

const I = identifierOf('chat/42')

describe('decode', () => {
  test('one message is told like several, falsy ones too', () => {
    for (const data of [0, false, '', null, [], { type: 'reset' }, 'text']) {
      const text = JSON.stringify({ identifier: I, message: data, stream_id: 'chat/42', epoch: '7', offset: 42 })
      const frame = decode(text)
      assert.equal(frame?.type, 'messages')
      assert.ok(frame && 'messages' in frame)
      assert.equal(frame.identifier, I)
      assert.deepEqual(frame.messages, [{ epoch: '7', offset: 42, data, replayed: false, size: text.length }])
    }
  })

  test('a burst, replayed or live', () => {
    const messages = [{ offset: 7, message: 'a' }, { offset: 8, message: null }]
    for (const replay of [true, undefined]) {
      const frame = decode(JSON.stringify({ type: 'messages', identifier: I, stream_id: 'chat/42', epoch: '7', replay, messages }))
      assert.ok(frame?.type === 'messages')
      assert.deepEqual(
        frame.messages.map(({ size, ...m }) => m),
        [
          { epoch: '7', offset: 7, data: 'a', replayed: !!replay },
          { epoch: '7', offset: 8, data: null, replayed: !!replay },
        ],
      )
    }
  })

  test('positions in confirmations and pings, whatever the stream is called', () => {
    for (const stream of ['chat/42', '__proto__', 'constructor', 'a"b', 'ü']) {
      for (const type of ['ping', 'confirm_subscription']) {
        const frame = decode(JSON.stringify({ type, identifier: I, streams: { [stream]: { epoch: '7', offset: 0 } } }))
        assert.ok(frame && 'heads' in frame)
        assert.deepEqual(frame.heads, [[stream, { epoch: '7', offset: 0 }]])
      }
    }
    const bare = decode('{"type":"ping","message":1796061600}')
    assert.deepEqual(bare && 'heads' in bare && bare.heads, [])
  })

  test('a type it does not know is no error', () => {
    assert.equal(decode('{"type":"presence","identifier":"x","message":1}'), null)
  })

  test('B116: an offset that a number does not hold exactly is refused, a neighbour below is not', () => {
    const frame = (/** @type {string} */ offset) => `{"identifier":"x","message":1,"epoch":"7","offset":${offset}}`
    const last = decode(frame('9007199254740991'))
    assert.ok(last?.type === 'messages')
    assert.equal(last.messages[0]?.offset, 2 ** 53 - 1)
    for (const offset of ['9007199254740992', '9007199254740993', '1e300', '1.5', '-1', '"3"', 'null']) {
      assert.throws(() => decode(frame(offset)), ChronocastError, offset)
    }
  })

  test('what is no frame throws a ChronocastError and nothing else', () => {
    for (const text of [
      '', '{', 'null', '1', '"text"', '[]', '{}',
      '{"type":"messages","identifier":"x","epoch":"7","messages":3}',
      '{"type":"messages","identifier":"x","epoch":"7","messages":[null]}',
      '{"type":"messages","identifier":"x","epoch":7,"messages":[{"offset":1}]}',
      '{"type":"ping","streams":{"a":null}}',
      '{"type":"confirm_subscription","identifier":"x","streams":{"a":{"epoch":"07","offset":1}}}',
      '{"type":"reset","identifier":"x","epoch":"7","offset":1}',
      new ArrayBuffer(2), undefined,
    ]) {
      assert.throws(() => decode(text), (/** @type {any} */ e) => e instanceof ChronocastError && e.code === 'malformed', String(text))
    }
  })
})

describe('encode', () => {
  test('commands as the server reads them', () => {
    assert.equal(I, '{"channel":"$pubsub","stream_name":"chat/42"}')
    assert.deepEqual(JSON.parse(encode('subscribe', I, 'chat/42')), { command: 'subscribe', identifier: I })
    assert.deepEqual(JSON.parse(encode('history', I, 'chat/42', { epoch: '7', offset: 41 })), {
      command: 'history',
      identifier: I,
      history: { streams: { 'chat/42': { epoch: '7', offset: 41 } } },
    })
  })

  test('a stream called __proto__ is asked for by its name', () => {
    assert.match(encode('history', identifierOf('__proto__'), '__proto__', { epoch: '7', offset: 1 }), /"streams":\{"__proto__":\{"epoch":"7","offset":1\}\}/)
  })
})
