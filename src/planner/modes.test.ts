// What modes cost, and the choice: a straight pipeline whose rounds have bubbles, so that overlapping pays.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, Profile } from '../cluster/cluster.ts';
import { InputError } from '../errors.ts';
import { compareModes, type ModeCost, type ModesInput } from './modes.ts';

const profile: Profile = {
  model: 'four layers',
  inputBytes: 0,
  labelBytes: 0,
  layers: ['1', '2', '3', '4'].map((name) => ({
    ...{ name, outputBytes: 1000, weightBytes: 2 ** 20, savedBytes: 2 ** 18, flops: 1 },
    batchDependent: true,
  })),
  batchSizes: [1],
  devices: { board: { forwardMs: [[1, 1, 1, 1]], backwardMs: [[2, 2, 2, 2]] } },
};
const cluster = (memoryMiB: number): Cluster => ({
  devices: ['a', 'b', 'c', 'd'].map((name) => ({ name, kind: 'board', memoryMiB })),
  links: { default: { bandwidthMbps: 1000 } },
});
const question = (memoryMiB: number, more: Partial<ModesInput> = {}): ModesInput => ({
  ...{ profile, cluster: cluster(memoryMiB), batchSize: 4, microBatchSize: 1, planner: 'best', optimizerState: 1 },
  ...more,
});

const costs = (input: ModesInput): Readonly<Record<string, ModeCost | undefined>> =>
  Object.fromEntries(compareModes(input).modes.map((each) => [each.mode, 'refusal' in each ? undefined : each]));

test('four devices, four micro-batches: bubbles against versions of the weights; the faster one is taken', () => {
  const { sync, async } = costs(question(100));
  assert.ok(sync !== undefined && async !== undefined);
  // Rounds that split the backward pass: (4 − 1) forwards to fill, then 4 · 3 ms. A tick: 4 · 3 ms, a little more with
  // four micro-batches in flight, which is not worth the staleness of seven.
  assert.deepEqual(
    [sync, async].map(({ roundMs }) => Number(roundMs.toFixed(3))),
    [15.048, 12.048],
  );
  assert.deepEqual(
    [sync, async].map(({ bubbleShare }) => Number(bubbleShare.toFixed(3))),
    [0.203, 0.004],
  );
  assert.deepEqual([sync.staleness, async.staleness], [0, 1]);
  assert.deepEqual([sync.versionsMiB.a, async.versionsMiB.a], [0, 1]);
  assert.deepEqual(
    async.plan.stages.map(({ devices }) => async.peakMemoryMiB[devices[0] ?? '']),
    [5, 4.75, 4.5, 4.25],
  );
  assert.equal(compareModes(question(100)).chosen.mode, 'async');
});

test('what the user allows: a mode, and how far weights may lag behind', () => {
  assert.equal(compareModes(question(100, { allowed: ['sync'] })).chosen.mode, 'sync');
  // Two stages of one micro-batch lag behind by one round; four would by three.
  const whole = (maxStaleness: number): ModeCost | undefined =>
    costs(question(100, { batchSize: 1, maxStaleness })).async;
  assert.deepEqual(
    [0, 1, 2, 3].map((most) => [whole(most)?.staleness, whole(most)?.plan.stages.length]),
    [
      [0, 1],
      [1, 2],
      [2, 3],
      [3, 4],
    ],
  );
});

test('a mode that fits nowhere says which device lacks what; without any, that is the error', () => {
  // Weights, gradients, momentum and four times a quarter: 4 MiB a device. A version of the weights more does not fit.
  const { modes, chosen } = compareModes(question(4.5));
  assert.equal(chosen.mode, 'sync');
  const refused = modes.find((each) => 'refusal' in each);
  assert.match(JSON.stringify(refused), /device ."a." has 4\.5 MiB and lacks \d+ MiB/);
  assert.throws(() => compareModes(question(1)), InputError);
});
