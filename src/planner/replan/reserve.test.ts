import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PlanLayout } from '../../cluster/cluster.ts';
import { randomInstance } from '../../testing/random-plans.ts';
import { plan } from '../plan.ts';
import { heavyReplan } from './heavy.ts';
import { lightReplan } from './light.ts';
import { reservePlans } from './reserve.ts';

const { profile, cluster } = randomInstance(8, { deviceCount: 5, layerCount: 12 });
const roomy = { ...cluster, devices: cluster.devices.map((device) => ({ ...device, memoryMiB: 10_000 })) };
const question = { profile, cluster: roomy, batchSize: 32, microBatchSize: 4, optimizerState: 1 as const };
const before = plan({ ...question, planner: 'straight' });

test('a reserve plan is what light re-planning would find; one is made each time one is asked for', () => {
  const reserve = reservePlans({ plan: before, profile, cluster: roomy, optimizerState: 1 });
  const seen: string[] = [];
  for (let next = reserve.next(); next.done !== true; next = reserve.next()) {
    const { device, plan: found } = next.value;
    seen.push(device);
    assert.deepEqual(found, lightReplan({ plan: before, profile, cluster: roomy, optimizerState: 1, lost: [device] }), device);
  }
  assert.deepEqual(
    seen,
    before.stages.flatMap(({ devices }) => devices),
  );
});

test('where nothing fits without a device, the reserve says why', () => {
  const weights = profile.layers.reduce((sum, layer) => sum + layer.weightBytes, 0);
  const tight = {
    ...cluster,
    devices: cluster.devices.map((device, index) => ({ ...device, memoryMiB: index === 0 ? 10_000 : weights / 2 ** 22 })),
  };
  const first = [...reservePlans({ plan: before, profile, cluster: tight })].find(({ device }) => device === 'd0');
  assert.ok(first !== undefined && first.plan === undefined);
  assert.match(
    first.refusal.message,
    /^Without "d0" the model does not fit the stages that are left: device "d\d" has [\d.]+ MiB and lacks \d+ MiB; /,
  );
});

test('heavy is the full planner on the devices that are left, with the micro-batches as they were', () => {
  const left = { ...roomy, devices: roomy.devices.filter(({ name }) => name !== 'd1') };
  const pairs = roomy.links.pairs?.filter(({ between }) => !between.includes('d1')) ?? [];
  const alone = plan({ ...question, cluster: { ...left, links: { ...left.links, pairs } }, planner: 'asteroid' });
  const layout: PlanLayout = before;
  const found = heavyReplan({ plan: layout, profile, cluster: roomy, lost: ['d1'], optimizerState: 1, planner: 'asteroid' });
  assert.deepEqual(found, alone);
  const frozen = heavyReplan({ plan: { ...layout, forwardOnlyLayers: 2 }, profile, cluster: roomy, lost: ['d1'], planner: 'single' });
  assert.equal(frozen.forwardOnlyLayers, 2);
});
