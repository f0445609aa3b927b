// Plans of streams leave room for the copies that a loss is survived with, or say what lacks; those whose rounds follow
// each other do so where weights are large.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, LayerProfile, Plan, Profile } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import { planSteps } from '../plan.ts';
import { finish, type Steps } from '../steps.ts';
import { copyMiB } from './replication.ts';
import { planWithCopies, withCopies } from './room-for-copies.ts';

const mib = 2 ** 20;
/** Six layers that take equally long; the first holds 6 MiB of weights, the others 1 MiB each. */
const layers = [6, 1, 1, 1, 1, 1].map((size, index): LayerProfile => {
  return { name: `l${index}`, outputBytes: 4, weightBytes: size * mib, savedBytes: 4, flops: 1, batchDependent: true };
});
const times = { forwardMs: [layers.map(() => 1)], backwardMs: [layers.map(() => 2)] };
const profile: Profile = {
  ...{ model: 'test', inputBytes: 4, labelBytes: 4, layers, batchSizes: [1] },
  devices: { a: times, b: times },
};

function clusterOf(memoryMiB: number): Cluster {
  return {
    devices: ['a', 'b'].map((name) => ({ name, memoryMiB })),
    links: { default: { bandwidthMbps: 100_000 } },
  };
}

function planned(memoryMiB: number, isCopied = true): Plan {
  const cluster = clusterOf(memoryMiB);
  const find = (given: Cluster): Steps<Plan> =>
    planSteps({
      ...{ profile, cluster: given, batchSize: 1, schedule: 'async', planner: 'best', optimizerState: 1 },
      isLeastStale: true,
    });
  return finish(planWithCopies(cluster, { profile, optimizerState: 1, isCopied }, find));
}

const cutsOf = (plan: Plan): readonly number[] => plan.stages.map((stage) => stage.layers[1]);

test('copies: two versions of the own state, less the ring of a group, and two of the neighbour’s', () => {
  const plan = planned(1000);
  assert.deepEqual(cutsOf(plan), [3, 6], 'equal halves');
  const copies = copyMiB(plan, profile, 1);
  const [a = '', b = ''] = plan.stages.flatMap((stage) => stage.devices);
  assert.deepEqual([copies.get(a), copies.get(b)], [8 * (4 - 2) + 3 * 4, 3 * (4 - 2) + 8 * 4]);
  // Two and a version and momentum of eight MiB; both counted.
  assert.equal(Math.round(plan.predicted.peakMemoryMiB[a] ?? 0), 8 * 4 + 28);
  assert.equal(Math.round(planned(1000, false).predicted.peakMemoryMiB[a] ?? 0), 8 * 4);
});

test('where copies do not fit, another cut has room; else the refusal names device, MiB and the way out', () => {
  // Equal halves take 60 and 50 MiB; with a layer less in the first stage 58 and 52.
  const plan = planned(58.5);
  assert.deepEqual(cutsOf(plan), [2, 6]);
  assert.ok(Object.values(plan.predicted.peakMemoryMiB).every((needed) => needed <= 58.5));
  assert.throws(
    () => planned(45),
    (error) =>
      error instanceof InputError &&
      /^Nothing fits: device "[ab]" has 45 MiB for training, and its part takes \d+, \d+ of them for copies/.test(
        error.message,
      ) &&
      error.message.endsWith('--replicate-every 0 for no copies.'),
  );
  assert.deepEqual(cutsOf(planned(45, false)), [3, 6], 'without copies');
});

test('where rounds follow each other, what copies take beyond 30 MiB counts, if the profile knows the runtime', () => {
  const plan = { ...planned(1000, false), schedule: '1f1b' };
  const [a = '', b = ''] = plan.stages.flatMap((stage) => stage.devices);
  const peaks = (of: Profile): readonly number[] => {
    const { peakMemoryMiB } = withCopies(plan, { profile: of, optimizerState: 1, isCopied: true }).predicted;
    return [a, b].map((name) => Math.round((peakMemoryMiB[name] ?? 0) - (plan.predicted.peakMemoryMiB[name] ?? 0)));
  };
  const scaled = (factor: number): Profile => ({
    ...profile,
    layers: layers.map((layer) => ({ ...layer, weightBytes: factor * layer.weightBytes, runtimeBytes: 1 })),
  });
  // Copies take 28 and 38 MiB, and ten times as much.
  assert.deepEqual(peaks(scaled(1)), [0, 8]);
  assert.deepEqual(peaks(scaled(10)), [250, 350]);
  assert.deepEqual(peaks(profile), [0, 0]);
  const frozen = scaled(10).layers.map((layer) => ({ ...layer, frozenBytes: layer.weightBytes }));
  assert.deepEqual(peaks({ ...profile, layers: frozen }), [0, 0], 'frozen weights are not copied');
});
