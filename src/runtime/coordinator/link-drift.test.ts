// A link that becomes slow in training: it is noticed from what rounds send over it, training moves away from it, and
// it is measured again now and then.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, Plan, StagePlan } from '../../cluster/cluster.ts';
import {
  difference,
  type MemoryCluster,
  type MemoryRun,
  runAlone,
  startCluster,
} from '../../testing/memory-cluster.ts';
import { batches, subjectOf, wideNet } from '../../testing/training-subjects.ts';
import { createVirtualClock } from '../../testing/virtual-clock.ts';

/** A pipeline of two devices. */
function planOver(...devices: readonly [string, string]): Plan {
  const stages = devices.map(
    (device, index): StagePlan => ({
      layers: index === 0 ? [0, 1] : [1, 2],
      devices: [device],
      samples: [4],
      inFlight: 2 - index,
    }),
  );
  const predicted = { roundMs: 1, samplesPerS: 8000, peakMemoryMiB: {} };
  return { planner: 'best', schedule: '1f1b', batchSize: 8, microBatchSize: 4, microBatchCount: 2, stages, predicted };
}

const mbpsOf = ({ links }: Cluster, a: string, b: string): number =>
  links.pairs?.find(({ between }) => between.includes(a) && between.includes(b))?.bandwidthMbps ?? Number.NaN;

const layoutsOf = ({ events }: MemoryCluster): string[] =>
  events.flatMap((event) =>
    event.kind === 'deployment' ? [event.plan.stages.map(({ devices }) => devices.join('+')).join(' | ')] : [],
  );

const isAbout = (value: number | undefined, expected: number): boolean =>
  value !== undefined && Math.abs(value / expected - 1) < 0.1;

test('2 Mbps become 0.1: training continues over another link, all devices stay; the link is used again when fast', {
  timeout: 120_000,
}, async () => {
  const clock = createVirtualClock();
  const [usual, changing] = [
    { clock, bandwidthMbps: 2 },
    { clock, bandwidthMbps: 2 },
  ];
  const net = wideNet();
  const subject = subjectOf(net, 8);
  const batch = batches(net, subject);
  const known: number[] = [];
  const run: MemoryRun = {
    subject,
    batch: (round) => {
      if (round === 20) changing.bandwidthMbps = 0.1;
      return batch(round);
    },
    workerNames: ['a', 'b', 'c'],
    machine: { endRound: 260, replicateEvery: 1_000_000 },
    clock,
    links: usual,
    linkBetween: (a, b) => ([a, b].sort().join() === 'a,b' ? changing : undefined),
    choosePlan: () => planOver('a', 'b'),
    planAgain: async (_profile, cluster) => {
      known.push(mbpsOf(cluster, 'a', 'b'));
      return mbpsOf(cluster, 'a', 'b') < 1 ? planOver('a', 'c') : planOver('a', 'b');
    },
    observe: (event, cluster) => {
      if (event.kind !== 'recovered') return;
      changing.bandwidthMbps = 2;
      assert.equal(cluster.workers.size, 3);
    },
  };
  const cluster = await startCluster(run);
  const { loss, weight, worst } = await clock.runUntil(
    (async () => difference(await cluster.outcome(), await runAlone({ ...run, batch, microBatchSize: 4 })))(),
  );
  const drifts = cluster.events.flatMap((event) => (event.kind === 'drift' ? event.links : []));
  const [slower, again] = drifts;
  assert.deepEqual(slower?.between, ['a', 'b']);
  assert.ok(isAbout(slower?.beforeMbps, 2) && isAbout(slower?.mbps, 0.1), JSON.stringify(slower));
  assert.deepEqual(again && [...again.between].sort(), ['a', 'b']);
  assert.ok(isAbout(again?.beforeMbps, 0.1) && isAbout(again?.mbps, 2), JSON.stringify(again));
  assert.equal(drifts.length, 2);
  assert.ok(known.some((mbps) => isAbout(mbps, 0.1)) && isAbout(known.at(-1), 2), `planned with ${known.join()} Mbps`);
  assert.deepEqual(layoutsOf(cluster), ['a | b', 'a | c']);
  assert.ok(!cluster.events.some((event) => event.kind === 'left' || event.kind === 'suspected'));
  assert.ok(loss <= 1e-5, `losses differ by ${loss}`);
  assert.ok(weight <= 1e-5, `${worst} differs by ${weight}`);
});
