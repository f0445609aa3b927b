import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, Plan, PlanLayout, Profile } from '../../cluster/cluster.ts';
import { predictedPlan } from '../predict.ts';
import { backups } from './backups.ts';
import { recoveryEstimate } from './estimate.ts';
import { lightReplan } from './light.ts';
import { predictLoss } from './predict-loss.ts';

const slow = { forwardMs: [[1, 1, 1, 1]], backwardMs: [[1, 1, 1, 1]] };
const fast = { forwardMs: [[0.5, 0.5, 0.5, 0.5]], backwardMs: [[0.5, 0.5, 0.5, 0.5]] };
const profile: Profile = {
  ...{ model: 'four', inputBytes: 0, labelBytes: 0, batchSizes: [1], devices: { slow, fast } },
  layers: [1000, 2000, 3000, 4000].map((weightBytes, index) => ({
    name: `l${index}`,
    outputBytes: 0,
    weightBytes,
    savedBytes: 0,
    flops: 1,
  })),
};
/** 1000 bytes a millisecond. */
const cluster: Cluster = {
  devices: ['a', 'b', 'c'].map((name) => ({ name, kind: name === 'c' ? 'fast' : 'slow', memoryMiB: 1 })),
  links: { default: { bandwidthMbps: 8, latencyMs: 0.5 } },
};

function layout(...stages: readonly (readonly [first: number, end: number, device: string])[]): PlanLayout {
  return {
    ...{ planner: 'test', schedule: '1f1b', batchSize: 4, microBatchSize: 1, microBatchCount: 4 },
    stages: stages.map(([first, end, device], stage) => ({
      ...{ layers: [first, end] as const, devices: [device], samples: [1], inFlight: 2 * (stages.length - stage) - 1 },
    })),
  };
}

const plan = layout([0, 1, 'a'], [1, 2, 'b'], [2, 4, 'c']);
const planned = (found: PlanLayout): Plan => predictedPlan(found, profile, cluster, 0);

test('light moves what is missing, all pairs at once; heavy gathers everything, plans, and sends everything', () => {
  // b is lost; c has its copy (layer 1). Light: layer 1 to a, 2000 bytes from c.
  const light = { plan: planned(layout([0, 2, 'a'], [2, 4, 'c'])), planningMs: 0 };
  const heavy = { plan: planned(layout([0, 1, 'c'], [1, 4, 'a'])), planningMs: 100 };
  const found = recoveryEstimate({ plan, profile, cluster, lost: ['b'], detectionMs: 10, compileMs: 5, light, heavy });
  assert.deepEqual(found.losses, [{ device: 'b', stage: 1, layers: [1, 2], restoredFrom: 'copy', holders: ['c'] }]);
  assert.deepEqual(found.light.moves, [{ layers: [1, 2], from: 'c', to: 'a' }]);
  assert.deepEqual([found.light.bytes, found.light.migrationMs, found.light.totalMs], [2000, 2.5, 17.5]);
  // Gathered on c, the fastest, which lacks layer 0 only (1.5 ms); a gets 1 to 3 again (9.5 ms), and c has its own.
  assert.equal(found.heavy.planner, 'c');
  assert.deepEqual(found.heavy.links, [
    { from: 'a', to: 'c', bytes: 1000 },
    { from: 'c', to: 'a', bytes: 9000 },
  ]);
  assert.deepEqual([found.heavy.migrationMs, found.heavy.totalMs], [11, 126]);
  assert.equal(found.speedup, 126 / 17.5);
  assert.equal(found.throughputRatio, light.plan.predicted.samplesPerS / heavy.plan.predicted.samplesPerS);
  const adam = recoveryEstimate({
    plan,
    profile,
    cluster,
    lost: ['b'],
    detectionMs: 0,
    optimizerState: 2,
    light,
    heavy,
  });
  // Adam's means and squares travel during the first round.
  assert.deepEqual([adam.light.bytes, adam.light.migrationMs], [6000, 2.5]);
});

test('frozen weights of what a copy replaces come from the coordinator, also to the holder of the copy', () => {
  const layers = profile.layers.map((layer, index) => (index === 1 ? { ...layer, frozenBytes: 1500 } : layer));
  const frozen = { ...profile, layers };
  const heavy = { plan: planned(layout([0, 1, 'c'], [1, 4, 'a'])), planningMs: 0 };
  const ask = { plan, profile: frozen, cluster, lost: ['b'], detectionMs: 0, heavy };
  // c has the 500 trained bytes of layer 1: it sends them to a, or takes the layer over.
  const toA = { plan: planned(layout([0, 2, 'a'], [2, 4, 'c'])), planningMs: 0 };
  const toC = { plan: planned(layout([0, 1, 'a'], [1, 4, 'c'])), planningMs: 0 };
  const sent = recoveryEstimate({ ...ask, light: toA });
  assert.deepEqual(sent.light.links, [
    { from: 'c', to: 'a', bytes: 500 },
    { from: null, to: 'a', bytes: 1500 },
  ]);
  assert.deepEqual([sent.light.bytes, sent.light.migrationMs], [2000, 2]);
  assert.deepEqual(sent.heavy.links, [
    { from: 'a', to: 'c', bytes: 1000 },
    { from: null, to: 'c', bytes: 1500 },
    { from: 'c', to: 'a', bytes: 9000 },
  ]);
  assert.equal(sent.heavy.migrationMs, 11.5);
  const kept = recoveryEstimate({ ...ask, light: toC });
  assert.deepEqual([kept.light.moves, kept.light.links], [[], [{ from: null, to: 'c', bytes: 1500 }]]);
  assert.equal(kept.light.migrationMs, 2);
  // The optimizer's state of what is trained travels during the first round.
  const adam = recoveryEstimate({ ...ask, light: toA, optimizerState: 2 });
  assert.deepEqual([adam.light.bytes, adam.light.migrationMs], [3000, 2]);
  // Where the coordinator runs on c, they are there.
  const near = recoveryEstimate({ ...ask, cluster: { ...cluster, dataDevice: 'c' }, light: toC });
  assert.equal(near.light.migrationMs, 0);
});

