import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, Plan, Profile } from '../cluster/cluster.ts';
import { createRandom } from '../random.ts';
import { refreshProfile } from './drift.ts';

const layer = (name: string): Profile['layers'][number] => ({ name, outputBytes: 4, weightBytes: 4, savedBytes: 4, flops: 1 });
const profile: Profile = {
  model: 'two layers',
  inputBytes: 4,
  labelBytes: 4,
  layers: [layer('one'), layer('two')],
  batchSizes: [1],
  devices: { board: { forwardMs: [[1, 2]], backwardMs: [[3, 4]] } },
};
const cluster: Cluster = {
  devices: ['a', 'b'].map((name) => ({ name, kind: 'board', memoryMiB: 100 })),
  links: { default: { bandwidthMbps: 1000 } },
};
/** a computes 5 · (1 + 3) = 20 ms a round, b 5 · (2 + 4) = 30. */
const plan: Plan = {
  planner: 'hand',
  schedule: '1f1b',
  batchSize: 5,
  microBatchSize: 1,
  microBatchCount: 5,
  stages: [
    { layers: [0, 1], devices: ['a'], samples: [1], inFlight: 3 },
    { layers: [1, 2], devices: ['b'], samples: [1], inFlight: 1 },
  ],
  predicted: { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} },
};

test('a device that falls to a quarter of its speed is told after five such rounds of eight; only its times change', () => {
  const rounds = (slowCount: number): readonly number[] => [...new Array(20).fill(20), ...new Array(slowCount).fill(80)];
  assert.deepEqual(refreshProfile(profile, plan, cluster, { a: rounds(3), b: new Array(23).fill(30) }), { profile, drift: {} });
  const { profile: found, drift } = refreshProfile(profile, plan, cluster, { a: rounds(5), b: new Array(25).fill(30) });
  assert.deepEqual(drift, { a: 4 });
  assert.deepEqual(found.devices, { board: profile.devices['board'], a: { forwardMs: [[4, 8]], backwardMs: [[12, 16]] } });
  // With the profile refreshed, the same rounds are as expected; when the device recovers, that is told too.
  assert.deepEqual(refreshProfile(found, plan, cluster, { a: rounds(5) }).drift, {});
  assert.deepEqual(refreshProfile(found, plan, cluster, { a: new Array(8).fill(20) }).drift, { a: 0.25 });
});

test('jitter of a fifth, single rounds that take ten times as long, and fewer than five rounds do not count', () => {
  for (let seed = 0; seed < 100; seed++) {
    const random = createRandom(seed, 5);
    const a = Array.from({ length: 12 }, (_, round) => 20 * (round % 4 === 1 ? 10 : 0.85 + 0.35 * random.uniform()));
    const { profile: same, drift } = refreshProfile(profile, plan, cluster, { a, b: [300, 300, 300, 300], stranger: [1, 1, 1, 1, 1] });
    assert.deepEqual(drift, {}, `seed ${seed}`);
    assert.equal(same, profile);
  }
});
