import assert from 'node:assert/strict';
import { test } from 'node:test';
import { systemClock } from '../../clock.ts';
import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import { DriftWatch } from './drift.ts';

const layer = (name: string): Profile['layers'][number] => ({
  name,
  outputBytes: 4,
  weightBytes: 4,
  savedBytes: 4,
  flops: 1,
});
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

/** A watch over rounds of a second whose corrections are taken over. */
function watched() {
  let nowMs = 0;
  let known = profile;
  const watch = new DriftWatch({ ...systemClock, now: () => nowMs });
  /** One round; what was seen when it was the last of enough. */
  const round = (a: number, b = 30) => {
    nowMs += 1_000;
    if (!watch.add({ a: { busyMs: a }, b: { busyMs: b } })) return undefined;
    const seen = watch.look(known, plan, cluster);
    known = seen.profile;
    return seen;
  };
  /** Looks until there are changes, `most` of them at most. */
  const looks = (a: number, b = 30, most = 100) => {
    for (let count = 0; count < most; ) {
      const seen = round(a, b);
      if (seen === undefined) continue;
      count++;
      if (seen.changes !== undefined) return { count, factors: seen.changes.factors };
    }
    return undefined;
  };
  return { watch, round, looks };
}

/** The first rounds of a layout, slow as they are. */
function settle({ round }: ReturnType<typeof watched>): void {
  for (let count = 0; count < 10; count++) assert.equal(round(100, 100), undefined);
}

test('a look is every ten seconds once a layout has settled; repeated drift is reported ever later', () => {
  const run = watched();
  const { watch, looks } = run;
  settle(run);
  assert.equal(looks(20, 30, 1), undefined);
  assert.deepEqual(looks(40), { count: 1, factors: { a: 2 } });
  assert.deepEqual(looks(80), { count: 2, factors: { a: 2 } });
  assert.deepEqual(looks(20), { count: 4, factors: { a: 0.25 } });
  // Steady for 80, 40, 20 and 10 s: as at first. What came and went meanwhile is not reported.
  for (const ms of [20, 40, 20, 40, 40, 20, 20, 20]) assert.equal(looks(ms, 30, 1), undefined);
  assert.equal(looks(20, 30, 7), undefined);
  assert.deepEqual(looks(40), { count: 1, factors: { a: 2 } });
  // A new layout settles first.
  watch.begin();
  settle(run);
  assert.deepEqual(looks(20), { count: 1, factors: { a: 0.5 } });
});

test('what changed in the first half of ten seconds is seen after them', () => {
  const run = watched();
  settle(run);
  for (let count = 0; count < 4; count++) run.round(20);
  assert.deepEqual(run.looks(40), { count: 1, factors: { a: 2 } });
});

test('after long rounds, five are waited for', () => {
  let nowMs = 0;
  const watch = new DriftWatch({ ...systemClock, now: () => nowMs });
  const enough = Array.from({ length: 10 }, () => {
    nowMs += 1e6;
    return watch.add({ a: { busyMs: 20 } });
  });
  assert.deepEqual(enough, [false, false, false, false, false, false, false, false, false, true]);
});

test('no other plan if all devices slow down alike; one if a single device is a tenth slower for a minute', () => {
  const alike = watched();
  settle(alike);
  assert.equal(alike.looks(23, 34.5, 20), undefined);
  const uneven = watched();
  settle(uneven);
  assert.deepEqual(uneven.looks(22.4, 30), { count: 5, factors: {} });
  assert.equal(uneven.looks(22.4, 30, 20), undefined);
});
