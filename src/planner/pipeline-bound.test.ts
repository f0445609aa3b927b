import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRandom } from '../random.ts';
import { inferenceSchedule, schedules } from '../schedule/schedules.ts';
import { randomInstance } from '../testing/random-plans.ts';
import { randomLayouts, randomProblem, withFrozenPrefix } from '../testing/random-problems.ts';
import { lowerBoundMs } from './bounds.ts';
import { branchAndBound } from './branch-and-bound.ts';
import { simulatedMs } from './evaluate.ts';
import { fastestOfEvery } from './exhaustive.ts';
import { pipelineBoundMs } from './pipeline-bound.ts';
import { plan } from './plan.ts';
import { createProblem, type Problem, withMicroBatchSize } from './problem.ts';
import { finish, type Steps } from './steps.ts';

const budget = 1e9;
/** Plans of inference have a planner and a bound of their own. */
const all = Object.values(schedules).filter(({ name }) => name !== inferenceSchedule);

/** The bound if only the existence of a round of `highMs` is known. */
function boundMs(problem: Problem, highMs: number): number {
  const simpleMs = lowerBoundMs(problem);
  return finish(pipelineBoundMs([{ problem, boundMs: simpleMs }], simpleMs, highMs, { left: budget }));
}

const seedCount = Number(process.env['PLANNER_SEEDS'] ?? 40);

test(`never above exhaustive's optimum, and above the simple bound: ${seedCount} problems, two schedules each`, () => {
  let [count, better] = [0, 0];
  const gaps = { simple: 0, pipeline: 0 };
  for (let seed = 0; seed < seedCount; seed++) {
    const random = createRandom(seed, 41);
    const { profile, cluster } = randomInstance(seed, {
      deviceCount: 1 + random.integer(4),
      layerCount: 1 + random.integer(5),
    });
    const base = createProblem({
      profile: seed % 4 === 0 ? withFrozenPrefix(seed, profile) : profile,
      cluster,
      schedule: schedules['1f1b'],
      batchSize: 12,
      microBatchSize: 1,
      optimizerState: 0,
      replicateBatchDependent: false,
    });
    for (const schedule of [all[seed % 5], all[(seed + 2) % 5]]) {
      const problem = withMicroBatchSize(base, [1, 2, 3, 4][random.integer(4)] ?? 1, schedule);
      const optimum = fastestOfEvery(problem)?.roundMs;
      if (optimum === undefined) continue;
      const [simple, found] = [lowerBoundMs(problem), boundMs(problem, 3 * optimum)];
      assert.ok(found <= optimum, `seed ${seed}, ${schedule?.name}: bound ${found} ms, optimum ${optimum} ms`);
      assert.ok(found >= simple, `seed ${seed}, ${schedule?.name}`);
      count++;
      if (found > simple) better++;
      gaps.simple += optimum / simple - 1;
      gaps.pipeline += optimum / found - 1;
    }
  }
  assert.ok(better > count / 2, `better than the simple bound in ${better} of ${count}`);
  assert.ok(
    gaps.pipeline < 0.8 * gaps.simple,
    `mean gap ${gaps.pipeline / count}, of the simple bound ${gaps.simple / count}`,
  );
});

test(`no pipeline beats it: ${10 * seedCount} random ones on larger problems, and the plans of best`, () => {
  for (let seed = 0; seed < seedCount; seed++) {
    const random = createRandom(seed, 42);
    const { profile: of, cluster } = randomInstance(seed, {
      deviceCount: 4 + random.integer(9),
      layerCount: 10 + random.integer(30),
    });
    const profile = seed % 4 === 0 ? withFrozenPrefix(seed, of) : of;
    const roomy = { ...cluster, devices: cluster.devices.map((device) => ({ ...device, memoryMiB: 1e6 })) };
    const plain = randomProblem(seed, profile, roomy);
    const problem = withMicroBatchSize(plain, plain.microBatchSize, all[seed % all.length]);
    const rounds = Array.from({ length: 10 }, (_, index) =>
      simulatedMs(problem, randomLayouts(10 * seed + index, problem)),
    );
    if (seed % 50 === 1) rounds.push(bestMs(problem));
    const least = Math.min(...rounds);
    const found = boundMs(problem, 3 * least);
    assert.ok(found <= least, `seed ${seed}: bound ${found} ms, a pipeline takes ${least} ms`);
  }
});

test('long searches yield often, so that their driver can serve a network in between', () => {
  const { profile, cluster } = randomInstance(7, { deviceCount: 5, layerCount: 120 });
  const roomy = { ...cluster, devices: cluster.devices.map((device) => ({ ...device, memoryMiB: 1e6 })) };
  const base = randomProblem(7, profile, roomy);
  const problem = withMicroBatchSize(base, base.microBatchSize, schedules['1f1b-overlap']);
  const highMs = 3 * lowerBoundMs(problem);
  const searches = [
    (limit: { left: number }) => pipelineBoundMs([{ problem, boundMs: 0 }], 0, highMs, limit),
    (limit: { left: number }) => branchAndBound(problem, highMs, limit),
  ];
  for (const [index, search] of searches.entries()) {
    const limit = { left: 4e5 };
    const steps: Steps<unknown> = search(limit);
    let [before, longest] = [limit.left, 0];
    for (let isDone = false; !isDone; before = limit.left) {
      isDone = steps.next().done === true;
      longest = Math.max(longest, before - limit.left);
    }
    assert.ok(limit.left < 3.5e5, `search ${index} has little to do: ${limit.left} units are left`);
    assert.ok(longest < 10_000, `search ${index}: ${longest} units without a break`);
  }
});

/** What planner best finds with the problem's schedule. */
function bestMs({ profile, cluster, schedule, microBatchSize, microBatchCount, optimizerState }: Problem): number {
  const batchSize = microBatchSize * microBatchCount;
  const options = { profile, cluster, schedule: schedule.name, batchSize, microBatchSize, optimizerState };
  return plan({ ...options, planner: 'best' }).predicted.roundMs;
}
