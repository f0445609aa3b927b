import assert from 'node:assert/strict';
import { test } from 'node:test';
import { systemClock } from '../clock.ts';
import type { Cluster, Plan, Profile } from '../cluster/cluster.ts';
import { createRandom } from '../random.ts';
import { program } from '../schedule/generate.ts';
import { simulate } from '../simulator/simulate.ts';
import { DriftWatch, refreshProfile } from './drift.ts';

const layer = (name: string): Profile['layers'][number] => ({ name, outputBytes: 4, weightBytes: 4, savedBytes: 4, flops: 1 });
const profile: Profile = {
  model: 'two layers',
  inputBytes: 4,
  labelBytes: 4,
  layers: [layer('one'), layer('two')],
  batchSizes: [1],
  devices: { board: { forwardMs: [[1, 2]], backwardMs: [[3, 4]] } },
};
const cluster: Cluster = {
  devices: ['a', 'b'].map((name) => ({ name, kind: 'board', memoryMiB: 100 })),
  links: { default: { bandwidthMbps: 1000 } },
};
/** a computes 5 · (1 + 3) = 20 ms a round, b 5 · (2 + 4) = 30. */
const plan: Plan = {
  planner: 'hand',
  schedule: '1f1b',
  batchSize: 5,
  microBatchSize: 1,
  microBatchCount: 5,
  stages: [
    { layers: [0, 1], devices: ['a'], samples: [1], inFlight: 3 },
    { layers: [1, 2], devices: ['b'], samples: [1], inFlight: 1 },
  ],
  predicted: { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} },
};

const many = (count: number, value: number): number[] => new Array<number>(count).fill(value);

test('a device that falls to a quarter of its speed is told when three quarters of its rounds say so; only its times change', () => {
  const rounds = (slowCount: number): readonly number[] => [...many(16 - slowCount, 20), ...many(slowCount, 80)];
  assert.deepEqual(refreshProfile(profile, plan, cluster, { a: rounds(11), b: many(16, 30) }), { profile, factors: {}, drift: {} });
  const { profile: found, drift } = refreshProfile(profile, plan, cluster, { a: rounds(13), b: many(16, 30) });
  assert.deepEqual(drift, { a: 4 });
  assert.deepEqual(found.devices, { board: profile.devices['board'], a: { forwardMs: [[4, 8]], backwardMs: [[12, 16]] } });
  // With the profile refreshed, the same rounds are as expected; when the device recovers, that is told too.
  assert.deepEqual(refreshProfile(found, plan, cluster, { a: rounds(13) }).drift, {});
  assert.deepEqual(refreshProfile(found, plan, cluster, { a: many(8, 20) }).drift, { a: 0.25 });
});

test('a tenth is no drift, but the profile is corrected by it, and with it predicts the rounds', () => {
  const rounds = { a: [21.6, 22, 22, 22.4, 22, 30], b: [27, 26.9, 27, 27.1, 20, 27] };
  const { profile: found, factors, drift } = refreshProfile(profile, plan, cluster, rounds);
  assert.deepEqual(factors, { a: 1.1, b: 0.9 });
  assert.deepEqual(drift, {});
  const { devices } = simulate(program(plan), plan, found, cluster, { events: false });
  for (const [device, ms] of [
    ['a', 22],
    ['b', 27],
  ] as const)
    assert.ok(Math.abs((devices[device]?.busyMs ?? 0) / ms - 1) < 1e-6, device);
  // Rounds like these say nothing new then, nor do some that are a little otherwise.
  for (const more of [rounds, { a: many(8, 23), b: many(8, 25.8) }])
    assert.equal(refreshProfile(found, plan, cluster, more).profile, found);
});

