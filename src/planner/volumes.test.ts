import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PlanLayout, Profile, StagePlan } from '../cluster/cluster.ts';
import { volumeBytes } from './volumes.ts';

const profile: Profile = {
  model: 'three',
  inputBytes: 7,
  labelBytes: 7,
  layers: [
    { name: 'a', outputBytes: 10, weightBytes: 1000, savedBytes: 0, flops: 1 },
    { name: 'b', outputBytes: 20, weightBytes: 3000, savedBytes: 0, flops: 1 },
    { name: 'c', outputBytes: 5, weightBytes: 6000, savedBytes: 0, flops: 1 },
  ],
  batchSizes: [1],
  devices: {},
};
const stage = (first: number, end: number, ...devices: string[]): StagePlan => ({
  layers: [first, end],
  devices,
  samples: devices.map((_, index) => (index === 0 ? 4 : 0)),
  inFlight: 1,
});
const plan = (...stages: StagePlan[]): PlanLayout => ({
  planner: 'test',
  schedule: '1f1b',
  batchSize: 40,
  microBatchSize: 4,
  microBatchCount: 10,
  stages,
});

test('eq. 2: ring AllReduce inside the groups, activations and gradients between them', () => {
  // 2·(3 − 1)·1000 + 2·(2 − 1)·9000 + 2·40·10
  assert.equal(volumeBytes(plan(stage(0, 1, 'x', 'y', 'z'), stage(1, 3, 'v', 'w')), profile), 4000 + 18_000 + 800);
  assert.equal(volumeBytes(plan(stage(0, 3, 'x', 'y')), profile), 2 * 10_000, 'G = 1: 2(|g| − 1)P');
  assert.equal(volumeBytes(plan(stage(0, 1, 'x'), stage(1, 2, 'y'), stage(2, 3, 'z')), profile), 2 * 40 * 30);
});

test('eq. 1: every virtual worker exchanges the whole model, and its pipeline carries its own samples', () => {
  const first = { stages: [stage(0, 2, 'x'), stage(2, 3, 'y')], microBatchCount: 7 };
  const second = { stages: [stage(0, 1, 'z'), stage(1, 3, 'w')], microBatchCount: 3 };
  const both: PlanLayout = { ...plan(...first.stages), virtualWorkers: [first, second] };
  assert.equal(volumeBytes(both, profile), 2 * 2 * 10_000 + 2 * 28 * 20 + 2 * 12 * 10);
  const one: PlanLayout = { ...plan(...first.stages), virtualWorkers: [{ ...first, microBatchCount: 10 }] };
  assert.equal(volumeBytes(one, profile), 2 * 40 * 20, 'G = 1: nothing is synchronized');
});
