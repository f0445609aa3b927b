// Plans whose senders choose bits: with the most that links carry without holding up the devices.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import { activationEncodingNames } from '../../cluster/compression.ts';
import { finish } from '../steps.ts';
import { type AdaptivePlanInput, adaptivePlanSteps } from './adaptive.ts';
import { planInference } from './plan.ts';

const layerCount = 8;
/** A layer takes 5 ms a sample, and gives 100,000 floats. */
const times = { forwardMs: [Array(layerCount).fill(5)], backwardMs: [Array(layerCount).fill(0)] };
const profile: Profile = {
  ...{ model: 'made up', batchSizes: [1], inputBytes: 4, labelBytes: 0 },
  layers: Array.from({ length: layerCount }, (_, index) => ({
    ...{ name: `layer${index}`, outputBytes: 400_000, weightBytes: 1000, savedBytes: 0, flops: 1 },
  })),
  devices: { a: times, b: times },
};
const cluster = (bandwidthMbps: number): Cluster => ({
  devices: ['a', 'b'].map((name) => ({ name, memoryMiB: 1024 })),
  links: { default: { bandwidthMbps } },
});
const input = (bandwidthMbps: number): AdaptivePlanInput => ({
  ...{ profile, cluster: cluster(bandwidthMbps), batchSize: 1, microBatchSize: 1 },
  ...{ planner: 'best', objective: 'throughput' },
});
const bestOf = (bandwidthMbps: number): Plan => finish(adaptivePlanSteps(input(bandwidthMbps)));

test('links that are fast carry 16 bits, slower ones as many as keep the pace of the devices', () => {
  // Two halves take 20 ms each; a cut has 3.2 Mbit as float32. No codec is counted at more than a millisecond.
  const chosen = [1000, 60, 33, 24, 12].map((mbps) => bestOf(mbps).compression?.activation);
  assert.deepEqual(chosen, ['float16', 'uint8', 'uint6', 'uint4', 'uint2']);
});

test('no other bits make a plan that is more than 5 % faster, and more bits one that is as fast', () => {
  for (const mbps of [500, 70, 45, 33, 20, 9, 3]) {
    const plan = bestOf(mbps);
    const { isTimeUp: _, ...plain } = input(mbps);
    const speeds = activationEncodingNames.map(
      (encoding) => planInference({ ...plain, encoding }).predicted.samplesPerS,
    );
    const best = Math.max(...speeds);
    assert.ok(plan.predicted.samplesPerS >= 0.95 * best, `${mbps} Mbps`);
    const more = plan.compression?.activation === undefined ? 0 : speeds.findIndex((speed) => speed >= 0.95 * best);
    assert.equal(plan.compression?.activation ?? 'float16', activationEncodingNames[more]);
  }
});

test('time that is up ends the search of each number of bits in its turn', () => {
  const asked: number[] = [];
  const isTimeUp = (fraction: number): boolean => {
    asked.push(fraction);
    return true;
  };
  const { microBatchSize: _, ...open } = input(100);
  const plan = finish(adaptivePlanSteps({ ...open, batchSize: 4, isTimeUp }));
  assert.equal(plan.schedule, 'inference');
  assert.deepEqual(
    asked,
    [...new Set(asked)].sort((a, b) => a - b),
  );
  assert.equal(asked.length, activationEncodingNames.length);
});
