// Problems without a plan: which device lacks how much, and that nothing smaller would do. The oracle is planner
// exhaustive's answer to the changed problem.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, LayerProfile, Profile } from '../cluster/cluster.ts';
import { createRandom } from '../random.ts';
import { randomInstance } from '../testing/random-plans.ts';
import { type PlanInput, plan } from './plan.ts';

const mib = 2 ** 20;

/** Layers of one MiB of weights and one MiB saved a sample, 1 ms forward and 1 ms backward. */
function profileOf(
  layerCount: number,
  change: (layer: LayerProfile, index: number) => Partial<LayerProfile> = () => ({}),
): Profile {
  const layers = Array.from({ length: layerCount }, (_, index): LayerProfile => {
    const layer = { name: `l${index}`, outputBytes: 100, weightBytes: mib, savedBytes: mib, flops: 1 };
    return { ...layer, ...change(layer, index) };
  });
  const row = layers.map(() => 1);
  return {
    model: 'four',
    inputBytes: 1,
    labelBytes: 1,
    layers,
    batchSizes: [1],
    devices: { board: { forwardMs: [row], backwardMs: [row] } },
  };
}

function clusterOf(...memoriesMiB: readonly number[]): Cluster {
  const devices = memoriesMiB.map((memoryMiB, index) => ({ name: `d${index}`, kind: 'board', memoryMiB }));
  return { devices, links: { default: { bandwidthMbps: 100 } } };
}

/** The error's message; undefined if there is a plan. */
function refusal(input: PlanInput): string | undefined {
  try {
    plan(input);
    return undefined;
  } catch (error) {
    assert.equal((error as Error).name, 'InputError', String(error));
    return (error as Error).message;
  }
}

const cases: readonly (readonly [what: string, input: PlanInput, sentence: string])[] = [
  [
    'one device, by a fraction of a MiB',
    {
      profile: profileOf(4),
      cluster: clusterOf(11.5),
      batchSize: 4,
      microBatchSize: 1,
      optimizerState: 0,
      planner: 'best',
    },
    'Model "four" fits nowhere (planner best, micro-batches of 1): device "d0" has 11.5 MiB and lacks 1 MiB; ' +
      'raise its memoryMiB to 12.',
  ],
  [
    'momentum is one more copy of the weights',
    {
      profile: profileOf(4),
      cluster: clusterOf(12),
      batchSize: 4,
      microBatchSize: 1,
      optimizerState: 1,
      planner: 'best',
    },
    'Model "four" fits nowhere (planner best, micro-batches of 1): device "d0" has 12 MiB and lacks 4 MiB; ' +
      'raise its memoryMiB to 16.',
  ],
  [
    'frozen weights count once, and a frozen prefix keeps nothing',
    {
      profile: profileOf(4, (_, index) => (index < 3 ? { frozenBytes: mib } : {})),
      cluster: clusterOf(4),
      batchSize: 4,
      microBatchSize: 1,
      optimizerState: 0,
      planner: 'best',
    },
    'Model "four" fits nowhere (planner best, micro-batches of 1): device "d0" has 4 MiB and lacks 2 MiB; ' +
      'raise its memoryMiB to 6.',
  ],
  [
    'a smaller micro-batch would do too',
    {
      profile: profileOf(4),
      cluster: clusterOf(16),
      batchSize: 8,
      microBatchSize: 4,
      optimizerState: 0,
      planner: 'best',
    },
    'Model "four" fits nowhere (planner best, micro-batches of 4): device "d0" has 16 MiB and lacks 8 MiB; use ' +
      'micro-batches of 2, or raise its memoryMiB to 24.',
  ],
  [
    // Adam: four times the weights. The first of two stages with one layer takes 4 + 3 MiB, the last one of three
    // layers 12 + 3.
    'of two devices in either order, the one that needs less',
    {
      profile: profileOf(4),
      cluster: clusterOf(14, 8),
      batchSize: 4,
      microBatchSize: 1,
      optimizerState: 2,
      planner: 'best',
    },
    'Model "four" fits nowhere (planner best, micro-batches of 1): device "d0" has 14 MiB and lacks 1 MiB; ' +
      'raise its memoryMiB to 15.',
  ],
  [
    // With 1 MiB each, more memory for one device does not help a pipeline of both: all layers on one need 12 MiB.
    'a device alone is the smallest change',
    {
      profile: profileOf(4),
      cluster: clusterOf(1, 1),
      batchSize: 4,
      microBatchSize: 1,
      optimizerState: 0,
      planner: 'best',
    },
    'Model "four" fits nowhere (planner best, micro-batches of 1): device "d0" has 1 MiB and lacks 11 MiB; ' +
      'raise its memoryMiB to 12.',
  ],
  [
    // Every device needs at least one layer, so more memory for one does not help. The first of three keeps five
    // micro-batches.
    'every device is too small for a planner that uses all of them',
    {
      profile: profileOf(3),
      cluster: clusterOf(1, 1, 1),
      batchSize: 8,
      microBatchSize: 1,
      optimizerState: 0,
      planner: 'straight',
    },
    'Model "four" fits nowhere (planner straight, micro-batches of 1): device "d0" has 1 MiB and lacks 6 MiB; ' +
      'give every device at least 7 MiB.',
  ],
  [
    'recomputable activations need not fit',
    {
      profile: profileOf(4, () => ({ recomputed: { savedBytes: mib / 2, flops: 1 } })),
      cluster: clusterOf(9),
      batchSize: 4,
      microBatchSize: 1,
      optimizerState: 0,
      planner: 'best',
    },
    'Model "four" fits nowhere (planner best, micro-batches of 1): device "d0" has 9 MiB and lacks 1 MiB; ' +
      'raise its memoryMiB to 10.',
  ],
];

