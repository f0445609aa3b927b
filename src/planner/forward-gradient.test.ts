// Plans for forward gradients: groups without an AllReduce where links are slow, straight pipelines whose period is the
// slowest stage, memory without saved activations.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, Plan, Profile } from '../cluster/cluster.ts';
import { checkProgram } from '../schedule/check.ts';
import { program } from '../schedule/generate.ts';
import { planTangentSteps, type TangentPlanInput, tangentMicroBatch } from './forward-gradient.ts';
import { plan } from './plan.ts';

/** Four layers of 10 MiB of weights; a pass with tangents takes 2 ms a layer and sample. */
const profile: Profile = {
  model: 'test',
  inputBytes: 1000,
  labelBytes: 8,
  layers: Array.from({ length: 4 }, (_, index) => ({
    name: `layer${index}`,
    outputBytes: 100,
    weightBytes: 10 * 2 ** 20,
    savedBytes: 50 * 2 ** 20,
    flops: 1,
  })),
  batchSizes: [1, 8],
  devices: {
    pi: {
      forwardMs: [1, 8].map((size) => [size, size, size, size]),
      backwardMs: [1, 8].map((size) => [2 * size, 2 * size, 2 * size, 2 * size]),
      tangentMs: [1, 8].map((size) => [2 * size, 2 * size, 2 * size, 2 * size]),
    },
  },
};

function clusterOf(bandwidthMbps: number, memoryMiB = 4000): Cluster {
  const devices = ['a', 'b'].map((name) => ({ name, kind: 'pi', memoryMiB }));
  return { devices, links: { default: { bandwidthMbps, latencyMs: 0 } } };
}

function planned(input: Partial<TangentPlanInput>): Plan {
  const common = { profile, batchSize: 8, optimizerState: 0, planner: 'best', tangentCount: 1 } as const;
  const steps = planTangentSteps({ ...common, cluster: clusterOf(1), ...input });
  for (;;) {
    const step = steps.next();
    if (step.done === true) {
      checkProgram(program(step.value), step.value);
      return step.value;
    }
  }
}

test('over a link of 1 Mbps a group is twice as fast as one device, where backpropagation uses one', () => {
  const cluster = clusterOf(1);
  const layers = profile.layers.map((layer) => ({ ...layer, outputBytes: 10_000 }));
  const wide = { ...profile, layers };
  const found = planned({ profile: wide, staleness: 0 });
  assert.deepEqual(
    found.stages.map(({ devices }) => devices.length),
    [2],
  );
  // 4 layers · 2 ms · 4 samples; derivatives of 4 bytes take 0.032 ms.
  assert.ok(found.predicted.roundMs >= 32 && found.predicted.roundMs < 32.2, `${found.predicted.roundMs}`);
  const backward = plan({ profile: wide, cluster, batchSize: 8, optimizerState: 0, planner: 'best' });
  assert.deepEqual(
    backward.stages.map(({ devices }) => devices.length),
    [1],
  );
});

test('a straight pipeline takes as long as its slowest stage where rounds overlap, and all of them where not', () => {
  const stream = planned({ planner: 'straight', cluster: clusterOf(1000) });
  assert.deepEqual(stream.staleness, [1, 0]);
  assert.deepEqual(
    stream.stages.map(({ layers }) => layers),
    [
      [0, 2],
      [2, 4],
    ],
  );
  assert.ok(Math.abs(stream.predicted.roundMs - 32) < 0.1, `${stream.predicted.roundMs}`);
  const rounds = planned({ planner: 'straight', cluster: clusterOf(1000), staleness: 0, microBatchSize: 8 });
  assert.deepEqual(rounds.staleness, [0, 0]);
  assert.ok(Math.abs(rounds.predicted.roundMs - 64) < 0.1, `${rounds.predicted.roundMs}`);
});

test('memory has no saved activations: what backpropagation cannot hold fits', () => {
  const cluster = clusterOf(1000, 300);
  assert.throws(() => plan({ profile, cluster, batchSize: 8, microBatchSize: 8, optimizerState: 0, planner: 'best' }));
  const found = planned({ cluster, planner: 'single' });
  // Weights, the version before, and a tangent; of one layer, three times what goes in and out with its tangents.
  const workingMiB = (tangentCount: number): number => (3 * (1 + tangentCount) * (100 + 100) * 8) / 2 ** 20;
  assert.deepEqual(Object.values(found.predicted.peakMemoryMiB), [120 + workingMiB(1)]);
  const adam = planned({ cluster, planner: 'single', optimizerState: 2, tangentCount: 2 });
  assert.deepEqual(Object.values(adam.predicted.peakMemoryMiB), [240 + workingMiB(2)]);
  // A layer too wide for its device is seen; frozen layers before the first trained one have no tangents.
  const wide = profile.layers.map((layer, index) => (index === 1 ? { ...layer, outputBytes: 10 * 2 ** 20 } : layer));
  assert.throws(() => planned({ profile: { ...profile, layers: wide }, cluster, planner: 'single' }), /memory/);
  const frozen = wide.map((layer, index) => (index < 3 ? { ...layer, frozenBytes: layer.weightBytes } : layer));
  const tuned = planned({ profile: { ...profile, layers: frozen }, cluster: clusterOf(1000), planner: 'single' });
  const [peak = 0] = Object.values(tuned.predicted.peakMemoryMiB);
  assert.ok(Math.abs(peak - (60 + 3 * 10 * 8)) < 0.1, `${peak}`);
});

test('micro-batches are of at most 16 samples, unless the batch has no fitting divisors', () => {
  assert.deepEqual([64, 8, 20, 34, 127, 1].map(tangentMicroBatch), [16, 8, 10, 17, 127, 1]);
});
