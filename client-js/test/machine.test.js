import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import { GAP_DELAY, REQUEST_DEADLINE, REQUEST_DEADLINE_MAX, REQUEST_TRIES, behind, initial, step } from '../src/stream-machine.js'

/** @typedef {import('../src/stream-machine.js').State} State */
/** @typedef {import('../src/stream-machine.js').Event} Event */
/** @typedef {import('../src/stream.js').Timeless<Event>} Timeless */

const E = '7'
/** @param {number} offset @param {string} [epoch] */
const at = (offset, epoch = E) => ({ epoch, offset })

/**
 * drive takes events one by one, at the times given in `now`, and returns the
 * last state with a readable account of all effects.
 *
 * @param {State} state
 * @param {(Timeless & { now?: number })[]} events
 */
function drive(state, events) {
  const log = []
  let now = 0
  for (const event of events) {
    now = event.now ?? now
    const before = structuredClone(state)
    const after = step(state, { random: 0.5, ...event, now })
    assert.deepEqual(state, before, 'a transition changes nothing it was given')
    state = after.state
    for (const effect of after.effects) {
      log.push(
        effect.type === 'deliver' ? 'deliver ' + effect.messages.map((m) => m.offset)
        : effect.type === 'state' ? effect.value
        : effect.type === 'request' ? `request${effect.doubt ? ' in doubt' : ''}${effect.again ? ' again' : ''}`
        : effect.type === 'gap' ? `gap ${effect.value.after}-${effect.value.before}`
        : effect.type === 'recovered' ? `recovered ${effect.value.count}`
        : effect.type,
      )
    }
  }
  return { state, log }
}

/** @param {number} offset @param {string} [epoch] @returns {Timeless} */
const message = (offset, epoch = E) => ({ type: 'message', message: { ...at(offset, epoch), data: offset, replayed: false, size: 1 } })
/** @param {number} offset @param {string} [epoch] @returns {Timeless} */
const confirm = (offset, epoch = E) => ({ type: 'confirm', at: at(offset, epoch), head: offset })
/** @type {Timeless} */ const listen = { type: 'unpause' }
/** @type {Timeless} */ const open = { type: 'open', asked: false }
/** @type {Timeless} */ const ask = { type: 'open', asked: true }
/** @type {Timeless} */ const down = { type: 'down' }
/** @type {Timeless} */ const tick = { type: 'tick' }
/** @type {Timeless} */ const replayed = { type: 'replayed' }
/** @type {Timeless} */ const close = { type: 'close' }
/** @param {string} reason @param {number} first @param {number} offset @param {string} [epoch] @returns {Timeless} */
const reset = (reason, first, offset, epoch = E) => ({ type: 'reset', reason, first, offset, epoch })

const live = drive(initial('now'), [listen, open, confirm(10)]).state

