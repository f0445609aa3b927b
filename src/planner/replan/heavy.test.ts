import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PlanLayout } from '../../cluster/cluster.ts';
import { randomInstance } from '../../testing/random-plans.ts';
import { plan } from '../plan.ts';
import { heavyReplan } from './heavy.ts';

const { profile, cluster } = randomInstance(8, { deviceCount: 5, layerCount: 12 });
const roomy = { ...cluster, devices: cluster.devices.map((device) => ({ ...device, memoryMiB: 10_000 })) };
const question = { profile, cluster: roomy, batchSize: 32, microBatchSize: 4, optimizerState: 1 as const };
const before = plan({ ...question, planner: 'straight' });

test('heavy is the full planner on the remaining devices, with the same micro-batches', () => {
  const left = { ...roomy, devices: roomy.devices.filter(({ name }) => name !== 'd1') };
  const pairs = roomy.links.pairs?.filter(({ between }) => !between.includes('d1')) ?? [];
  const alone = plan({ ...question, cluster: { ...left, links: { ...left.links, pairs } }, planner: 'asteroid' });
  const layout: PlanLayout = before;
  const found = heavyReplan({
    plan: layout,
    profile,
    cluster: roomy,
    lost: ['d1'],
    optimizerState: 1,
    planner: 'asteroid',
  });
  assert.deepEqual(found, alone);
  const frozen = heavyReplan({
    plan: { ...layout, forwardOnlyLayers: 2 },
    profile,
    cluster: roomy,
    lost: ['d1'],
    planner: 'single',
  });
  assert.equal(frozen.forwardOnlyLayers, 2);
});
