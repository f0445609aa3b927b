import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster } from './cluster.ts';
import { deviceKinds, kindModel, type ModelTable, profileOfKinds } from './device-kinds.ts';
import { layerTimes } from './times.ts';
import { parseProfile } from './validate.ts';

const table: ModelTable = {
  model: 'two',
  inputBytes: 100,
  labelBytes: 8,
  layers: [
    { name: 'wide', outputBytes: 10, weightBytes: 10, savedBytes: 10, flops: 1_000, trafficBytes: 3_609_600 },
    { name: 'deep', outputBytes: 10, weightBytes: 10, savedBytes: 10, flops: 137_588_000, trafficBytes: 20 },
  ],
};

function clusterOf(...kinds: (string | undefined)[]): Cluster {
  return {
    devices: kinds.map((kind, index) => ({ name: `d${index}`, memoryMiB: 1, ...(kind === undefined ? {} : { kind }) })),
    links: { default: { bandwidthMbps: 100 } },
  };
}

test('a layer costs its launch and the longer of arithmetic and traffic; its backward pass costs twice that', () => {
  const profile = parseProfile(profileOfKinds(table, clusterOf('jetson-nano')));
  const times = layerTimes(profile.devices['jetson-nano'] ?? { forwardMs: [], backwardMs: [] }, profile.batchSizes);
  // 3.6096 MB at 0.141 · 25.6 = 3.6096 GB/s: 1 ms a sample. 137.588 Mflop at 0.583 · 236 = 137.588 Gflop/s: 1 ms a
  // sample.
  for (const samples of [1, 7, 32, 100]) {
    for (const layer of [0, 1]) {
      assert.ok(
        Math.abs(times.forwardMs(layer, layer + 1, samples) - (1.64 + samples)) < 1e-9,
        `layer ${layer}, ${samples} samples`,
      );
      assert.ok(Math.abs(times.backwardMs(layer, layer + 1, samples) - 2 * (1.64 + samples)) < 1e-9);
    }
  }
});

test('"@N%" is the device at that share of its speed; the profile holds each kind of the cluster once', () => {
  const whole = kindModel('rcc-ve');
  const quarter = kindModel('rcc-ve@25%');
  assert.equal(quarter?.gigaflops, (whole?.gigaflops ?? 0) / 4);
  assert.equal(kindModel('jetson-nano@50%')?.launchMs, 3.28);
  assert.equal(kindModel('rcc-ve@0%'), undefined);
  assert.equal(kindModel('toString'), undefined);
  const profile = profileOfKinds(table, clusterOf('rcc-ve', 'rcc-ve@25%', 'rcc-ve'));
  assert.deepEqual(Object.keys(profile.devices), ['rcc-ve', 'rcc-ve@25%']);
  const deepMs = (kind: string): number => profile.devices[kind]?.forwardMs[0]?.[1] ?? Number.NaN;
  assert.ok(Math.abs(deepMs('rcc-ve@25%') - 4 * deepMs('rcc-ve')) < 1e-9);
});

test('a device without a known kind is one sentence with the fix', () => {
  assert.throws(() => profileOfKinds(table, clusterOf('rcc-ve', 'toaster')), {
    name: 'InputError',
    message: /^Device "d1" of the cluster has the kind "toaster", which has no performance model; give it one of .*\.$/,
  });
  assert.throws(() => profileOfKinds(table, clusterOf(undefined)), {
    message: /^Device "d0" of the cluster has no kind; /,
  });
});

test('every kind says where its constants come from', () => {
  for (const [name, { source, gigaflops }] of Object.entries(deviceKinds)) {
    assert.match(source, /fitted|Table|not fitted/, name);
    assert.ok(gigaflops > 0);
  }
});
