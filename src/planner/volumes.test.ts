import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Profile } from '../cluster/cluster.ts';
import { dataParallelVolume, pipelineVolume, volumeBytes } from './volumes.ts';

test('eq. 1: weights twice for each group, activations and gradients at every border', () => {
  const groups = [
    { samples: 10, borderBytes: [100, 50] },
    { samples: 6, borderBytes: [] },
  ];
  assert.equal(dataParallelVolume(groups, 1000), 2 * 2 * 1000 + 2 * 10 * 150);
});

test('eq. 1: a single group needs no parameter server', () => {
  assert.equal(dataParallelVolume([{ samples: 10, borderBytes: [100, 50] }], 1000), 3000);
});

test('eq. 2: 2(|g| − 1) times the weights of each group, activations and gradients between groups', () => {
  const groups = [
    { deviceCount: 3, weightBytes: 100, borderBytes: 7 },
    { deviceCount: 1, weightBytes: 500, borderBytes: 9999 },
  ];
  assert.equal(pipelineVolume(groups, 16), 2 * 2 * 100 + 2 * 16 * 7);
});

test('eq. 2: a single group is data parallel only', () => {
  assert.equal(pipelineVolume([{ deviceCount: 5, weightBytes: 100, borderBytes: 7 }], 16), 800);
});

const profile: Profile = {
  model: 'three',
  inputBytes: 0,
  labelBytes: 0,
  layers: [10, 20, 30].map((weightBytes, layer) => ({
    name: `l${layer}`,
    outputBytes: layer + 1,
    weightBytes,
    savedBytes: 0,
    flops: 0,
  })),
  batchSizes: [1],
  devices: {},
};

test('the volume of a plan', () => {
  const stages = [
    { layers: [0, 2] as const, devices: ['a', 'b'], samples: [2, 2], inFlight: 3 },
    { layers: [2, 3] as const, devices: ['c'], samples: [4], inFlight: 1 },
  ];
  const layout = { planner: 'x', schedule: '1f1b', batchSize: 8, microBatchSize: 4, microBatchCount: 2, stages };
  assert.equal(volumeBytes(layout, profile), 2 * 30 + 2 * 8 * 2);
  const alone = {
    stages: [{ layers: [0, 3] as const, devices: ['d'], samples: [4], inFlight: 1 }],
    microBatchCount: 1,
  };
  assert.equal(
    volumeBytes({ ...layout, virtualWorkers: [{ stages, microBatchCount: 1 }, alone] }, profile),
    2 * 2 * 60 + 2 * 4 * 2,
  );
});