describe('step', () => {
  const table = /** @type {[string, State, (Timeless & { now?: number })[], string, string[]][]} */ ([
    ['begins idle', initial('now'), [listen], 'idle', []],
    ['subscribes', initial('now'), [listen, open], 'subscribing', ['subscribing']],
    ['is live once confirmed', initial('now'), [listen, open, confirm(10)], 'live', ['subscribing', 'live']],
    ['cut before that, it is suspended', initial('now'), [listen, open, down], 'suspended', ['subscribing', 'suspended']],
    ['and subscribes again', initial('now'), [listen, open, down, open], 'subscribing', ['subscribing', 'suspended', 'subscribing']],
    ['an empty start is live at once', initial('start'), [listen, open, confirm(0)], 'live', ['subscribing', 'live']],
    ['a start asks for all', initial('start'), [listen, open, confirm(2)], 'resuming', ['subscribing', 'resuming', 'request']],
    ['and is live when it has all', initial('start'), [listen, open, confirm(2), message(1), message(2)], 'live',
      ['subscribing', 'resuming', 'request', 'deliver 1', 'deliver 2', 'live', 'recovered 2']],
    ['a position that is the head recovers nothing', initial(at(10)), [listen, ask, confirm(10)], 'live', ['resuming', 'live', 'recovered 0']],
    ['delivers in order', live, [message(11), message(12)], 'live', ['deliver 11', 'deliver 12']],
    ['drops what is old', live, [message(10), message(3), message(11, '6')], 'live', []],
    ['holds what is early', live, [message(12)], 'gap', ['gap', 'gap 10-12']],
    ['a gap that heals by itself', live, [message(12), message(11)], 'live', ['gap', 'gap 10-12', 'deliver 11,12', 'live', 'recovered 2']],
    ['a gap that does not is asked for', live, [message(12), { ...tick, now: GAP_DELAY }], 'gap', ['gap', 'gap 10-12', 'request']],
    ['but not before', live, [message(12), { ...tick, now: GAP_DELAY - 1 }], 'gap', ['gap', 'gap 10-12']],
    ['a head ahead is a gap', live, [{ type: 'head', at: at(12) }], 'gap', ['gap', 'gap 10-13']],
    ['a head behind is not', live, [{ type: 'head', at: at(9) }], 'live', []],
    ['cut in a gap', live, [message(12), down], 'suspended', ['gap', 'gap 10-12', 'suspended']],
    ['the recovery then counts from where the gap began', live, [message(12), down, ask, confirm(13), message(11), message(12), message(13)], 'live',
      ['gap', 'gap 10-12', 'suspended', 'resuming', 'deliver 11', 'deliver 12', 'deliver 13', 'live', 'recovered 3']],
    ['a confirmation of another epoch: the reset is awaited', live, [down, ask, confirm(3, '8')], 'resuming', ['suspended', 'resuming']],
    ['when it does not come, the position is asked about', live, [down, ask, confirm(3, '8'), { ...tick, now: REQUEST_DEADLINE }], 'resuming',
      ['suspended', 'resuming', 'request in doubt again']],
    ['a message of a later epoch is a doubt', live, [message(1, '8'), { ...tick, now: GAP_DELAY }], 'resuming', ['resuming', 'request in doubt']],
    ['a head of our own epoch ends the doubt', live, [message(1, '8'), { type: 'head', at: at(10) }], 'live', ['resuming', 'live', 'recovered 0']],
    ['a confirmation behind the position is a doubt', initial(at(50)), [listen, ask, confirm(40), { ...tick, now: REQUEST_DEADLINE }], 'resuming',
      ['resuming', 'request in doubt again']],
    ['a repeated one is not', live, [message(11), confirm(10)], 'live', ['deliver 11']],
    ['a reset leads to the head', live, [reset('epoch_changed', 1, 5, '8')], 'live', ['reset', 'reset', 'live']],
    ['a start goes on with the first kept', drive(initial('start'), [listen, open, confirm(0)]).state, [reset('trimmed', 4, 6), message(4), message(5), message(6)], 'live',
      ['reset', 'reset', 'request', 'deliver 4', 'deliver 5', 'deliver 6', 'live', 'recovered 3']],
    ['a reset that was meant for another', live, [reset('trimmed', 5, 10), reset('ahead', 1, 9), reset('epoch_changed', 1, 10)], 'live', []],
    ['it moves the wire to the head for all', live, [reset('trimmed', 5, 12)], 'gap', ['gap', 'gap 10-13']],
    ['paused, nothing is delivered', live, [{ type: 'pause', at: null }, message(11), message(12)], 'live', []],
    ['and then asked for', live, [{ type: 'pause', at: null }, message(11), message(12), listen], 'gap', ['gap', 'gap 10-13', 'request']],
    ['a pause in a run goes back', live, [message(12), message(13), message(11), { type: 'pause', at: at(11) }, listen], 'gap',
      ['gap', 'gap 10-12', 'deliver 11,12,13', 'live', 'recovered 3', 'gap', 'gap 11-14', 'request']],
    ['paused without a position, it takes the confirmation', initial('now'), [open, message(11), confirm(10), listen], 'live', ['subscribing', 'live']],
    ['closed is the end', live, [close, message(11), down, open, confirm(1), reset('ahead', 1, 1), listen, close], 'closed', ['closed']],
  ])
  for (const [name, from, events, want, log] of table) {
    test(name, () => {
      const after = drive(from, events)
      assert.deepEqual(after.log, log)
      assert.equal(after.state.name, want)
    })
  }

  test('requests are repeated after growing times, then the machine is stuck', () => {
    let { state } = drive(live, [message(12)])
    const waits = []
    for (let i = 0, now = 0; i < REQUEST_TRIES; i++) {
      waits.push(/** @type {number} */ (state.wake) - now)
      now = /** @type {number} */ (state.wake)
      const after = drive(state, [{ ...tick, now }])
      assert.deepEqual(after.log, [i ? 'request again' : 'request'])
      state = after.state
    }
    assert.deepEqual(waits, [GAP_DELAY, 1, 2, 4, 8].map((n, i) => (i ? n * REQUEST_DEADLINE : n)))
    assert.deepEqual(drive(state, [{ ...tick, now: 1e9 }]).log, ['stuck'])
  })

  test('the wait between requests is jittered by half and bounded', () => {
    const waits = [0, 0.999].map((random) => step(initial('start'), { type: 'unpause', now: 0, random }).state)
      .map((state, i) => step(step(state, { ...open, now: 0, random: 0 }).state, { ...confirm(3), now: 0, random: i }).state.wake)
    assert.deepEqual(waits, [0.5 * REQUEST_DEADLINE, 1.5 * REQUEST_DEADLINE])
    assert.ok(REQUEST_DEADLINE * 2 ** REQUEST_TRIES > REQUEST_DEADLINE_MAX)
  })

  test('while messages come, a long replay is not asked for again', () => {
    let { state } = drive(initial('start'), [listen, open, confirm(1000)])
    for (let n = 1; n < 1000; n++) {
      const after = drive(state, [{ ...message(n), now: n * 1000 }, tick])
      assert.deepEqual(after.log, [`deliver ${n}`])
      state = after.state
    }
  })

  test('a replay that left a hole is asked for again soon', () => {
    const after = drive(initial('start'), [listen, open, confirm(3), message(2), message(3), { ...replayed, now: 10 }, { ...tick, now: 10 + GAP_DELAY }])
    assert.deepEqual(after.log, ['subscribing', 'resuming', 'request', 'request again'])
  })

  test('B50: whatever comes, the position is a pair the server issued, and only its words lead to it', () => {
    const epoch = fc.constantFrom('5', '6', '7', '12')
    const offset = fc.nat(6)
    const event = fc.oneof(
      fc.record({ type: fc.constant('message'), message: fc.record({ epoch, offset: offset.map((n) => n + 1), data: fc.constant(0), replayed: fc.boolean(), size: fc.constant(1) }) }),
      fc.record({ type: fc.constant('confirm'), at: fc.record({ epoch, offset }), head: offset }),
      fc.record({ type: fc.constant('head'), at: fc.record({ epoch, offset }) }),
      fc.record({ type: fc.constant('reset'), reason: fc.constantFrom('epoch_changed', 'trimmed', 'ahead'), epoch, first: offset.map((n) => n + 1), offset }),
      fc.record({ type: fc.constantFrom('down', 'tick', 'replayed', 'unpause') }),
      fc.record({ type: fc.constant('open'), asked: fc.boolean() }),
    )
    fc.assert(
      fc.property(fc.constantFrom('start', 'now'), fc.array(event, { maxLength: 30 }), (after, events) => {
        let state = step(initial(after), { type: 'unpause', now: 0, random: 0 }).state
        const issued = new Set()
        for (const [now, untimed] of events.entries()) {
          const event = /** @type {Event} */ ({ ...untimed, now: now * 1000, random: 0.5 })
          if (event.type === 'message') issued.add(event.message.epoch + ':' + event.message.offset)
          if (event.type === 'confirm') issued.add(event.at.epoch + ':' + event.at.offset).add(event.at.epoch + ':0')
          if (event.type === 'reset') issued.add(event.epoch + ':' + event.offset).add(`${event.epoch}:${event.first - 1}`)
          const { effects, state: next } = step(state, event)
          const { position } = next.gate
          assert.ok(!position || issued.has(position.epoch + ':' + position.offset), JSON.stringify(position))
          // From one epoch to another, or backwards, only by a reset that is told.
          const from = state.gate.position
          if (from && position && (from.epoch !== position.epoch || position.offset < from.offset)) {
            assert.ok(effects.some((effect) => effect.type === 'reset'))
          }
          if (next.name === 'live') assert.ok(!behind(next))
          state = next
        }
      }),
      { numRuns: 3000 },
    )
  })
})
