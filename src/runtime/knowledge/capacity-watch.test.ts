import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan, Profile } from '../../cluster/cluster.ts';
import type { RoundResult } from '../protocol/messages.ts';
import { CapacityWatch } from './capacity-watch.ts';
import { isRepartitionDue, recoveryPolicies } from './recovery-policies.ts';

const times = (factor: number) => ({
  forwardMs: [[1 * factor, 2 * factor, 0]],
  backwardMs: [[2 * factor, 4 * factor, 0]],
});
const profile: Profile = {
  ...{ model: 'three layers', inputBytes: 0, labelBytes: 0, batchSizes: [1] },
  layers: ['1', '2', '3'].map((name) => ({ name, outputBytes: 0, weightBytes: 8, savedBytes: 0, flops: 1 })),
  devices: { a: times(1), b: times(7), c: times(1) },
};
const plan: Plan = {
  ...{ planner: 'hand', schedule: 'async', batchSize: 2, microBatchSize: 1, microBatchCount: 2 },
  stages: ['a', 'b', 'c'].map((device, index) => ({
    ...{ layers: [index, index + 1] as const, devices: [device], samples: [1], inFlight: 3 - index },
  })),
  predicted: { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} },
};
const took = (busyMs: Readonly<Record<string, number>>): Record<string, RoundResult> =>
  Object.fromEntries(
    Object.entries(busyMs).map(([device, ms]) => [
      device,
      {
        ...{ round: 0, lossSum: 0, correctCount: 0, squaredNorm: 0, finite: true, roundMs: ms },
        busyMs: ms,
      },
    ]),
  );

test('a capacity is the mean of the batches over what the central node takes for these layers, and is kept', () => {
  const watch = new CapacityWatch();
  assert.deepEqual(watch.estimate(plan, profile), {}, 'without a central node nobody has one');
  const alike = watch.begin(profile, ['a', 'b', 'c']);
  assert.deepEqual(alike.devices.b, profile.devices.a, 'at first all are as fast as the central node');
  // Two micro-batches of 2 + 4 ms on the central node.
  watch.add(took({ a: 60, b: 30, c: 5 }));
  watch.add(took({ a: 60, b: 42, c: 5 }));
  assert.deepEqual(watch.estimate(plan, profile), { a: 1, b: 3 }, 'layers that take no time say nothing of c');
  watch.layoutBegins();
  watch.add(took({ c: 5 }));
  assert.deepEqual(watch.estimate(plan, profile), { a: 1, b: 3 }, 'b has reported nothing since');
  assert.deepEqual(watch.begin(profile, ['b', 'c']).devices.b?.forwardMs, [[3, 6, 0]]);
});

test('a re-partition is due after 10 rounds, and then every 100', () => {
  const due = Array.from({ length: 320 }, (_, rounds) => rounds).filter((rounds) =>
    isRepartitionDue(recoveryPolicies.ftpipehd, rounds),
  );
  assert.deepEqual(due, [10, 110, 210, 310]);
  assert.equal(isRepartitionDue(recoveryPolicies.asteroid, 10), false);
});
