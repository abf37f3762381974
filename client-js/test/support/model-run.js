/**
 * The property that the model test checks, in a worker: the test runner follows
 * every promise of its own thread, which takes longer than the runs do.
 */

import { parentPort, workerData } from 'node:worker_threads'
import fc from 'fast-check'
import { World, tally } from './model.js'

/** @type {fc.Arbitrary<import('./model.js').Op>} */
const op = fc.record({
  do: fc.oneof(
    { weight: 8, arbitrary: fc.constantFrom('publish', 'burst', 'open') },
    { weight: 6, arbitrary: fc.constantFrom('cut', 'wait', 'ping', 'spoil') },
    { weight: 3, arbitrary: fc.constantFrom('doze', 'renumber', 'trim', 'close', 'mute', 'listen', 'disconnect', 'connect') },
  ),
  n: fc.nat(1000),
})

const property = fc.asyncProperty(
  fc.scheduler(),
  fc.constantFrom('ordered', 'shuffled', 'hostile'),
  fc.nat(),
  fc.array(op, { minLength: 5, maxLength: 30 }),
  async (s, manner, seed, ops) => {
    const world = new World(manner, seed, (task) => void s.schedule(Promise.resolve()).then(task))
    world.run({ do: 'open', n: seed % 1000 })
    s.scheduleSequence(
      ops.map((op) => async () => {
        world.run(op)
        world.check()
      }),
    )
    await s.waitIdle()
    await world.heal()
  },
)

const { numRuns, seed, path } = workerData
const details = await fc.check(property, { numRuns, seed, ...(path && { path }) })
const cause = details.errorInstance instanceof Error ? details.errorInstance.stack : details.errorInstance
parentPort?.postMessage({ failed: details.failed, report: `${fc.defaultReportMessage(details)}\n${cause}`, tally })
