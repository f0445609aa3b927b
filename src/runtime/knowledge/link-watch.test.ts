import assert from 'node:assert/strict';
import { test } from 'node:test';
import { systemClock } from '../../clock.ts';
import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import { LinkWatch, withLinks } from './link-watch.ts';

const layer = (name: string): Profile['layers'][number] => ({
  name,
  outputBytes: 125_000,
  weightBytes: 4,
  savedBytes: 4,
  flops: 1,
});

/** Two layers, each 5 ms forward and 5 ms backward; 1 Mbit a sample between them. */
function profileWith(handlingMsPerMiB?: number): Profile {
  const times = {
    forwardMs: [[5, 5]],
    backwardMs: [[5, 5]],
    ...(handlingMsPerMiB === undefined ? {} : { handlingMsPerMiB }),
  };
  return {
    model: 'two',
    inputBytes: 4,
    labelBytes: 4,
    layers: [layer('one'), layer('two')],
    batchSizes: [1],
    devices: { board: times },
  };
}
const pairs = [
  { between: ['a', 'b'] as const, bandwidthMbps: 100 },
  { between: ['a', 'c'] as const, bandwidthMbps: 100 },
];
const cluster: Cluster = {
  devices: ['a', 'b', 'c'].map((name) => ({ name, kind: 'board', memoryMiB: 100 })),
  links: { default: { bandwidthMbps: 100 }, pairs },
};
/** 10 ms each way at 100 Mbps. */
const plan: Plan = {
  planner: 'hand',
  schedule: '1f1b',
  batchSize: 4,
  microBatchSize: 1,
  microBatchCount: 4,
  stages: [
    { layers: [0, 1], devices: ['a'], samples: [1], inFlight: 2 },
    { layers: [1, 2], devices: ['b'], samples: [1], inFlight: 1 },
  ],
  predicted: { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} },
};

function watchAt(): {
  watch: LinkWatch;
  pass(ms: number): void;
  report(device: string, peer: string, ...mbps: readonly number[]): void;
} {
  let nowMs = 0;
  const watch = new LinkWatch({ ...systemClock, now: () => nowMs });
  return {
    watch,
    pass: (ms) => {
      nowMs += ms;
    },
    report: (device, peer, ...rates) => {
      for (const mbps of rates) watch.add(device, { [peer]: mbps });
    },
  };
}

test('a link of a twentieth of its bandwidth is reported once, and planned with from then on', () => {
  const { watch, report } = watchAt();
  report('a', 'b', 5, 6, 5, 5);
  assert.deepEqual(watch.look(profileWith(), plan, cluster), [], 'four reports');
  report('a', 'b', 100, 4);
  assert.deepEqual(watch.look(profileWith(), plan, cluster), [{ between: ['a', 'b'], beforeMbps: 100, mbps: 5 }]);
  const corrected = watch.corrected(cluster);
  assert.deepEqual(corrected.links.pairs, [{ between: ['a', 'b'], bandwidthMbps: 5 }, pairs[1]]);
  assert.deepEqual(watch.look(profileWith(), plan, corrected), []);
});

test('the slower direction counts; half of the bandwidth, and every third round slow, do not', () => {
  const { watch, report } = watchAt();
  report('a', 'b', 90, 95, 95, 95, 95);
  report('b', 'a', 20, 20, 20, 20, 20);
  assert.deepEqual(
    watch.look(profileWith(), plan, cluster).map(({ mbps }) => mbps),
    [20],
  );
  for (const rates of [
    [55, 60, 52, 51, 50],
    [20, 100, 100, 20, 100, 100, 20, 100, 100],
  ]) {
    const other = watchAt();
    other.report('a', 'b', ...rates);
    assert.deepEqual(other.watch.look(profileWith(), plan, cluster), []);
  }
});

test('a slow link that no round waits for, or whose bytes keep the processors at its ends as busy, is none', () => {
  const { watch, report } = watchAt();
  report('a', 'c', 5, 5, 5, 5, 5);
  assert.deepEqual(watch.look(profileWith(), plan, cluster), [], 'the plan sends nothing there');
  report('a', 'b', 5, 5, 5, 5, 5);
  // A MiB takes 1678 ms at 5 Mbps.
  assert.deepEqual(watch.look(profileWith(500), plan, cluster), []);
  assert.equal(watch.look(profileWith(300), plan, cluster).length, 1);
});

test('a slow link in use shows that it has become faster; an unused one is measured again, ever less often', () => {
  const { watch, report, pass } = watchAt();
  const slow = Array.from({ length: 5 }, () => 5);
  report('a', 'b', ...slow);
  watch.look(profileWith(), plan, cluster);
  watch.begin();
  report('a', 'b', 40, 40, 45, 40, 40);
  assert.deepEqual(watch.look(profileWith(), plan, watch.corrected(cluster)), [
    { between: ['a', 'b'], beforeMbps: 5, mbps: 40 },
  ]);
  watch.begin();
  report('a', 'b', 300, 300, 300, 300, 300);
  assert.deepEqual(
    watch.look(profileWith(), plan, watch.corrected(cluster)),
    [{ between: ['a', 'b'], beforeMbps: 40, mbps: 100 }],
    'no more than before',
  );
  assert.equal(watch.corrected(cluster), cluster);

  watch.begin();
  report('a', 'b', ...slow);
  watch.look(profileWith(), plan, cluster);
  const asked: number[] = [];
  for (let second = 1; second <= 300; second++) {
    pass(1_000);
    if (watch.due().length > 0) asked.push(second);
    assert.equal(watch.measuredAgain(['b', 'a'], 8), undefined);
  }
  assert.deepEqual(asked, [30, 90, 210]);
  assert.deepEqual(watch.measuredAgain(['b', 'a'], 90), { between: ['a', 'b'], beforeMbps: 5, mbps: 100 });
  pass(10_000_000);
  assert.deepEqual(watch.due(), []);
  assert.equal(watch.measuredAgain(['b', 'a'], 900), undefined, 'nobody asked');
});

test('a cluster that its user describes: links are no faster than they were seen to be, the last time', () => {
  const described: Cluster = {
    ...cluster,
    links: { default: { bandwidthMbps: 50, latencyMs: 3 }, pairs: [pairs[1] as (typeof pairs)[number]] },
  };
  const change = (a: string, b: string, mbps: number) => ({ between: [a, b] as const, beforeMbps: 1, mbps });
  assert.equal(withLinks(described, []), described);
  assert.equal(withLinks(described, [change('a', 'stranger', 5)]), described);
  const known = withLinks(described, [change('c', 'a', 5), change('b', 'c', 2), change('b', 'c', 80)]);
  assert.deepEqual(known.links, {
    default: { bandwidthMbps: 50, latencyMs: 3 },
    pairs: [
      { between: ['c', 'a'], bandwidthMbps: 5, latencyMs: 0 },
      { between: ['b', 'c'], bandwidthMbps: 50, latencyMs: 3 },
    ],
  });
});

test('a device that comes back is measured anew: what was known of its links is forgotten', () => {
  const { watch, report } = watchAt();
  report('a', 'b', 5, 5, 5, 5, 5);
  watch.look(profileWith(), plan, cluster);
  watch.measured('c');
  assert.notEqual(watch.corrected(cluster), cluster);
  watch.measured('b');
  assert.equal(watch.corrected(cluster), cluster);
});
