import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, Plan, PlanLayout, Profile } from '../cluster/cluster.ts';
import { InputError } from '../errors.ts';
import { program } from '../schedule/generate.ts';
import { simulate } from '../simulator/simulate.ts';
import { randomInstance } from '../testing/random-plans.ts';
import { type CompressMode, planCompressed } from './compress.ts';
import { plan } from './plan.ts';

/** Four equal layers with many bytes at every cut and little to compute. */
const profile: Profile = {
  model: 'four',
  inputBytes: 4,
  labelBytes: 4,
  layers: Array.from({ length: 4 }, (_, layer) => ({
    name: `${layer}`,
    outputBytes: 40_000,
    weightBytes: 400_000,
    savedBytes: 100,
    flops: 1,
  })),
  batchSizes: [1],
  devices: {
    a: { forwardMs: [[5, 5, 5, 5]], backwardMs: [[5, 5, 5, 5]] },
    b: { forwardMs: [[5, 5, 5, 5]], backwardMs: [[5, 5, 5, 5]] },
  },
};

function clusterOf(bandwidthMbps: number): Cluster {
  return { devices: ['a', 'b'].map((name) => ({ name, memoryMiB: 1000 })), links: { default: { bandwidthMbps } } };
}

function planned(cluster: Cluster, compress: CompressMode, planner: string): Plan {
  return planCompressed({
    profile,
    cluster,
    batchSize: 8,
    microBatchSize: planner === 'dp' ? 2 : 1,
    optimizerState: 0,
    planner,
    compress,
  });
}

test('halves on cuts, 8 bits for gradient sums, nothing in a plan of one device', () => {
  assert.deepEqual(planned(clusterOf(100), 'float16', 'straight').compression, {
    activation: 'float16',
    gradient: 'float16',
  });
  assert.deepEqual(planned(clusterOf(100), 'int8', 'dp').compression, { allReduce: 'int8' });
  assert.equal(planned(clusterOf(100), 'int8', 'single').compression, undefined);
  assert.equal(planned(clusterOf(100), 'none', 'dp').compression, undefined);
});

test('auto compresses only if it shortens rounds; nothing on a fast link', () => {
  // 40 kB take 16 ms at 20 Mbps, and two layers take 10 ms forward: the link limits the pipeline in both directions.
  const slow = planned(clusterOf(20), 'auto', 'straight');
  assert.deepEqual(slow.compression, { activation: 'float16', gradient: 'float16' });
  assert.ok(slow.predicted.roundMs < 0.98 ** 2 * planned(clusterOf(20), 'none', 'straight').predicted.roundMs);
  assert.equal(planned(clusterOf(10_000), 'auto', 'straight').compression, undefined);
  assert.deepEqual(planned(clusterOf(20), 'auto', 'dp').compression, { allReduce: 'int8' });
  assert.equal(planned(clusterOf(10_000), 'auto', 'dp').compression, undefined);
});

test('a cut in the middle of the net pays only if it is compressed', () => {
  // 320 ms alone. Cut in two at 25 Mbps: 12.8 ms for a transfer during 10 ms of computing; half of it is hidden.
  const cluster = clusterOf(25);
  const [plain, auto] = [planned(cluster, 'none', 'best'), planned(cluster, 'auto', 'best')];
  assert.ok(
    auto.predicted.roundMs < plain.predicted.roundMs * 0.98,
    `${auto.predicted.roundMs} and ${plain.predicted.roundMs}`,
  );
  assert.ok(auto.compression !== undefined);
});

test('auto is never slower than none, and predicts what the simulator says, on 40 random problems', () => {
  for (let seed = 0; seed < 40; seed++) {
    const input = {
      ...randomInstance(seed, { deviceCount: 2 + (seed % 3), layerCount: 5 }),
      batchSize: 8,
      optimizerState: 0,
      planner: 'asteroid',
    } as const;
    let none: Plan;
    try {
      none = plan(input);
    } catch (error) {
      assert.ok(error instanceof InputError);
      assert.throws(() => planCompressed({ ...input, compress: 'auto' }), InputError);
      continue;
    }
    const auto = planCompressed({ ...input, compress: 'auto' });
    assert.ok(auto.predicted.roundMs <= none.predicted.roundMs, `seed ${seed}`);
    const layout: PlanLayout = auto;
    assert.equal(
      simulate(program(layout), layout, input.profile, input.cluster).roundMs,
      auto.predicted.roundMs,
      `seed ${seed}`,
    );
    assert.deepEqual(plan(input), planCompressed(input));
  }
});
