// Where the devices left cannot hold the plan of those that were lost, a planner makes another one while they wait,
// however long that takes.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan, StagePlan } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import {
  difference,
  type MemoryCluster,
  type MemoryRun,
  runAlone,
  startCluster,
} from '../../testing/memory-cluster.ts';
import { batches, regressionNet, subjectOf } from '../../testing/training-subjects.ts';
import { createVirtualClock } from '../../testing/virtual-clock.ts';
import type { PlanWish } from '../knowledge/planning-options.ts';

const timeout = 60_000;
const predicted = { roundMs: 1, samplesPerS: 8000, peakMemoryMiB: {} };
const first: Plan = {
  ...handPlan({ schedule: '1f1b', cuts: [2], shares: [[2, 2], [4]], microBatchCount: 2 }, 4),
  predicted,
};

/** Four micro-batches of two samples, on one or two devices. */
function smaller(devices: readonly string[]): Plan {
  const stage = (device: string, layers: readonly [number, number], inFlight: number): StagePlan => ({
    ...{ layers, devices: [device], samples: [2], inFlight },
  });
  const [a = '', b] = devices;
  const stages = b === undefined ? [stage(a, [0, 4], 1)] : [stage(b, [0, 3], 2), stage(a, [3, 4], 1)];
  return { planner: 'best', schedule: '1f1b', batchSize: 8, microBatchSize: 2, microBatchCount: 4, stages, predicted };
}

/** Devices without memory: light re-planning finds no plan. */
function runWith(planAgain: MemoryRun['planAgain'], more: Partial<MemoryRun> = {}): MemoryRun {
  const net = regressionNet();
  const subject = subjectOf(net, 8);
  return {
    subject,
    batch: batches(net, subject),
    workerNames: ['a', 'b', 'c'],
    machine: { endRound: 6, checkpointEvery: 4, replicateEvery: 1 },
    memoryMiB: 0,
    links: { bandwidthMbps: 10_000 },
    choosePlan: () => first,
    ...(planAgain === undefined ? {} : { planAgain }),
    ...more,
  };
}

async function expectAsAlone(run: MemoryRun, cluster: MemoryCluster): Promise<void> {
  const { loss, weight, worst } = difference(await cluster.outcome(), await runAlone({ ...run, microBatchSize: 4 }));
  assert.ok(loss <= 1e-5, `losses differ by ${loss}`);
  assert.ok(weight <= 1e-5, `${worst} differs by ${weight}`);
}

const layoutsOf = ({ events }: MemoryCluster): string[] =>
  events.flatMap((event) =>
    event.kind === 'deployment' ? [event.plan.stages.map(({ devices }) => devices.join('+')).join(' | ')] : [],
  );

test('a loss beyond light re-planning: the planner is asked, with the cause, and its plan continues the run', {
  timeout,
}, async () => {
  const clock = createVirtualClock();
  const wishes: (Pick<PlanWish, 'from' | 'isUrgent'> & { readonly devices: readonly string[] })[] = [];
  const run = runWith(
    async (_profile, cluster, { from, isUrgent }) => {
      const devices = cluster.devices.map(({ name }) => name);
      wishes.push({ from, isUrgent, devices });
      // Not before the others have said that they have lost a peer, and have prepared what they had begun: this clock
      // goes on when all have come to rest.
      await new Promise<void>((resolve) => clock.after(50, resolve));
      return smaller(devices);
    },
    {
      clock,
      links: { clock, bandwidthMbps: 10_000 },
      observe: (event, cluster) => {
        if (event.kind === 'replicated' && event.round === 2 && cluster.workers.has('c'))
          queueMicrotask(() => cluster.kill('c'));
      },
    },
  );
  const cluster = await startCluster(run);
  await clock.runUntil(expectAsAlone(run, cluster));
  assert.deepEqual(
    wishes.filter(({ isUrgent }) => isUrgent),
    [{ from: first, isUrgent: true, devices: ['a', 'b'] }],
  );
  assert.deepEqual(layoutsOf(cluster), ['a+b | c', 'b | a']);
  const left = cluster.events.flatMap((event) => (event.kind === 'left' ? [event.device] : []));
  assert.deepEqual(left, ['c'], 'nobody else was sent away');
});

test('another loss while that plan is being made: it is not wanted any more, and one for those who are left is', {
  timeout,
}, async () => {
  const asked: string[] = [];
  let wasOver: boolean | undefined;
  let running: MemoryCluster | undefined;
  const run = runWith(
    async (_profile, cluster, { isUrgent, isOver }) => {
      const devices = cluster.devices.map(({ name }) => name);
      if (!isUrgent) return undefined;
      asked.push(devices.join());
      if (devices.length === 1) return smaller(devices);
      running?.kill('b');
      while (!isOver()) await new Promise((resolve) => setImmediate(resolve));
      wasOver = isOver();
      return smaller(devices);
    },
    {
      observe: (event, cluster) => {
        if (event.kind !== 'replicated' || event.round !== 2 || !cluster.workers.has('c')) return;
        running = cluster;
        queueMicrotask(() => cluster.kill('c'));
      },
    },
  );
  const cluster = await startCluster(run);
  await expectAsAlone(run, cluster);
  assert.deepEqual(asked, ['a,b', 'a']);
  assert.equal(wasOver, true);
  assert.deepEqual(layoutsOf(cluster), ['a+b | c', 'a']);
});

test('nothing fits those who are left: the run ends with the planner’s sentence', { timeout }, async () => {
  const run = runWith(
    async () => {
      throw new InputError('The model fits nowhere; raise memoryMiB.');
    },
    {
      observe: (event, cluster) => {
        if (event.kind === 'trace' && event.round === 2 && event.device === 'b') cluster.kill('c');
      },
    },
  );
  const cluster = await startCluster(run);
  await assert.rejects(cluster.coordinator.end, new InputError('The model fits nowhere; raise memoryMiB.'));
  await cluster.workersEnd();
});

test('a drained device whose work others can only do in another plan leaves all the same, without a step back', {
  timeout,
}, async () => {
  const run = runWith(
    async (_profile, cluster, { isUrgent }) =>
      isUrgent ? smaller(cluster.devices.map(({ name }) => name)) : undefined,
    {
      observe: (event, cluster) => {
        if (event.kind === 'trace' && event.round === 1 && event.device === 'a') cluster.coordinator.drain('c');
      },
      machine: { endRound: 40, checkpointEvery: 40, replicateEvery: 1 },
    },
  );
  const cluster = await startCluster(run);
  await expectAsAlone(run, cluster);
  assert.deepEqual(layoutsOf(cluster), ['a+b | c', 'b | a']);
  const recovering = cluster.events.find((event) => event.kind === 'recovering');
  assert.equal(recovering?.repeatedRounds, 0);
  assert.deepEqual(
    cluster.events.flatMap((event) => (event.kind === 'left' ? [[event.device, event.reason]] : [])),
    [['c', 'the device was drained']],
  );
});
