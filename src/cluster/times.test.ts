import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, Profile } from './cluster.ts';
import { links, slowestInGroup } from './links.ts';
import { layerSums, stageMemoryBytes } from './memory.ts';
import { deviceTimes, layerTimes, scaledTimes } from './times.ts';

const times = {
  forwardMs: [
    [1, 10],
    [3, 20],
    [4, 60],
  ],
  backwardMs: [
    [2, 20],
    [6, 40],
    [8, 120],
  ],
  updateMs: [0.5, 0.25],
};

test('times are linear between measured sizes and beyond the last, and in proportion below the first', () => {
  const of = layerTimes(times, [2, 4, 8]);
  const at = (samples: number): number => of.forwardMs(0, 1, samples);
  assert.equal(at(0), 0);
  assert.equal(at(1), 0.5);
  assert.equal(at(2), 1);
  assert.equal(at(3), 2);
  assert.equal(at(4), 3);
  assert.equal(at(6), 3.5);
  assert.equal(at(8), 4);
  assert.equal(at(12), 5);
  assert.equal(of.backwardMs(1, 2, 3), 30);
});

test('a range is the sum of its layers, an empty one is nothing', () => {
  const of = layerTimes(times, [2, 4, 8]);
  assert.equal(of.forwardMs(0, 2, 3), 2 + 15);
  assert.equal(of.forwardMs(1, 1, 3), 0);
  assert.equal(of.updateMs(0, 2), 0.75);
  assert.equal(layerTimes({ forwardMs: [[1]], backwardMs: [[1]] }, [1]).updateMs(0, 1), 0);
});

test('one measured size is a line through zero, and a falling line never goes below it', () => {
  assert.equal(layerTimes({ forwardMs: [[6]], backwardMs: [[12]] }, [4]).forwardMs(0, 1, 6), 9);
  assert.equal(layerTimes({ forwardMs: [[6], [2]], backwardMs: [[1], [1]] }, [1, 2]).forwardMs(0, 1, 3), 0);
});

const profile: Profile = {
  model: 'm',
  inputBytes: 0,
  labelBytes: 0,
  layers: [
    { name: 'a', outputBytes: 1, weightBytes: 10, savedBytes: 3, flops: 0 },
    { name: 'b', outputBytes: 1, weightBytes: 20, savedBytes: 4, flops: 0, batchDependent: true },
  ],
  batchSizes: [2, 4, 8],
  devices: { nano: times, board: { ...times, updateMs: [1, 1] } },
};

test('a device has the times of its name, else of its kind, else an error that says so', () => {
  assert.equal(deviceTimes(profile, { name: 'nano', kind: 'board', memoryMiB: 1 }), profile.devices.nano);
  assert.equal(deviceTimes(profile, { name: 'x', kind: 'board', memoryMiB: 1 }), profile.devices.board);
  assert.throws(() => deviceTimes(profile, { name: 'x', kind: 'tx2', memoryMiB: 1 }), {
    name: 'InputError',
    message:
      'The profile of "m" has no times for device "x" (kind "tx2"); profile it, or give it one of the ' +
      "profile's kinds (nano, board).",
  });
  assert.throws(() => deviceTimes(profile, { name: 'toString', memoryMiB: 1 }), { name: 'InputError' });
});

test('links are symmetric, a pair overrides the default, latency is 0 where it is not given', () => {
  const cluster: Cluster = {
    devices: ['a', 'b', 'c'].map((name) => ({ name, memoryMiB: 1 })),
    links: { default: { bandwidthMbps: 100, latencyMs: 3 }, pairs: [{ between: ['c', 'a'], bandwidthMbps: 8 }] },
  };
  const table = links(cluster);
  const [a, b, c] = [table.deviceIndex('a'), table.deviceIndex('b'), table.deviceIndex('c')];
  assert.deepEqual([table.bandwidthMbps(a, c), table.bandwidthMbps(c, a), table.bandwidthMbps(a, b)], [8, 8, 100]);
  assert.deepEqual([table.latencyMs(a, c), table.latencyMs(b, a)], [0, 3]);
  assert.equal(table.occupancyMs(c, a, 1000), 1, '8000 bits at 8 million a second');
  assert.deepEqual(slowestInGroup(table, [a, b, c]), { bandwidthMbps: 8, latencyMs: 3 });
  assert.throws(() => table.deviceIndex('d'), {
    name: 'InputError',
    message: 'The cluster has no device "d"; name one that it has, or add it to the cluster.',
  });
});

