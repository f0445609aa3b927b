// Against the simulator (periods, latencies), an enumeration of all pipelines (the planner), and the other planners.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import { program } from '../../schedule/generate.ts';
import { simulate } from '../../simulator/simulate.ts';
import { randomCluster, randomInstance, randomPlan, randomProfile } from '../../testing/random-plans.ts';
import { randomLayouts } from '../../testing/random-problems.ts';
import { everyPipeline } from '../exhaustive.ts';
import type { StageLayout } from '../problem.ts';
import { evaluate, isBetter, type Objective, objectives, type Rated, rate } from './evaluate.ts';
import { improve } from './improve.ts';
import { type InferencePlanInput, planInference } from './plan.ts';
import { fits, inferenceProblem } from './problem.ts';
import { searchOrder } from './search.ts';

/** Random times without what a label or a result costs: the simulator counts neither in a plan of inference. */
function instance(seed: number): { readonly profile: Profile; readonly cluster: Cluster } {
  const some = randomPlan(seed);
  const made = randomInstance(seed, { deviceCount: 4, layerCount: 6 });
  const { dataDevice: _, ...cluster } = seed % 2 === 0 ? randomCluster(seed, some) : made.cluster;
  const profile = seed % 2 === 0 ? randomProfile(seed, some, cluster) : made.profile;
  const devices = Object.entries(profile.devices).map(([name, { frameMs: _, ...times }]) => [name, times]);
  return { cluster, profile: { ...profile, devices: Object.fromEntries(devices) as Profile['devices'] } };
}

function roundMs(
  { profile, cluster }: ReturnType<typeof instance>,
  layouts: readonly StageLayout[],
  [microBatchSize, microBatchCount]: readonly [number, number],
): number {
  const plan = {
    ...{ planner: 'test', schedule: 'inference', microBatchSize, microBatchCount },
    batchSize: microBatchSize * microBatchCount,
    stages: layouts.map(({ layers, devices, samples }) => ({
      ...{ layers, samples, inFlight: microBatchCount },
      devices: devices.map((place) => cluster.devices[place]?.name ?? ''),
    })),
  };
  return simulate(program(plan), plan, profile, cluster, { events: false }).roundMs;
}

test('period and latency are the simulator’s, on 100 random pipelines', () => {
  for (let seed = 0; seed < 100; seed++) {
    const given = instance(seed);
    const problem = inferenceProblem({ ...given, microBatchSize: 4 });
    const layouts = randomLayouts(seed, problem.base);
    const { periodMs, latencyMs } = evaluate(problem, layouts);
    const simulatedMs = (roundMs(given, layouts, [4, 48]) - roundMs(given, layouts, [4, 24])) / 24;
    assert.ok(Math.abs(periodMs / simulatedMs - 1) < 1e-9, `seed ${seed}: ${periodMs}, simulated ${simulatedMs}`);
    const aloneMs = roundMs(given, layouts, [4, 1]);
    assert.ok(Math.abs(latencyMs / aloneMs - 1) < 1e-9, `seed ${seed}: ${latencyMs}, simulated ${aloneMs}`);
  }
});

const small = (seed: number, objective: Objective): Omit<InferencePlanInput, 'planner'> => ({
  ...randomInstance(seed, { deviceCount: 3, layerCount: 4 + (seed % 3) }),
  ...{ batchSize: 4, microBatchSize: seed % 4 === 0 ? 2 : 4, objective },
});

function resultOf(plan: Plan, objective: Objective): number {
  return objective === 'throughput' ? plan.predicted.roundMs : (plan.predicted.latencyMs ?? Number.NaN);
}

function planOrNothing(input: InferencePlanInput): Plan | undefined {
  try {
    return planInference(input);
  } catch (error) {
    if (error instanceof InputError) return undefined;
    throw error;
  }
}

