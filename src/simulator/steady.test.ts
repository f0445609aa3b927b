// Consecutive rounds, by hand and compared with single ones.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, PlanLayout, Profile } from '../cluster/cluster.ts';
import { program } from '../schedule/generate.ts';
import { randomCluster, randomPlan, randomProfile } from '../testing/random-plans.ts';
import { createSimulator } from './simulate.ts';
import { steadyRoundMs } from './steady.ts';

const layer = (name: string): Profile['layers'][number] => ({
  name,
  outputBytes: 0,
  weightBytes: 0,
  savedBytes: 0,
  flops: 1,
});
const profile: Profile = {
  model: 'two layers',
  inputBytes: 0,
  labelBytes: 0,
  layers: [layer('one'), { ...layer('two'), weightBytes: 125_000 }],
  batchSizes: [1],
  devices: { board: { forwardMs: [[1, 2]], backwardMs: [[3, 4]] } },
};
const cluster: Cluster = {
  devices: ['a', 'b', 'c'].map((name) => ({ name, kind: 'board', memoryMiB: 100 })),
  links: { default: { bandwidthMbps: 10 } },
};

function plan(stages: readonly (readonly string[])[], microBatchCount: number): PlanLayout {
  return {
    planner: 'hand',
    schedule: '1f1b',
    batchSize: microBatchCount,
    microBatchSize: 1,
    microBatchCount,
    stages: stages.map((devices, stage) => ({
      layers: [stage, stages.length === 1 ? 2 : stage + 1],
      devices,
      samples: devices.map((_, index) => (index === 0 ? 1 : 0)),
      inFlight: 2 * (stages.length - stage) - 1,
    })),
  };
}

const both = (layout: PlanLayout): readonly number[] => {
  const simulator = createSimulator(profile, cluster);
  return [
    simulator(program(layout), layout, { events: false }).roundMs,
    steadyRoundMs(simulator, program(layout), layout),
  ];
};

test('by hand: a device alone; a pipeline that waits for its first stage; an AllReduce during the next round', () => {
  assert.deepEqual(both(plan([['a']], 3)), [30, 30]);
  // a: F0 0–1, F1 1–2; b: F0 1–3, B0 3–7, F1 7–9, B1 9–13; a: B1 13–16, and the next round's F0 then.
  assert.deepEqual(both(plan([['a'], ['b']], 2)), [16, 16]);
  // 125,000 bytes at 10 Mbps: 100 ms, after 13; the next round's first forward pass is there at 17, long before they
  // are over.
  assert.deepEqual(both(plan([['a'], ['b', 'c']], 2)), [113, 112]);
});

test('300 random plans: at least the busiest device’s or link’s time, and hardly more than a single round', () => {
  let shorterCount = 0;
  for (let seed = 0; seed < 300; seed++) {
    const layout = randomPlan(seed);
    const devices = randomCluster(seed, layout);
    const simulator = createSimulator(randomProfile(seed, layout, devices), devices);
    const { roundMs, devices: found, links } = simulator(program(layout), layout, { events: false });
    const leastMs = Math.max(...[...Object.values(found), ...Object.values(links)].map(({ busyMs }) => busyMs));
    const steadyMs = steadyRoundMs(simulator, program(layout), layout);
    // The next round's inputs share the links with this one's last gradients.
    assert.ok(
      steadyMs >= leastMs * (1 - 1e-9) && steadyMs <= roundMs * 1.05,
      `seed ${seed}: ${steadyMs}, alone ${roundMs}, busy ${leastMs}`,
    );
    if (steadyMs < 0.99 * roundMs) shorterCount++;
  }
  assert.ok(shorterCount > 20, `${shorterCount}`);
});

test('of rounds that overlap: the period of the stream', () => {
  const layout = { ...plan([['a'], ['b']], 2), schedule: 'async' };
  const simulator = createSimulator(profile, cluster);
  const { roundMs } = simulator(program(layout), layout, { events: false });
  assert.equal(steadyRoundMs(simulator, program(layout), layout), roundMs);
  assert.equal(roundMs, 12, 'stage 1 computes two micro-batches of 2 + 4 ms');
});
