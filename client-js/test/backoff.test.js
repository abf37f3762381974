import assert from 'node:assert/strict'
import { test } from 'node:test'
import { backoff } from '../src/backoff.js'

test('the window doubles up to the cap and is drawn from as a whole', () => {
  const windows = [0, 1, 2, 3, 4, 5, 6, 7, 2000].map((attempt) => backoff(attempt, 1, 500, 30_000))
  assert.deepEqual(windows, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000])
  assert.equal(backoff(5, 0, 500, 30_000), 0)
  assert.equal(backoff(5, 0.25, 500, 30_000), 4000)
})
