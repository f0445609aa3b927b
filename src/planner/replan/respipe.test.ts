import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, PlanLayout, Profile } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import { takenOver, takeOver } from './respipe.ts';

const profile: Profile = {
  model: 'four layers',
  inputBytes: 0,
  labelBytes: 0,
  layers: ['1', '2', '3', '4'].map((name) => ({ name, outputBytes: 0, weightBytes: 2 ** 20, savedBytes: 0, flops: 1 })),
  batchSizes: [1],
  devices: { board: { forwardMs: [[1, 1, 1, 1]], backwardMs: [[2, 2, 2, 2]] } },
};
const cluster = (memoryMiB: number): Cluster => ({
  devices: ['a', 'b', 'c'].map((name) => ({ name, kind: 'board', memoryMiB })),
  links: { default: { bandwidthMbps: 1000 } },
});
const plan: PlanLayout = {
  ...{ planner: 'hand', schedule: 'async', batchSize: 1, microBatchSize: 1, microBatchCount: 1 },
  stages: [
    { layers: [0, 1], devices: ['a'], samples: [1], inFlight: 3 },
    { layers: [1, 2], devices: ['b'], samples: [1], inFlight: 2 },
    { layers: [2, 4], devices: ['c'], samples: [1], inFlight: 1 },
  ],
};

test('the next worker takes over, without balancing; the last one’s layers go to the stage before', () => {
  const cuts = (lost: string) => takenOver(plan, [lost]).stages.map(({ layers, devices }) => [...layers, ...devices]);
  assert.deepEqual(cuts('b'), [
    [0, 1, 'a'],
    [1, 4, 'c'],
  ]);
  assert.deepEqual(cuts('a'), [
    [0, 2, 'b'],
    [2, 4, 'c'],
  ]);
  assert.deepEqual(cuts('c'), [
    [0, 1, 'a'],
    [1, 4, 'b'],
  ]);
});

test('its period is that of the one who took over, and what does not fit is refused with its versions', () => {
  // Three layers of 3 ms on c; before, two.
  const { predicted } = takeOver({ plan, profile, cluster: cluster(100), lost: ['b'] });
  assert.equal(predicted.roundMs, 9);
  // Three layers of 1 MiB: weights, gradients and one version before.
  assert.equal(predicted.peakMemoryMiB.c, 9);
  assert.throws(
    () => takeOver({ plan, profile, cluster: cluster(8.5), lost: ['b'] }),
    (error) => error instanceof InputError && /"c" would have .* needs 9 MiB and has 8/.test(error.message),
  );
});
