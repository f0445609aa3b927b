import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, PlanLayout, Profile } from '../cluster/cluster.ts';
import { links } from '../cluster/links.ts';
import { allReduceMs, dominantStep, pipelineSteps, roundLatencyMs, type Step, transferMs } from './cost.ts';

const step = (forwardMs: number, backwardMs: number, allReduce = 0): Step => ({
  forwardMs,
  backwardMs,
  allReduceMs: allReduce,
});

test('eq. 4–6 by hand, the last step dominant', () => {
  // Aligned: 4·3 = 12, 4·1 + 3 = 7, 4·6 + 4 = 28. T_w = 0, 1, 1.5. T_e = 24 + 4, 24 + 1, 24.
  assert.equal(dominantStep([step(1, 2), step(0.5, 0.5), step(2, 4)], 4), 2);
  assert.equal(roundLatencyMs([step(1, 2), step(0.5, 0.5), step(2, 4)], 4), 28);
  assert.equal(roundLatencyMs([step(1, 2, 10), step(0.5, 0.5), step(2, 4)], 4), 38, 'the first step reduces last');
  assert.equal(roundLatencyMs([step(1, 2), step(0.5, 0.5), step(2, 4, 20)], 4), 1.5 + 24 + 20);
});

test('eq. 4–6 by hand, the first step dominant', () => {
  // T_e = 4·9, 36 − 9, 36 − 10; T_w = 0, 3, 3.5.
  assert.equal(dominantStep([step(3, 6), step(0.5, 0.5), step(2, 4)], 4), 0);
  assert.equal(roundLatencyMs([step(3, 6), step(0.5, 0.5), step(2, 4)], 4), 36);
  assert.equal(roundLatencyMs([step(3, 6), step(0.5, 0.5), step(2, 4, 8)], 4), 3.5 + 26 + 8);
});

test('eq. 4–6 by hand, communication dominant', () => {
  assert.equal(dominantStep([step(1, 1), step(5, 5), step(1, 2)], 4), 1);
  assert.equal(roundLatencyMs([step(1, 1), step(5, 5), step(1, 2)], 4), 42);
});

const cluster: Cluster = {
  devices: ['a', 'b', 'c', 'd'].map((name) => ({ name, kind: 'board', memoryMiB: 100 })),
  links: { default: { bandwidthMbps: 8, latencyMs: 0.5 }, pairs: [{ between: ['b', 'd'], bandwidthMbps: 80 }] },
};

test('eq. 5: twice (|G| − 1)/|G| of the weights at the slowest bandwidth', () => {
  const table = links(cluster);
  assert.equal(allReduceMs(table, [0], 6000), 0);
  assert.equal(allReduceMs(table, [0, 1, 3], 6000), 8, '4/3 of 6000 bytes at 1000 bytes a millisecond');
  assert.ok(Math.abs(allReduceMs(table, [1, 3], 6000) - 0.6) < 1e-12);
});

test('a border takes as long as its longest piece; pieces travel in parallel', () => {
  const table = links(cluster);
  // a has [0, 1), b [1, 4); c has [0, 2), d [2, 4): a→c 1 sample, b→c 1 sample, b→d 2 samples on the fast link.
  const from = { devices: [0, 1], samples: [1, 3] };
  assert.equal(transferMs(table, from, { devices: [2, 3], samples: [2, 2] }, 1000), 1.5);
  assert.equal(transferMs(table, from, { devices: [2, 3], samples: [0, 4] }, 1000), 1.5, 'a→d is the default link');
  assert.equal(transferMs(table, from, { devices: [3, 2], samples: [4, 0] }, 10000), 10.5);
  assert.equal(transferMs(table, { devices: [1], samples: [4] }, { devices: [3], samples: [4] }, 1000), 0.4);
});

const profile: Profile = {
  model: 'two',
  inputBytes: 250,
  labelBytes: 100,
  layers: [
    { name: 'l0', outputBytes: 1000, weightBytes: 1000, savedBytes: 0, flops: 0 },
    { name: 'l1', outputBytes: 1000, weightBytes: 6000, savedBytes: 0, flops: 0 },
  ],
  batchSizes: [1],
  devices: { board: { forwardMs: [[1, 2]], backwardMs: [[2, 5]] } },
};

test('the steps of a plan, with a feed in front if one device holds the data', () => {
  const plan: PlanLayout = {
    planner: 'test',
    schedule: '1f1b',
    batchSize: 8,
    microBatchSize: 4,
    microBatchCount: 2,
    stages: [
      { layers: [0, 1], devices: ['a', 'b'], samples: [1, 3], inFlight: 2 },
      { layers: [1, 2], devices: ['c'], samples: [4], inFlight: 1 },
    ],
  };
  const steps = [step(3, 6, 1), step(3.5, 3.5), step(8, 20)];
  assert.deepEqual(pipelineSteps(plan, profile, cluster), steps);
  assert.deepEqual(
    pipelineSteps(plan, profile, { ...cluster, dataDevice: 'd' }),
    [step(0.5 + 0.25, 0), ...steps].map((each, index) => (index === 0 ? step(0.75, 0) : each)),
  );
  const alone: PlanLayout = { ...plan, stages: [{ layers: [0, 2], devices: ['a'], samples: [4], inFlight: 1 }] };
  assert.deepEqual(
    pipelineSteps(alone, profile, { ...cluster, dataDevice: 'd' }),
    [step(1.4 + 0.5, 0), step(12, 28)],
    'inputs and labels to the only stage',
  );
  assert.deepEqual(pipelineSteps(alone, profile, { ...cluster, dataDevice: 'a' }), [step(0, 0), step(12, 28)]);
});