test("eq. 3: two copies of the weights, the optimizer's copies, and K_p saved shares", () => {
  const sums = layerSums(profile);
  const demand = { weightBytes: sums.weightBytes(0, 2), savedBytes: sums.savedBytes(0, 2), inFlight: 3 };
  assert.equal(stageMemoryBytes({ ...demand, optimizerState: 0 }, 5), 2 * 30 + 3 * 7 * 5);
  assert.equal(stageMemoryBytes({ ...demand, optimizerState: 2 }, 5), 4 * 30 + 3 * 7 * 5);
  assert.equal(sums.batchDependentCount(0, 1), 0);
  assert.equal(sums.batchDependentCount(0, 2), 1);
});

test('frozen weights are kept once, and have no gradients to reduce', () => {
  const frozen = {
    ...profile,
    layers: profile.layers.map((layer, index) => ({ ...layer, frozenBytes: index === 0 ? layer.weightBytes : 0 })),
  };
  const [all, sums] = [layerSums(profile), layerSums(frozen)];
  assert.deepEqual([sums.weightBytes(0, 1), sums.frozenBytes(0, 1)], [0, all.weightBytes(0, 1)]);
  assert.equal(sums.weightBytes(0, 2), all.weightBytes(1, 2));
  const demand = {
    weightBytes: sums.weightBytes(0, 2),
    frozenBytes: sums.frozenBytes(0, 2),
    savedBytes: 0,
    inFlight: 1,
  };
  const bytes = stageMemoryBytes({ ...demand, optimizerState: 2 }, 5);
  assert.equal(bytes, 4 * all.weightBytes(1, 2) + all.weightBytes(0, 1));
});

test('every pass that computes has its engine call: both of a split backward pass, and each piece of one', () => {
  const times = layerTimes({ forwardMs: [[1, 2]], backwardMs: [[4, 6]], backwardInputMs: [[1, 3]], callMs: 0.5 }, [1]);
  assert.deepEqual([times.forwardMs(0, 2, 1), times.backwardMs(0, 2, 1)], [3.5, 10.5]);
  assert.deepEqual([times.backwardMs(1, 2, 1), times.backwardMs(0, 1, 1)], [6.5, 4.5]);
  assert.deepEqual([times.backwardInputMs(0, 2, 1), times.backwardWeightMs(0, 2, 1)], [4.5, 6.5]);
  assert.deepEqual([times.forwardMs(0, 2, 0), times.backwardMs(1, 1, 1), times.backwardWeightMs(0, 0, 1)], [0, 0, 0]);
});

test('a device that takes twice as long does so for everything that its times say, and for no more', () => {
  const all = {
    forwardMs: [[1, 2]],
    backwardMs: [[3, 4]],
    backwardInputMs: [[1.5, 2]],
    backwardWeightMs: [[2, 2.5]],
    stepMs: [[3.5, 5]],
    updateMs: [0.5, 0],
    callMs: 0.25,
    handlingMsPerMiB: 6,
    reducingMsPerMiB: 8,
    frameMs: 0.5,
    passMs: 0.75,
  };
  assert.deepEqual(scaledTimes(all, 2), {
    forwardMs: [[2, 4]],
    backwardMs: [[6, 8]],
    backwardInputMs: [[3, 4]],
    backwardWeightMs: [[4, 5]],
    stepMs: [[7, 10]],
    updateMs: [1, 0],
    callMs: 0.5,
    handlingMsPerMiB: 12,
    reducingMsPerMiB: 16,
    frameMs: 1,
    passMs: 1.5,
  });
  const { forwardMs, backwardMs } = all;
  assert.deepEqual(scaledTimes({ forwardMs, backwardMs }, 2), { forwardMs: [[2, 4]], backwardMs: [[6, 8]] });
});
