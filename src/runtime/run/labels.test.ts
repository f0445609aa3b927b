// Every kind of labels that people have trains as in PyTorch, the last incomplete batch included: on one device, and
// over plans with replicas and unequal shares. Labels that are left out are spread unevenly over samples, so that a
// device's share of the mean is not its share of the samples.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createOnnxRuntimeNodeEngine } from '../../engine/node/onnxruntime-node.ts';
import type { HandPlan } from '../../testing/hand-plans.ts';
import { checkCase, labelCases, memoryRun, prepareCase } from '../../testing/label-cases.ts';
import { difference, runAlone, runCluster, startCluster } from '../../testing/memory-cluster.ts';
import { batchIndices } from '../../training/data/order.ts';

const createEngine = () => createOnnxRuntimeNodeEngine();

for (const labelCase of labelCases()) {
  test(`${labelCase.name}: PyTorch's losses and weights`, async () => {
    const prepared = await prepareCase(labelCase);
    assert.equal(prepared.machine.endRound, 8);
    const run = memoryRun(prepared);
    checkCase(await runAlone({ ...run, microBatchSize: 32, createEngine }), labelCase, 'on one device');
    // Batches are normalized whole.
    if (labelCase.name === 'batch-norm') return;
    const plan = { schedule: '1f1b', cuts: [1], shares: [[9, 23], [32]], microBatchCount: 1 };
    checkCase(await runCluster({ ...memoryRun(prepared, plan), createEngine }), labelCase, 'over three devices');
  });
}

const plans: readonly HandPlan[] = [
  // 7 samples: all of them on b, none on c.
  { schedule: '1f1b', cuts: [], shares: [[0, 20, 12]], microBatchCount: 1 },
  {
    schedule: '1f1b',
    cuts: [1],
    shares: [
      [5, 27],
      [20, 12],
    ],
    microBatchCount: 1,
  },
  // Of four micro-batches one is left, of which 7 samples are there: 4 and 3 on the devices of the first stage.
  { schedule: '1f1b', cuts: [1], shares: [[4, 4], [8]], microBatchCount: 4 },
  { schedule: 'gpipe', cuts: [1], shares: [[8], [1, 7]], microBatchCount: 4 },
  // Micro-batches of 4: one whole, one of 3.
  {
    schedule: '1f1b',
    cuts: [1],
    shares: [
      [3, 1],
      [2, 2],
    ],
    microBatchCount: 8,
  },
  {
    schedule: 'zb-h1',
    cuts: [1],
    shares: [
      [2, 2],
      [1, 3],
    ],
    microBatchCount: 8,
  },
  { schedule: '1f1b-overlap', cuts: [], shares: [[2, 1, 1]], microBatchCount: 8 },
  { schedule: '1f1b-overlap', cuts: [1], shares: [[20, 12], [32]], microBatchCount: 1 },
  {
    schedule: 'zb-h1-overlap',
    cuts: [1],
    shares: [
      [3, 1],
      [3, 1],
    ],
    microBatchCount: 8,
  },
];

for (const plan of plans) {
  const { schedule, shares, microBatchCount } = plan;
  test(`the last 7 of 103 samples over ${schedule} ${JSON.stringify(shares)} × ${microBatchCount}`, async () => {
    for (const name of ['tokens-some-left-out', 'tokens-clipped'])
      for (const labelCase of labelCases(name)) {
        const prepared = await prepareCase(labelCase);
        checkCase(await runCluster({ ...memoryRun(prepared, plan), createEngine }), labelCase, 'over the plan');
      }
  });
}

test('strict: the last 7 of 103 samples, in grains of 4 and 3, have the same bits over every plan', async () => {
  const [labelCase] = labelCases('tokens-some-left-out');
  assert.ok(labelCase !== undefined);
  const prepared = await prepareCase(labelCase, { strict: true, microBatch: '8', grain: '4' });
  const alone = await runAlone({ ...memoryRun(prepared), microBatchSize: 8, createEngine });
  checkCase(alone, labelCase, 'strict, on one device');
  for (const shares of [
    [[4, 4], [8]],
    [
      [0, 8],
      [4, 4],
    ],
  ]) {
    const plan = { schedule: '1f1b', cuts: [1], shares, microBatchCount: 4 };
    const outcome = await runCluster({ ...memoryRun(prepared, plan), createEngine });
    const { loss, weight, worst } = difference(outcome, alone);
    assert.deepEqual([loss, weight], [0, 0], `${JSON.stringify(shares)}: ${worst}`);
  }
});

test('a device that is lost in the smaller round changes nothing', async () => {
  const [labelCase] = labelCases('tokens-some-left-out');
  assert.ok(labelCase !== undefined);
  const plan = { schedule: '1f1b', cuts: [1], shares: [[3, 29], [32]], microBatchCount: 1 };
  const cluster = await startCluster({
    ...memoryRun(await prepareCase(labelCase), plan),
    createEngine,
    observe: (event, members) => {
      if (event.kind === 'trace' && event.round === 2 && event.device === 'b') members.kill('b');
    },
  });
  checkCase(await cluster.outcome(), labelCase, 'without b');
  assert.equal(cluster.events.filter(({ kind }) => kind === 'recovered').length, 1);
});

test('--drop-last: whole batches only', async () => {
  const [labelCase] = labelCases('classes');
  assert.ok(labelCase !== undefined);
  const { machine, order } = await prepareCase(labelCase, { dropLast: true });
  assert.equal(machine.endRound, 6);
  assert.deepEqual(
    [0, 1, 2, 3].map((round) => batchIndices(order, round).length),
    [32, 32, 32, 32],
  );
});
