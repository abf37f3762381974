import assert from 'node:assert/strict'
import { once } from 'node:events'
import { test } from 'node:test'
import { Worker } from 'node:worker_threads'

const RUNS = Number(process.env.CHRONOCAST_RUNS ?? 20_000)
const SEED = Number(process.env.CHRONOCAST_SEED ?? Date.now() % 2 ** 31)

test(`B50, B161: ${RUNS} schedules of cuts, losses and disorder against the reference model`, { timeout: 400_000 }, async (t) => {
  t.diagnostic(`seed ${SEED}; again with CHRONOCAST_SEED=${SEED}, and CHRONOCAST_PATH for one of its runs`)
  const worker = new Worker(new URL('./support/model-run.js', import.meta.url), {
    workerData: { numRuns: RUNS, seed: SEED, path: process.env.CHRONOCAST_PATH },
  })
  t.after(() => worker.terminate())
  const [{ failed, report, tally }] = await once(worker, 'message')
  assert.ok(!failed, report)
  t.diagnostic(JSON.stringify(tally))
  // The schedules are worth something only if all of this happens in them.
  for (const [what, count] of Object.entries(tally)) assert.ok(count > RUNS / 100, `too few ${what}: ${count}`)
})
