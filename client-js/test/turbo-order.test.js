import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { settle } from '../src/testing.js'
import { deliver, keepOrder } from '../src/turbo/order.js'

/**
 * page is a page with Turbo's way of rendering: each stream element waits by
 * itself, and its wait ends when the test says so.
 */
function page() {
  const target = new EventTarget()
  const stop = keepOrder(target)
  /** @type {string[]} */ const shown = []
  /** @type {Record<string, () => void>} */ const waits = {}
  /** @type {Record<string, Promise<void>>} */ const ends = {}
  return {
    target, shown, ends, stop,
    /** @param {string} name @param {(name: string) => unknown} [render] */
    arrive(name, render = (what) => shown.push(what)) {
      const event = new CustomEvent('turbo:before-stream-render', { cancelable: true, detail: { newStream: name, render } })
      if (!target.dispatchEvent(event)) return
      ends[name] = new Promise((/** @type {(value?: any) => void} */ go) => (waits[name] = go)).then(() => event.detail.render(name)).then(() => {})
    },
    /** @param {string[]} names */
    async over(...names) {
      for (const name of names) {
        waits[name]?.()
        await settle()
      }
    },
  }
}

describe('rendering in order of arrival', () => {
  test('the one whose wait ends first renders what came before it', async () => {
    const p = page()
    for (const name of 'ABCD') p.arrive(name)
    await p.over('C')
    assert.equal(p.shown.join(''), 'ABC')
    await p.over('A', 'D', 'B')
    assert.equal(p.shown.join(''), 'ABCD')
    await Promise.all(Object.values(p.ends))
    p.stop()
  })

  test('without it the order is that in which the waits end', async () => {
    const p = page()
    p.stop()
    for (const name of 'ABC') p.arrive(name)
    await p.over('B', 'C', 'A')
    assert.equal(p.shown.join(''), 'BCA')
  })

  test('a rendering that takes its time holds up those after it; one that fails does not, and says so where it was asked for', async () => {
    const p = page()
    /** @type {() => void} */ let slow = () => {}
    p.arrive('A', () => new Promise((go) => (slow = () => go(p.shown.push('A')))))
    p.arrive('B', () => { throw new Error('no such action') })
    p.arrive('C')
    await p.over('C', 'B')
    assert.equal(p.shown.join(''), '')
    slow()
    await settle()
    assert.equal(p.shown.join(''), 'AC')
    await assert.rejects(p.ends.B ?? Promise.resolve(), /no such action/)
    await p.over('A')
    p.stop()
  })

  for (const place of ['before', 'after']) {
    test(`a listener ${place} it may put its own rendering in place, around the one it found`, async () => {
      const target = new EventTarget()
      /** @type {string[]} */ const shown = []
      const custom = (/** @type {any} */ { detail }) => {
        const found = detail.render
        detail.render = (/** @type {string} */ what) => found(what.toLowerCase())
      }
      if (place === 'before') target.addEventListener('turbo:before-stream-render', custom)
      const stop = keepOrder(target)
      if (place === 'after') target.addEventListener('turbo:before-stream-render', custom)
      const events = ['A', 'B'].map((name) => {
        const event = new CustomEvent('turbo:before-stream-render', { detail: { newStream: name, render: (/** @type {string} */ what) => shown.push(what) } })
        // Node 20 tells the phase to the first listener only, browsers to all.
        let phase = 2
        Object.defineProperty(event, 'eventPhase', { get: () => phase })
        target.dispatchEvent(event)
        phase = 0
        return event
      })
      await events[1]?.detail.render('B')
      await events[0]?.detail.render('A')
      assert.equal(shown.join(''), 'ab')
      stop()
    })
  }

  test('what a listener prevents is left out', async () => {
    const p = page()
    p.target.addEventListener('turbo:before-stream-render', (/** @type {any} */ event) => event.detail.newStream === 'B' && event.preventDefault())
    for (const name of 'ABC') p.arrive(name)
    await p.over('C')
    assert.equal(p.shown.join(''), 'AC')
    p.stop()
  })

  test('a message is through when all that came with it is rendered, at once when that is nothing', async () => {
    const p = page()
    const view = { over: false }
    /** @type {any[]} */ const through = []
    deliver(view, () => [...'AB'].forEach((name) => p.arrive(name)), () => through.push(1))
    deliver(view, () => {}, () => through.push(2))
    await settle()
    assert.equal(through.length, 0)
    await p.over('A')
    assert.equal(through.length, 0)
    await p.over('B')
    assert.deepEqual(through, [1, 2])
    deliver(view, () => {}, () => through.push(3))
    await settle()
    assert.deepEqual(through, [1, 2, 3])
    p.stop()
  })

  test('what waits for a page that is gone is dropped; what others brought stays', async () => {
    const p = page()
    const view = { over: false }
    /** @type {string[]} */ const through = []
    deliver(view, () => p.arrive('A'), () => through.push('A'))
    p.arrive('form')
    view.over = true
    await p.over('A', 'form')
    assert.equal(p.shown.join(''), 'form')
    assert.deepEqual(through, [])
    p.stop()
  })
})
