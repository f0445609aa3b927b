// Plans whose work is done by other devices than they name.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan } from '../../cluster/cluster.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { devicesOf, withPresent } from './renamed-plan.ts';

const plan: Plan = {
  ...handPlan({ schedule: 'inference', cuts: [1], shares: [[2], [1, 1]], microBatchCount: 1 }, 2),
  predicted: { roundMs: 1, samplesPerS: 2000, peakMemoryMiB: { a: 1, b: 2, c: 3 } },
};

test('devices that are there take the places of those that are gone, and hold what they held', () => {
  assert.deepEqual(devicesOf(plan), ['a', 'b', 'c']);
  assert.equal(withPresent(plan, ['c', 'b', 'a', 'd']), plan);
  const found = withPresent(plan, ['a', 'c', 'b-2', 'd']);
  assert.deepEqual(
    found?.stages.map(({ devices }) => devices),
    [['a'], ['b-2', 'c']],
  );
  assert.deepEqual(found?.predicted.peakMemoryMiB, { a: 1, 'b-2': 2, c: 3 });
});

test('where too few are there, nobody takes a place', () => {
  assert.equal(withPresent(plan, ['a', 'd']), undefined);
});