test('small problems: `best` is the best of all pipelines, proven by its bound', () => {
  for (let seed = 0; seed < 16; seed++) {
    for (const objective of objectives) {
      const input = small(seed, objective);
      const problem = inferenceProblem({ ...input, microBatchSize: input.microBatchSize ?? 1 });
      let least: Rated | undefined;
      for (const layouts of everyPipeline(problem.base)) {
        const rated = fits(problem, layouts) ? rate(problem, layouts) : undefined;
        if (rated !== undefined && isBetter(rated, least, objective)) least = rated;
      }
      const found = planOrNothing({ ...input, planner: 'best' });
      if (least === undefined || found === undefined) assert.equal(found, least, `seed ${seed}`);
      else {
        const wanted = objective === 'throughput' ? (least.periodMs * 4) / problem.microBatchSize : least.latencyMs;
        assert.equal(resultOf(found, objective), wanted, `seed ${seed}`);
        const bound = objective === 'throughput' ? found.predicted.lowerBoundMs : found.predicted.latencyBoundMs;
        assert.equal(bound, wanted);
      }
    }
  }
});

test('search and small changes find the best or nearly that without trying all', () => {
  const ratios: number[] = [];
  for (let seed = 0; seed < 24; seed++) {
    for (const objective of objectives) {
      const input = small(seed, objective);
      const best = planOrNothing({ ...input, planner: 'best' });
      if (best === undefined) continue;
      const problem = inferenceProblem({ ...input, microBatchSize: input.microBatchSize ?? 1 });
      const limits = { groupLimit: 3, skipLimit: 3 };
      let found: Rated | undefined;
      for (const order of [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
      ]) {
        const layouts = searchOrder(problem, order, objective, limits, Number.POSITIVE_INFINITY);
        const improved = layouts === undefined ? undefined : improve(rate(problem, layouts), objective);
        if (improved !== undefined && isBetter(improved, found, objective)) found = improved;
      }
      assert.ok(found !== undefined && fits(problem, found.layouts));
      const value =
        objective === 'throughput' ? (found.periodMs * input.batchSize) / problem.microBatchSize : found.latencyMs;
      ratios.push(value / resultOf(best, objective));
    }
  }
  assert.ok(
    ratios.every((ratio) => ratio > 1 - 1e-9 && ratio < 1.1),
    `${Math.max(...ratios)}`,
  );
  assert.ok(ratios.filter((ratio) => ratio < 1 + 1e-9).length >= 0.9 * ratios.length, `${ratios}`);
});

test('larger problems: `best` is not worse than any other planner, and no planner is below the bounds', () => {
  for (let seed = 0; seed < 6; seed++) {
    for (const objective of objectives) {
      const input = {
        ...randomInstance(seed, { deviceCount: 7, layerCount: 16 }),
        batchSize: 8,
        microBatchSize: 8,
        objective,
      };
      const plans = ['pipeedge', 'even', 'single', 'dp', 'best'].flatMap(
        (planner) => planOrNothing({ ...input, planner }) ?? [],
      );
      const best = plans.at(-1);
      for (const plan of plans) {
        assert.ok(best !== undefined && resultOf(best, objective) <= resultOf(plan, objective), `seed ${seed}`);
        assert.ok(plan.predicted.roundMs >= (plan.predicted.lowerBoundMs ?? 0) * (1 - 1e-9));
        assert.ok((plan.predicted.latencyMs ?? 0) >= (plan.predicted.latencyBoundMs ?? 0) * (1 - 1e-9));
      }
    }
  }
});

test('fewer bits shorten what a slow link binds; what fits nowhere, and unknown planners, are refused', () => {
  const { profile, cluster } = randomInstance(1, { deviceCount: 3, layerCount: 6 });
  const { dataDevice: _, ...rest } = cluster;
  const slow = { ...rest, links: { default: { bandwidthMbps: 1 } } };
  const input = { profile, cluster: slow, batchSize: 1, planner: 'pipeedge', objective: 'throughput' } as const;
  const even = { ...input, planner: 'even' };
  const fewer = planInference({ ...even, encoding: 'uint4' });
  assert.deepEqual(fewer.compression, { activation: 'uint4' });
  assert.ok(fewer.predicted.roundMs < planInference(even).predicted.roundMs);
  const tiny = { ...slow, devices: slow.devices.map((device) => ({ ...device, memoryMiB: 0.001 })) };
  assert.throws(() => planInference({ ...input, cluster: tiny }), /finds no way to hold the model: .* MiB/);
  assert.throws(() => planInference({ ...input, planner: 'gpipe' }), /no planner "gpipe" of inference; use one of/);
});