test('two neighbours lost at once: what only they had comes from the checkpoint', () => {
  const one = { plan: planned(layout([0, 4, 'a'])), planningMs: 0 };
  // In the paper's ring a keeps c's copy.
  const copies = backups(plan, { lastTo: 'first' });
  const { losses, light } = recoveryEstimate({
    plan,
    profile,
    cluster,
    copies,
    lost: ['b', 'c'],
    detectionMs: 0,
    light: one,
    heavy: one,
  });
  assert.deepEqual(
    losses.map(({ device, restoredFrom }) => [device, restoredFrom]),
    [
      ['b', 'checkpoint'],
      ['c', 'copy'],
    ],
  );
  // Layer 1 over the default link.
  assert.deepEqual([light.moves, light.migrationMs], [[{ layers: [1, 2], from: null, to: 'a' }], 2.5]);
  const momentum = {
    plan,
    profile,
    cluster,
    copies,
    lost: ['b', 'c'],
    detectionMs: 0,
    light: one,
    heavy: one,
    optimizerState: 1,
  } as const;
  assert.equal(recoveryEstimate(momentum).light.migrationMs, 4.5);
  assert.throws(
    () =>
      recoveryEstimate({
        plan: layout([0, 4, 'a']),
        profile,
        cluster,
        lost: ['b'],
        detectionMs: 0,
        light: one,
        heavy: one,
      }),
    {
      name: 'InputError',
      message: 'The plan gives device "b" nothing to do, so its loss changes nothing; name a device of the plan.',
    },
  );
});

test('a predicted loss: the reserve plan costs no time; several losses are planned for when they happen', () => {
  let clockMs = 0;
  const ask = {
    cluster,
    profile,
    current: plan,
    batchSize: 4,
    optimizerState: 0 as const,
    replicateBatchDependent: false,
  };
  const one = predictLoss({ ...ask, lost: ['a'], detectionMs: 3000, now: () => (clockMs += 7) });
  assert.deepEqual([one.light.planningMs, one.heavy.planningMs], [0, 7]);
  assert.deepEqual(one.light.plan, lightReplan({ plan, profile, cluster, lost: ['a'] }));
  assert.equal(one.before.predicted.samplesPerS, one.samplesPerSBefore);
  assert.equal(
    predictLoss({ ...ask, lost: ['a', 'b'], detectionMs: 0, now: () => (clockMs += 7) }).light.planningMs,
    7,
  );
  const refused = (lost: string, message: string, of: Cluster = cluster): void =>
    assert.throws(() => predictLoss({ ...ask, cluster: of, lost: [lost], detectionMs: 0, now: () => 0 }), {
      name: 'InputError',
      message,
    });
  refused('q', 'The cluster has no device "q"; name one of a, b, c.');
  refused(
    'b',
    'Device "b" holds the data, and nothing trains without it; name another dataDevice in the cluster first.',
    {
      ...cluster,
      dataDevice: 'b',
    },
  );
});

test('a loss after which the micro-batches fit nowhere: the reason, and the new plan with its planning time', () => {
  // A MiB of weights in a layer, with as much of gradients; of each sample a MiB is kept for the backward pass of each
  // layer.
  const mib = 2 ** 20;
  const heavyLayers = profile.layers.map((layer) => ({ ...layer, weightBytes: mib, savedBytes: mib }));
  const devices = cluster.devices.slice(0, 2).map((device) => ({ ...device, memoryMiB: 18 }));
  const ask = {
    cluster: { ...cluster, devices },
    profile: { ...profile, layers: heavyLayers },
    batchSize: 4,
    optimizerState: 0 as const,
  };
  const four: PlanLayout = {
    ...{ planner: 'test', schedule: '1f1b', batchSize: 4, microBatchSize: 4, microBatchCount: 1 },
    stages: ['a', 'b'].map((device, stage) => ({
      layers: [2 * stage, 2 * stage + 2],
      devices: [device],
      samples: [4],
      inFlight: 1,
    })),
  };
  let clockMs = 0;
  const now = (): number => (clockMs += 7);
  const found = predictLoss({
    ...ask,
    current: four,
    replicateBatchDependent: false,
    lost: ['b'],
    detectionMs: 3,
    now,
  });
  // Alone, a needs 8 MiB and 4 for each sample.
  assert.match(found.refusal ?? '', /device "a" has 18 MiB and lacks 6 MiB/);
  assert.deepEqual(
    [found.light.plan.microBatchSize, found.light.plan.stages.map((stage) => stage.devices)],
    [1, [['a']]],
  );
  assert.ok((found.light.plan.predicted.peakMemoryMiB['a'] ?? 0) <= 18);
  assert.equal(found.light.planningMs, 7, 'nothing was in reserve');
  const roomy = { ...ask.cluster, devices: devices.map((device) => ({ ...device, memoryMiB: 24 })) };
  const fits = predictLoss({
    ...ask,
    cluster: roomy,
    current: four,
    replicateBatchDependent: false,
    lost: ['b'],
    detectionMs: 3,
    now,
  });
  assert.deepEqual([fits.refusal, fits.light.planningMs, fits.light.plan.microBatchSize], [undefined, 0, 4]);
});