for (const [what, input, sentence] of cases) test(`${what}: ${sentence}`, () => assert.equal(refusal(input), sentence));

/** The cluster with more memory on some of its devices. */
function raised(cluster: Cluster, to: (memoryMiB: number, name: string) => number): Cluster {
  return {
    ...cluster,
    devices: cluster.devices.map((device) => ({ ...device, memoryMiB: to(device.memoryMiB, device.name) })),
  };
}

test('no smaller change would do: 40 random problems that do not fit, planner best', () => {
  const found = { one: 0, smaller: 0 };
  for (let seed = 0; found.one < 40; seed++) {
    const random = createRandom(seed, 51);
    const instance = randomInstance(seed, { deviceCount: 1 + random.integer(3), layerCount: 1 + random.integer(5) });
    const cluster = raised(instance.cluster, (memoryMiB) => Math.ceil(memoryMiB * (0.05 + 0.6 * random.uniform())));
    const optimizerState = random.integer(3) as 0 | 1 | 2;
    const layers = instance.profile.layers.map((layer) => ({ ...layer, savedBytes: 40 * layer.savedBytes }));
    const input: PlanInput = {
      profile: { ...instance.profile, layers },
      cluster,
      batchSize: 8,
      microBatchSize: 2 ** random.integer(3),
      optimizerState,
      planner: 'best',
    };
    const fits = (change: Partial<PlanInput>): boolean =>
      refusal({ ...input, planner: 'exhaustive', ...change }) === undefined;
    const message = refusal(input);
    if (message === undefined) continue;
    assert.ok(!fits({}), `seed ${seed}: exhaustive has a plan, best says "${message}"`);
    const advice =
      /device "(\w+)" has (\d+) MiB and lacks (\d+) MiB; (?:.* of (\d+), or )?raise its memoryMiB to (\d+)\.$/.exec(
        message,
      );
    assert.ok(advice !== null, `seed ${seed}: ${message}`);
    const [, name = '', has = '', lacks = '', smaller, needed = ''] = advice;
    assert.equal(Number(has) + Number(lacks), Number(needed), message);
    found.one++;
    assert.ok(
      fits({ cluster: raised(cluster, (memoryMiB, own) => (own === name ? Number(needed) : memoryMiB)) }),
      `seed ${seed}: ${message}`,
    );
    // One MiB less than it lacks does not help on any device.
    for (const device of cluster.devices) {
      const little = raised(cluster, (memoryMiB, own) =>
        own === device.name ? memoryMiB + Number(lacks) - 1 : memoryMiB,
      );
      assert.ok(
        !fits({ cluster: little }),
        `seed ${seed}: ${Number(lacks) - 1} MiB more on "${device.name}" would do, but: ${message}`,
      );
    }
    if (smaller === undefined) continue;
    found.smaller++;
    assert.ok(fits({ microBatchSize: Number(smaller) }), `seed ${seed}: ${message}`);
    assert.ok(
      !fits({ microBatchSize: 2 * Number(smaller) }),
      `seed ${seed}: larger micro-batches than advised would do`,
    );
  }
  assert.ok(found.smaller > 2, `${found.smaller} with smaller micro-batches`);
});
