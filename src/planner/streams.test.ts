// Planning a stream: the evaluator is the simulator's period, `best` is the oracle's optimum, bounds are bounds.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan } from '../cluster/cluster.ts';
import { InputError } from '../errors.ts';
import { checkProgram } from '../schedule/check.ts';
import { program } from '../schedule/generate.ts';
import { schedules } from '../schedule/schedules.ts';
import { stalenessOf } from '../schedule/staleness.ts';
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
import { type PlanInput, plan } from './plan.ts';
import { withMicroBatchSize } from './problem.ts';
import { withRecomputation } from './recomputation.ts';
import { streamPaces } from './streams.ts';

test('the evaluator equals the simulated period to the last bit, or bounds it, on 300 random pipelines', () => {
  let [exactCount, groupCount] = [0, 0];
  for (let seed = 0; seed < 300; seed++) {
    const instance = randomInstance(seed, { deviceCount: 1 + (seed % 6), layerCount: 1 + (seed % 9) });
    const stepped = seed % 5 === 0 ? withSteps(seed, instance.profile) : instance.profile;
    const partly = seed % 3 === 0 ? withFrozenPrefix(seed, stepped) : stepped;
    const profile = seed % 2 === 0 ? withRecomputed(seed, partly) : partly;
    const any = withRecomputation(randomProblem(seed, profile, instance.cluster));
    const problem = withMicroBatchSize(any, any.microBatchSize, streamPaces[seed % 2]);
    const layouts = randomLayouts(seed, problem);
    const layout = layoutPlan(problem, 'random', layouts);
    const tick = program(layout);
    checkProgram(tick, layout);
    const { roundMs, devices } = simulate(tick, layout, profile, instance.cluster, {
      events: false,
      optimizerState: problem.optimizerState,
    });
    if (layouts.some(({ devices: own }) => own.length > 1)) groupCount++;
    const evaluator = new Evaluator(problem);
    const ours = evaluator.roundMs(layouts);
    if (evaluator.isExact) {
      exactCount++;
      assert.equal(ours, roundMs, `seed ${seed}`);
    } else assert.ok(ours <= roundMs * (1 + 1e-12), `seed ${seed}: ${ours} is above ${roundMs}`);
    assert.equal(evaluator.roundMs(layouts, ours / 2), Number.POSITIVE_INFINITY);
    assert.ok(Object.values(devices).every(({ idleFraction }) => idleFraction > -1e-9));
  }
  assert.ok(exactCount > 150 && exactCount < 300 && groupCount > 50, `${exactCount} exact, ${groupCount} with groups`);
});

function found(seed: number, planner: string, more: Partial<PlanInput> = {}): Plan | undefined {
  const { profile, cluster } = randomInstance(seed, { deviceCount: 1 + (seed % 3), layerCount: 2 + (seed % 4) });
  try {
    return plan({
      ...{ profile, cluster, planner, schedule: 'async', batchSize: 4, optimizerState: (seed % 3) as 0 | 1 | 2 },
      ...{ replicateBatchDependent: true, ...more },
    });
  } catch (error) {
    if (error instanceof InputError) return undefined;
    throw error;
  }
}

test('best is the oracle’s optimum, proven, on 24 random problems; others are never better', () => {
  let refusedCount = 0;
  for (let seed = 0; seed < 24; seed++) {
    const oracle = found(seed, 'exhaustive');
    const best = found(seed, 'best');
    assert.equal(best?.predicted.roundMs, oracle?.predicted.roundMs, `seed ${seed}`);
    if (oracle === undefined || best === undefined) {
      refusedCount++;
      continue;
    }
    assert.equal(best.schedule, 'async');
    assert.equal(best.predicted.lowerBoundMs, best.predicted.roundMs, `seed ${seed}`);
    for (const planner of ['asteroid', 'ftpipehd', 'pipedream', 'straight', 'dp', 'single', 'gpipe', 'dapple']) {
      const other = found(seed, planner);
      if (other === undefined) continue;
      assert.equal(other.schedule, 'async');
      assert.ok(other.predicted.roundMs >= oracle.predicted.roundMs * (1 - 1e-12), `seed ${seed}, ${planner}`);
      assert.ok(
        (other.predicted.lowerBoundMs ?? 0) <= oracle.predicted.roundMs * (1 + 1e-9),
        `seed ${seed}, ${planner}`,
      );
    }
  }
  assert.ok(refusedCount < 12, `${refusedCount} refused`);
});

test('within a limit of staleness: the oracle’s optimum, and nobody is staler, on 12 random problems', () => {
  for (let seed = 0; seed < 12; seed++) {
    const more = { maxStaleness: seed % 2 };
    const oracle = found(seed, 'exhaustive', more);
    assert.equal(found(seed, 'best', more)?.predicted.roundMs, oracle?.predicted.roundMs, `seed ${seed}`);
    for (const planner of ['best', 'asteroid', 'ftpipehd', 'pipedream', 'straight']) {
      const other = found(seed, planner, more);
      assert.ok(
        other === undefined || Math.max(...stalenessOf(other)) <= more.maxStaleness,
        `seed ${seed}, ${planner}`,
      );
    }
  }
});

test('without a wish nobody gets a stream', () => {
  const { profile, cluster } = randomInstance(5, { deviceCount: 3, layerCount: 5 });
  for (const planner of ['best', 'exhaustive', 'asteroid']) {
    const { schedule } = plan({ profile, cluster, planner, batchSize: 4, optimizerState: 0 });
    assert.notEqual(schedule, schedules.async.name);
  }
});
