import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster } from '../cluster/cluster.ts';
import { program } from '../schedule/generate.ts';
import { simulate } from '../simulator/simulate.ts';
import { randomInstance } from '../testing/random-plans.ts';
import {
  randomLayouts,
  randomProblem,
  withFrozenPrefix,
  withRecomputed,
  withSteps,
} from '../testing/random-problems.ts';
import { Evaluator } from './evaluate.ts';
import { layoutPlan } from './layout.ts';
import { withRecomputation } from './recomputation.ts';

/** The cluster with so little memory that some devices' activations do not fit. */
function tight(seed: number, cluster: Cluster): Cluster {
  return {
    ...cluster,
    devices: cluster.devices.map((device, index) => ({ ...device, memoryMiB: 4 + ((7 * seed + 13 * index) % 40) })),
  };
}

test('the evaluator equals the simulator to the last bit, or bounds it, on 1000 random pipelines', () => {
  let [exactCount, againCount] = [0, 0];
  for (let seed = 0; seed < 1000; seed++) {
    const instance = randomInstance(seed, { deviceCount: 1 + (seed % 7), layerCount: 1 + (seed % 11) });
    const { cluster } = instance;
    const stepped = seed % 5 === 0 ? withSteps(seed, instance.profile) : instance.profile;
    const partly = seed % 3 === 0 ? withFrozenPrefix(seed, stepped) : stepped;
    const profile = seed % 2 === 0 ? withRecomputed(seed, partly) : partly;
    const problem = withRecomputation(randomProblem(seed, profile, tight(seed, cluster)));
    const layouts = randomLayouts(seed, problem);
    const plan = layoutPlan(problem, 'random', layouts);
    if (plan.stages.some(({ savedBytes }) => savedBytes !== undefined)) againCount++;
    const { roundMs } = simulate(program(plan), plan, profile, cluster, { events: false });
    const evaluator = new Evaluator(problem);
    const ours = evaluator.roundMs(layouts);
    if (evaluator.isExact) {
      exactCount++;
      assert.equal(ours, roundMs, `seed ${seed}`);
    } else assert.ok(ours <= roundMs, `seed ${seed}: the bound ${ours} ms is above the simulated ${roundMs} ms`);
    assert.equal(evaluator.roundMs(layouts, ours * (1 + 1e-9)), ours);
    assert.equal(evaluator.roundMs(layouts, ours / 2), Number.POSITIVE_INFINITY);
  }
  assert.ok(againCount > 100, `${againCount} compute something again`);
  assert.ok(exactCount > 600 && exactCount < 1000, `${exactCount} exact: both cases should be met`);
});
