// Streams of ticks: the period is exact, and the slow simulator's, which runs rounds until they repeat themselves.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, PlanLayout, Profile } from '../cluster/cluster.ts';
import { createRandom } from '../random.ts';
import { checkProgram } from '../schedule/check.ts';
import { program } from '../schedule/generate.ts';
import { randomCluster, randomPlan, randomProfile, withRandomCompression } from '../testing/random-plans.ts';
import { slowPeriodMs } from '../testing/slow-stream.ts';
import { createSimulator, simulate } from './simulate.ts';
import type { Simulation } from './simulation.ts';
import { repeatedProgram } from './steady.ts';

const layer = (name: string): Profile['layers'][number] => ({
  name,
  outputBytes: 12_500,
  weightBytes: 2 ** 20,
  savedBytes: 2 ** 18,
  flops: 1,
});
const profile: Profile = {
  model: 'three layers',
  inputBytes: 0,
  labelBytes: 0,
  layers: ['one', 'two', 'three'].map(layer),
  batchSizes: [1],
  devices: { board: { forwardMs: [[2, 2, 2]], backwardMs: [[4, 4, 4]] } },
};

const clusterAt = (bandwidthMbps: number): Cluster => ({
  devices: ['a', 'b', 'c'].map((name) => ({ name, kind: 'board', memoryMiB: 100 })),
  links: { default: { bandwidthMbps } },
});

/** Stages of one layer and one device each; `inFlight` by stage. */
function straight(inFlight: readonly number[], microBatchCount = 1): PlanLayout {
  const names = ['a', 'b', 'c'];
  return {
    planner: 'hand',
    schedule: 'async',
    batchSize: microBatchCount,
    microBatchSize: 1,
    microBatchCount,
    stages: inFlight.map((kept, stage) => ({
      layers: [stage, stage === inFlight.length - 1 ? 3 : stage + 1],
      devices: [names[stage] ?? ''],
      samples: [1],
      inFlight: kept,
    })),
  };
}

const run = (plan: PlanLayout, bandwidthMbps: number): Simulation =>
  simulate(program(plan), plan, profile, clusterAt(bandwidthMbps), { optimizerState: 1 });

test('by hand: three stages that never wait; links that take long; more in flight hides them', () => {
  // Forward 2, backward 4, links without a time: a tick takes what a device computes.
  //   a  F0 F1 F2 .. B0 F3 B1        fills in 2 + 2 ms; drains when the last round has gone back
  const { roundMs, samplesPerS, stream, devices } = run(straight([3, 2, 1]), 1e9);
  assert.deepEqual([Math.round(1e6 * roundMs) / 1e6, Math.round(samplesPerS)], [6, 167]);
  assert.equal(stream?.roundCount, 5);
  assert.deepEqual([stream?.isExact, Math.round(stream?.fillMs ?? 0)], [true, 4]);
  assert.ok((devices.a?.idleFraction ?? 1) < 1e-6);
  // 12,500 bytes at 100 Mbps: 1 ms each way and border. Three micro-batches are in flight on a way of 3 · 6 + 4 · 1 ms.
  assert.equal(run(straight([3, 2, 1]), 100).roundMs, 22 / 3);
  // Two of the last two stages: 2 · 6 + 2 · 1 ms would be 7 ms each; the longer way binds.
  assert.equal(run(straight([5, 3, 1]), 100).roundMs, 6);
  assert.equal(run(straight([3, 2, 1], 4), 100).roundMs, (4 * 22) / 3);
});

test('versions count as memory: weights times staleness, beside eq. 3', () => {
  // 1 MiB of weights, gradients and momentum each, two versions before; three, two and one micro-batches of 0.25 MiB.
  const { devices } = run(straight([3, 2, 1]), 100);
  assert.deepEqual(
    ['a', 'b', 'c'].map((name) => devices[name]?.peakMemoryMiB),
    [5.75, 5.5, 5.25],
  );
  // Without vertical sync, a stage keeps what its own rounds read.
  const plan = { ...straight([3, 2, 1]), staleness: [2, 1, 0] };
  assert.deepEqual(
    Object.values(run(plan, 100).devices).map(({ peakMemoryMiB }) => peakMemoryMiB),
    [5.75, 4.5, 3.25],
  );
  // With four micro-batches a round, one version before is enough.
  assert.equal(run(straight([3, 2, 1], 4), 100).devices.a?.peakMemoryMiB, 4.75);
});

test('events carry their round, from the first to the last', () => {
  const { events } = run(straight([3, 2, 1]), 100);
  const text = (device: string): string =>
    events
      .filter((event) => event.device === device && event.to === undefined)
      .map(({ kind, round }) => `${kind === 'forward' ? 'F' : 'B'}${round}`)
      .join(' ');
  assert.equal(text('a'), 'F0 F1 F2 B0 F3 B1 F4 B2 B3 B4');
  assert.equal(text('c'), 'F0 B0 F1 B1 F2 B2 F3 B3 F4 B4');
});

test('rounds that do not overlap, one after the other: as many rounds as you like, by their ends', () => {
  for (let seed = 0; seed < 20; seed++) {
    const plan = randomPlan(seed);
    const { dataDevice: _, ...cluster } = randomCluster(seed, plan);
    const random = randomProfile(seed, plan, cluster);
    const simulator = createSimulator(random, cluster);
    const { roundMs, stream } = simulator(program(plan), plan, { isStream: true, events: false });
    const longMs = (count: number): number => {
      const long = repeatedProgram(program(plan), count);
      return simulator(long, { ...plan, batchSize: count * plan.batchSize, microBatchCount: long.microBatchCount })
        .roundMs;
    };
    assert.equal(stream?.isExact, true);
    assert.equal((longMs(30) - longMs(18)) / 12, roundMs, `seed ${seed}`);
  }
});

/** A random plan as a stream, with as few micro-batches in flight as can be, or more. */
function randomStream(seed: number): PlanLayout {
  const random = createRandom(seed, 21);
  const plan = seed % 3 === 0 ? withRandomCompression(randomPlan(seed, 3), seed) : randomPlan(seed, 3);
  const more = random.integer(4);
  let least = Number.POSITIVE_INFINITY;
  const stages = plan.stages.map(({ buckets: _, ...stage }, index) => {
    least = Math.min(least, plan.stages.length - index + random.integer(more + 1));
    return { ...stage, inFlight: least };
  });
  return { ...plan, schedule: 'async', stages };
}

test('the period equals the slow simulator’s exactly on random plans', () => {
  let sharedCount = 0;
  for (let seed = 3000; seed < 3024; seed++) {
    const plan = randomStream(seed);
    const cluster = randomCluster(seed, plan);
    const random = randomProfile(seed, plan, cluster);
    const tick = program(plan);
    checkProgram(tick, plan);
    const { roundMs, stream } = simulate(tick, plan, random, cluster, { events: false });
    if (stream?.isExact === true) assert.equal(roundMs, slowPeriodMs(plan, random, cluster), `seed ${seed}`);
    else sharedCount++;
  }
  assert.ok(sharedCount <= 1, `${sharedCount} do not repeat themselves`);
});
