// Devices receive in advance the layouts that they would run after a loss, and run exactly these when it happens.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan } from '../../cluster/cluster.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import {
  difference,
  type MemoryCluster,
  type MemoryRun,
  runAlone,
  startCluster,
} from '../../testing/memory-cluster.ts';
import { batches, subjectOf, wideNet } from '../../testing/training-subjects.ts';
import { createVirtualClock } from '../../testing/virtual-clock.ts';

test('half a minute into training, devices receive the layouts that they would run after a loss, one after the other', {
  timeout: 120_000,
}, async () => {
  const clock = createVirtualClock();
  const net = wideNet();
  const subject = subjectOf(net, 8);
  const predicted = { roundMs: 1, samplesPerS: 8000, peakMemoryMiB: {} };
  const plan: Plan = {
    ...handPlan({ schedule: '1f1b', cuts: [1], shares: [[2, 2], [4]], microBatchCount: 2 }, 2),
    predicted,
  };
  const announced: Announced[] = [];
  let trainingMs = 0;
  const run: MemoryRun = {
    subject,
    batch: batches(net, subject),
    workerNames: ['a', 'b', 'c'],
    machine: { endRound: 100, replicateEvery: 5, learningRate: () => 0.01 },
    clock,
    links: { clock, bandwidthMbps: 0.5 },
    choosePlan: () => plan,
    observe: (event, cluster) => {
      if (event.kind === 'deployment' && trainingMs === 0) trainingMs = clock.now();
      // After the last announcement, the only device of its stage is lost.
      if (event.kind === 'replicated' && plansOf(announced).length === 3 && cluster.workers.has('c'))
        queueMicrotask(() => cluster.kill('c'));
    },
  };
  const cluster = await startCluster(run);
  onReserve(cluster, (to, reserved) => announced.push({ atMs: clock.now() - trainingMs, to, plan: reserved }));
  const { loss, weight, worst } = await clock.runUntil(
    (async () => difference(await cluster.outcome(), await runAlone({ ...run, microBatchSize: 4 })))(),
  );
  checkAnnounced(announced);
  const before = cluster.events.slice(
    0,
    cluster.events.findIndex(({ kind }) => kind === 'recovering'),
  );
  const readyAfter = before.flatMap((event) => (event.kind === 'reserve-ready' ? [event.seconds] : []));
  assert.equal(readyAfter.length, 1, 'once for the first layout');
  for (const seconds of readyAfter) assert.ok(seconds >= 30 && seconds < 45, `ready after ${seconds} s`);
  const layouts = deployed(cluster);
  assert.equal(layouts.length, 2);
  const without = announced.find((one) => !one.plan.stages.some(({ devices }) => devices.includes('c')));
  assert.deepEqual(layouts[1], without?.plan);
  assert.ok(loss <= 1e-5, `losses differ by ${loss}`);
  assert.ok(weight <= 1e-5, `${worst} differs by ${weight}`);
});

/** A layout that a device hears of, and when, since training began. */
interface Announced {
  readonly atMs: number;
  readonly to: string;
  readonly plan: Plan;
}

/** Each of the first three layouts is announced once to each of its devices, half a minute into training. */
function checkAnnounced(announced: readonly Announced[]): void {
  for (const [index, reserved] of plansOf(announced).slice(0, 3).entries()) {
    const frames = announced.filter(({ plan }) => plan === reserved);
    assert.deepEqual(
      frames.map(({ to }) => to).sort(),
      [...new Set(reserved.stages.flatMap(({ devices }) => devices))].sort(),
    );
    for (const { atMs } of frames) assert.ok(atMs >= 30_000 && atMs < 45_000, `plan ${index} after ${atMs} ms`);
  }
}

/** Calls back for each layout that the coordinator announces to a device. */
function onReserve(cluster: MemoryCluster, announce: (to: string, plan: Plan) => void): void {
  for (const [to, { coordinatorLink }] of cluster.workers) {
    const send = coordinatorLink.send.bind(coordinatorLink);
    coordinatorLink.send = (frame, priority) => {
      if (frame.kind === 'reserve') announce(to, (frame.control as { plan: Plan }).plan);
      return send(frame, priority);
    };
  }
}

function plansOf(announced: readonly Announced[]): readonly Plan[] {
  return [...new Set(announced.map(({ plan }) => plan))];
}

function deployed({ events }: MemoryCluster): readonly Plan[] {
  return events.flatMap((event) => (event.kind === 'deployment' ? [event.plan] : []));
}

test('a spare hears of the places that it would take', { timeout: 120_000 }, async () => {
  const clock = createVirtualClock();
  const net = wideNet();
  const subject = subjectOf(net, 8);
  const predicted = { roundMs: 1, samplesPerS: 8000, peakMemoryMiB: {} };
  const plan: Plan = {
    ...handPlan({ schedule: '1f1b', cuts: [1], shares: [[4], [4]], microBatchCount: 2 }, 2),
    predicted,
  };
  const run: MemoryRun = {
    subject,
    batch: batches(net, subject),
    workerNames: ['a', 'b', 'c'],
    machine: { endRound: 100, replicateEvery: 5, learningRate: () => 0.01 },
    clock,
    links: { clock, bandwidthMbps: 0.5 },
    choosePlan: () => plan,
    observe: (event, cluster) => {
      if (event.kind === 'replicated' && announced.length === 4 && cluster.workers.has('a'))
        queueMicrotask(() => cluster.kill('a'));
    },
  };
  const announced: string[] = [];
  const drawn = ({ stages }: Plan): string => stages.map(({ devices }) => devices.join('+')).join(' | ');
  const cluster = await startCluster(run);
  onReserve(cluster, (to, reserved) => announced.push(`${to}: ${drawn(reserved)}`));
  await clock.runUntil(cluster.outcome());
  assert.deepEqual(announced.slice(0, 4), ['c: c | b', 'b: c | b', 'a: a | c', 'c: a | c']);
  assert.deepEqual(deployed(cluster).map(drawn), ['a | b', 'c | b']);
});

test('where rounds overlap, too, a loss brings the layout that devices have heard of', {
  timeout: 120_000,
}, async () => {
  const clock = createVirtualClock();
  const net = wideNet();
  const subject = subjectOf(net, 8);
  const predicted = { roundMs: 1, samplesPerS: 8000, peakMemoryMiB: {} };
  const form = { schedule: 'async', cuts: [1], shares: [[2, 2], [4]], microBatchCount: 2 };
  const plan: Plan = { ...handPlan(form, 2), predicted };
  const announced: Announced[] = [];
  const cluster = await startCluster({
    ...{ subject, batch: batches(net, subject), workerNames: ['a', 'b', 'c'], clock },
    machine: { endRound: 100, replicateEvery: 5, learningRate: () => 0.01 },
    links: { clock, bandwidthMbps: 0.5 },
    choosePlan: () => plan,
    observe: (event, at) => {
      if (event.kind === 'replicated' && plansOf(announced).length === 3 && at.workers.has('c'))
        queueMicrotask(() => at.kill('c'));
    },
  });
  onReserve(cluster, (to, reserved) => announced.push({ atMs: clock.now(), to, plan: reserved }));
  await clock.runUntil(cluster.outcome());
  const layouts = deployed(cluster);
  assert.equal(layouts.length, 2);
  assert.deepEqual(layouts[1], announced.find((one) => !devicesOf(one.plan).includes('c'))?.plan);
});

function devicesOf({ stages }: Plan): readonly string[] {
  return stages.flatMap(({ devices }) => devices);
}
