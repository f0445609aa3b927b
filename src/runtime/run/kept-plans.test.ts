// The first plan of a run, kept for the next: taken where the question is the same, and planned anew where it is not.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, Profile } from '../../cluster/cluster.ts';
import { plan } from '../../planner/plan.ts';
import type { StageStore } from '../device/compiled-stages.ts';
import { keepPlan, keptPlan, type PlanQuestion } from './kept-plans.ts';

const layer = (name: string) => ({ name, outputBytes: 1000, weightBytes: 4000, savedBytes: 2000, flops: 1 });
const times = { forwardMs: [[4, 4, 4]], backwardMs: [[8, 8, 8]], passMs: 0.2 };
const profile: Profile = {
  model: 'three layers',
  inputBytes: 100,
  labelBytes: 8,
  layers: ['a', 'b', 'c'].map(layer),
  batchSizes: [8],
  devices: { one: times, other: times },
};
const cluster = (bandwidthMbps: number, memoryMiB = 1000): Cluster => ({
  devices: [
    { name: 'one', memoryMiB },
    { name: 'other', memoryMiB: 1000 },
  ],
  links: { default: { bandwidthMbps, latencyMs: 0.2 } },
});
const question = (changes: Partial<PlanQuestion> = {}): PlanQuestion => ({
  profile,
  cluster: cluster(1000),
  settings: { batchSize: 32 },
  ...changes,
});

function memoryStore(): StageStore {
  const kept = new Map<string, Uint8Array>();
  return {
    read: async (key) => kept.get(key),
    write: async (key, pieces) => void kept.set(key, Buffer.concat(pieces)),
  };
}

const found = plan({ profile, cluster: cluster(1000), batchSize: 32, planner: 'best', optimizerState: 0 });

test('a plan is taken again while links and their costs are nearly as before, and predicted anew', async () => {
  const store = memoryStore();
  assert.equal(await keptPlan(store, question()), undefined);
  await keepPlan(store, question(), found);
  const { lowerBoundMs: _, ...predicted } = found.predicted;
  assert.deepEqual(await keptPlan(store, question()), { ...found, predicted });
  const faster = { one: { ...times, passMs: 0.21 }, other: times };
  const near = question({ cluster: cluster(1600), profile: { ...profile, devices: faster } });
  const taken = await keptPlan(store, near);
  assert.deepEqual(taken?.stages, found.stages);
  assert.notEqual(taken?.predicted.roundMs, found.predicted.roundMs);
});

test('another question, far other links or another round are planned anew', async () => {
  const store = memoryStore();
  await keepPlan(store, question(), found);
  const slower = { ...times, backwardMs: [[8, 8, 9]] };
  const others: Readonly<Record<string, PlanQuestion>> = {
    settings: question({ settings: { batchSize: 64 } }),
    memory: question({ cluster: cluster(1000, 900) }),
    links: question({ cluster: cluster(2001) }),
    times: question({ profile: { ...profile, devices: { one: slower, other: times } } }),
    sizes: question({ profile: { ...profile, devices: { one: times, other: times }, inputBytes: 101 } }),
  };
  for (const [what, other] of Object.entries(others)) assert.equal(await keptPlan(store, other), undefined, what);
});

test('a round that is predicted to take five parts of a hundred longer is planned anew', async () => {
  const costly = (passMs: number): PlanQuestion => {
    const device = { ...times, passMs };
    return question({ profile: { ...profile, devices: { one: device, other: device } } });
  };
  const { profile: before } = costly(2);
  const first = plan({ profile: before, cluster: cluster(1000), batchSize: 32, planner: 'best', optimizerState: 0 });
  const store = memoryStore();
  await keepPlan(store, costly(2), first);
  assert.notEqual(await keptPlan(store, costly(2.1)), undefined);
  assert.equal(await keptPlan(store, costly(3.9)), undefined);
});

test('what is damaged counts as absent', async () => {
  const store: StageStore = { read: async () => new TextEncoder().encode('{"figures": [1'), write: async () => {} };
  assert.equal(await keptPlan(store, question()), undefined);
});