test('devices that are a little slower alike do not ask for another plan; one that is a tenth slower than the others does, untold', () => {
  let nowMs = 0;
  const watch = new DriftWatch({ ...systemClock, now: () => nowMs });
  const seen = (a: number, b: number): { readonly drift: object; readonly mayGain: boolean } => {
    for (;;) {
      nowMs += 1_000;
      if (!watch.add({ a: { busyMs: a }, b: { busyMs: b } })) continue;
      const { drift, mayGain } = watch.look(profile, plan, cluster);
      return { drift, mayGain };
    }
  };
  assert.deepEqual(seen(24, 36), { drift: {}, mayGain: false });
  assert.deepEqual(seen(22.4, 30), { drift: {}, mayGain: true });
  assert.deepEqual(seen(21.6, 30), { drift: {}, mayGain: false });
  assert.deepEqual(seen(30, 45), { drift: { a: 1.5, b: 1.5 }, mayGain: true });
});

test('what bytes cost may be paid while a device waits, or slow its computing: neither is drift', () => {
  // 8 bytes a micro-batch and device, forward and backward: 20 ms a round.
  const costly: Profile = { ...profile, devices: { board: { forwardMs: [[1, 2]], backwardMs: [[3, 4]], handlingMsPerMiB: 2 ** 19 } } };
  const drift = (a: number): Readonly<Record<string, number>> => refreshProfile(costly, plan, cluster, { a: many(8, a) }).drift;
  for (const ms of [17, 20, 40, 48]) assert.deepEqual(drift(ms), {}, `${ms} ms`);
  assert.deepEqual(drift(60), { a: 1.5 });
  assert.deepEqual(drift(10), { a: 0.5 });
});

test('jitter of a fifth, a quarter of the rounds slow or fast, and fewer than five rounds do not count', () => {
  for (let seed = 0; seed < 100; seed++) {
    const random = createRandom(seed, 5);
    const a = Array.from(
      { length: 16 },
      (_, round) => 20 * (round % 4 === 1 ? (seed % 2 === 0 ? 10 : 0.1) : 0.85 + 0.35 * random.uniform()),
    );
    const { factors, drift } = refreshProfile(profile, plan, cluster, { a, b: [300, 300, 300, 300], stranger: [1, 1, 1, 1, 1] });
    assert.deepEqual(drift, {}, `seed ${seed}`);
    for (const [device, factor] of Object.entries(factors)) assert.ok(device === 'a' && factor > 0.85 && factor < 1.2, `seed ${seed}`);
  }
});

test('drift is looked for every ten seconds once a layout has settled, and more and more rarely where it is found again and again', () => {
  let nowMs = 0;
  const clock = { ...systemClock, now: () => nowMs };
  const watch = new DriftWatch(clock);
  /** Rounds of a second until there are enough: their number, and what they say. */
  const look = (busyMs: number): [rounds: number, factor: number | undefined] => {
    for (let rounds = 1; ; rounds++) {
      nowMs += 1_000;
      if (watch.add({ a: { busyMs }, b: { busyMs: 30 } })) return [rounds, watch.look(profile, plan, cluster).drift['a']];
    }
  };
  // The first rounds are slow everywhere.
  for (let round = 0; round < 10; round++) {
    nowMs += 1_000;
    assert.equal(watch.add({ a: { busyMs: 100 }, b: { busyMs: 100 } }), false);
  }
  assert.deepEqual(look(20), [10, undefined]);
  assert.deepEqual(look(40), [10, 2]);
  assert.deepEqual(look(40), [20, 2]);
  assert.deepEqual(look(20), [40, undefined]);
  assert.deepEqual(look(20), [20, undefined]);
  assert.deepEqual(look(20), [10, undefined]);
  for (let index = 0; index < 5; index++) look(40);
  assert.deepEqual(look(40), [300, 2]);
  // A new layout: what was seen of the last one does not count.
  for (let index = 0; index < 200; index++) assert.equal(watch.add({ a: { busyMs: 40 } }), false);
  watch.begin();
  assert.deepEqual(look(20), [10 + 300, undefined]);
  // Long rounds: five are needed.
  nowMs += 1_000_000;
  for (let rounds = 1; rounds < 5; rounds++) assert.equal(watch.add({ a: { busyMs: 20 } }), false);
  assert.equal(watch.add({ a: { busyMs: 20 } }), true);
});
