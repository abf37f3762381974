import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Measure } from '../assets/measure.js'

/** @param {Measure} m @param {number[]} offsets */
const arrive = (m, offsets) => offsets.map((offset) => m.arrive(offset, false))

test('what comes in order is live and nothing is out of place', () => {
  const m = new Measure()
  assert.deepEqual(arrive(m, [1, 2, 3]).map((a) => a.kind), ['live', 'live', 'live'])
  assert.equal(m.outOfPlace, 0)
  assert.equal(m.held, 0)
})

test('an early message is held until those before it have come', () => {
  const m = new Measure()
  assert.deepEqual(arrive(m, [1, 3, 4]).map((a) => a.kind), ['live', 'held', 'held'])
  assert.equal(m.held, 2)
  assert.deepEqual(m.arrive(2, false), { kind: 'live', stray: true })
  assert.equal(m.held, 0)
  // 3 does not continue 1, 2 does not continue 4.
  assert.equal(m.outOfPlace, 2)
})

test('a second arrival is a duplicate, whether the first is held or delivered', () => {
  const m = new Measure()
  assert.deepEqual(arrive(m, [1, 3, 3, 1]).map((a) => a.kind), ['live', 'held', 'duplicate', 'duplicate'])
  assert.equal(m.duplicates, 2)
})

test('what history brings back is a replay', () => {
  const m = new Measure()
  assert.equal(m.arrive(1, true).kind, 'replay')
})

test('after a lost connection what was held comes again and is no duplicate', () => {
  const m = new Measure()
  arrive(m, [1, 2, 4, 5])
  m.deliver(1)
  m.deliver(2)
  m.disconnected()
  assert.equal(m.held, 0)
  assert.deepEqual([3, 4, 5].map((offset) => m.arrive(offset, true).kind), ['replay', 'replay', 'replay'])
  assert.equal(m.duplicates, 0)
})

test('after a reset the first message kept continues the stream', () => {
  const m = new Measure()
  arrive(m, [1, 2, 9])
  m.reset(20, 2)
  assert.deepEqual(m.arrive(21, true), { kind: 'replay', stray: false })
  assert.equal(m.held, 0)
})

test('the verdict tells each fault apart', () => {
  /** @param {number[]} offsets @param {string} text */
  const verdict = (offsets, text) => {
    const m = new Measure()
    for (const offset of offsets) m.deliver(offset)
    const { identical, tokens, missing, doubled, disordered } = m.verdict(text, 'abc', 3)
    return [identical, tokens, missing, doubled, disordered]
  }
  assert.deepEqual(verdict([1, 2, 3], 'abc'), [true, 3, 0, 0, 0])
  assert.deepEqual(verdict([1, 2, 3], 'abx'), [false, 3, 0, 0, 0])
  assert.deepEqual(verdict([1, 3], 'ac'), [false, 2, 1, 0, 0])
  assert.deepEqual(verdict([1, 2, 2, 3], 'abbc'), [false, 4, 0, 1, 0])
  assert.deepEqual(verdict([1, 3, 2], 'acb'), [false, 3, 0, 0, 1])
  assert.deepEqual(verdict([1, 2, 3, 4], 'abcd'), [false, 4, 0, 0, 0])
  // Right by luck is not right.
  assert.deepEqual(verdict([1, 3, 2], 'abc'), [false, 3, 0, 0, 1])
})

test('what was trimmed is told, and the rest compared around it', () => {
  /** @param {(number | [first: number])[]} steps offsets of one letter each, or a reset @param {string} [text] */
  const verdict = (steps, text) => {
    const m = new Measure()
    let shown = ''
    for (const step of steps) {
      if (Array.isArray(step)) m.reset(step[0] - 1, shown.length)
      else {
        m.deliver(step)
        shown += 'abcdefgh'[step - 1]
      }
    }
    const { identical, agrees, missing, lost } = m.verdict(text ?? shown, 'abcdefgh', 8)
    return [identical, agrees, missing, lost]
  }
  // From the beginning, in the middle, both, all.
  assert.deepEqual(verdict([[4], 4, 5, 6, 7, 8]), [false, true, 0, 3])
  assert.deepEqual(verdict([1, 2, [5], 5, 6, 7, 8]), [false, true, 0, 2])
  assert.deepEqual(verdict([[3], 3, 4, [7], 7, 8]), [false, true, 0, 4])
  assert.deepEqual(verdict([[9]]), [false, true, 0, 8])
  // A reset that loses nothing leaves the whole to compare.
  assert.deepEqual(verdict([1, 2, [3], 3, 4, 5, 6, 7, 8]), [true, true, 0, 0])
  // Faults are found in the pieces too.
  assert.deepEqual(verdict([1, 2, [5], 5, 7, 8]), [false, false, 1, 2])
  assert.deepEqual(verdict([1, 2, [5], 5, 6, 7, 8], 'xbefgh'), [false, false, 0, 2])
  assert.deepEqual(verdict([1, 2, [5], 5, 6, 7, 8], 'abefgx'), [false, false, 0, 2])
  assert.deepEqual(verdict([[3], 3, 4, [7], 7, 8], 'cxgh'), [false, false, 0, 4])
})
