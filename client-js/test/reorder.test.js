import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { describe, test } from 'node:test'
import { add, compareEpochs, gate, start } from '../src/reorder.js'

/** @typedef {import('../src/reorder.js').Gate} Gate */
/** @typedef {[epoch: string, offset: number, size?: number]} Added */
/**
 * @typedef {object} Vector
 * @property {string} name
 * @property {{ epoch: string, offset: number }} start
 * @property {{ add: Added[], deliver: number[], position: object, gap: [number, number] | null, newer_epoch: boolean }[]} steps
 */

/** @param {Added} added */
const arrival = ([epoch, offset, size = 1]) => ({ epoch, offset, size, data: offset, replayed: false })

describe('the vectors shared with the server', () => {
  /** @type {Vector[]} */
  const vectors = JSON.parse(readFileSync(new URL('../../history/testdata/order.json', import.meta.url), 'utf8'))
  assert.ok(vectors.length > 20)
  for (const { name, start, steps } of vectors) {
    test(name, () => {
      let g = gate(start)
      for (const step of steps) {
        const delivered = []
        let newer = false
        for (const added of step.add) {
          const after = add(g, arrival(added))
          g = after.gate
          newer ||= after.newer
          delivered.push(...after.passed.map((m) => m.offset))
        }
        assert.deepEqual(delivered, step.deliver)
        assert.deepEqual(g.position, step.position)
        assert.deepEqual(g.held[0] ? [g.position?.offset, g.held[0].offset] : null, step.gap)
        assert.equal(newer, step.newer_epoch)
      }
    })
  }
})

describe('gate', () => {
  /**
   * @param {Gate} g
   * @param {Added[]} added
   * @param {{ count: number, size: number }} [bounds]
   */
  const addAll = (g, added, bounds) => added.reduce((g, m) => add(g, arrival(m), bounds).gate, g)
  const offsets = (/** @type {Gate} */ g) => g.held.map((m) => m.offset)

  test('adding leaves the gate it was given as it was', () => {
    const before = addAll(gate({ epoch: '7', offset: 0 }), [['7', 3], ['7', 5]])
    const copy = structuredClone(before)
    for (const m of /** @type {Added[]} */ ([['7', 1], ['7', 4], ['7', 9], ['7', 3], ['8', 1], ['6', 1]])) add(before, arrival(m))
    start(before, { epoch: '7', offset: 2 })
    assert.deepEqual(before, copy)
  })

  test('over the bound on count the highest go', () => {
    const g = addAll(gate({ epoch: '7', offset: 0 }), [['7', 9], ['7', 3], ['7', 5], ['7', 4], ['7', 8]], { count: 3, size: 100 })
    assert.deepEqual(offsets(g), [3, 4, 5])
  })

  test('over the bound on size the highest go', () => {
    const g = addAll(gate({ epoch: '7', offset: 0 }), [['7', 9, 40], ['7', 3, 40], ['7', 5, 40]], { count: 30, size: 100 })
    assert.deepEqual(offsets(g), [3, 5])
  })

  test('a message that passes does not count against the bound', () => {
    let g = addAll(gate({ epoch: '7', offset: 0 }), [['7', 3], ['7', 4]], { count: 2, size: 100 })
    const opened = add(g, arrival(['7', 1]), { count: 2, size: 100 })
    g = opened.gate
    assert.deepEqual(opened.passed.map((m) => m.offset), [1])
    assert.deepEqual(offsets(g), [3, 4])
  })

  test('without a position all is held, of the newest epoch seen', () => {
    const g = addAll(gate(), [['7', 3], ['7', 2], ['6', 9], ['10', 5], ['7', 4], ['10', 4]])
    assert.deepEqual(offsets(g), [4, 5])
    const opened = start(g, { epoch: '10', offset: 3 })
    assert.deepEqual(opened.passed.map((m) => m.offset), [4, 5])
    assert.deepEqual(opened.gate, gate({ epoch: '10', offset: 5 }))
    assert.deepEqual(start(g, { epoch: '11', offset: 3 }).passed, [])
  })

  test('epochs past 2^53 keep their order', () => {
    assert.ok(compareEpochs('9007199254740993', '9007199254740992') > 0)
    assert.ok(compareEpochs('9', '10') < 0)
    assert.equal(compareEpochs('10', '10'), 0)
  })
})
