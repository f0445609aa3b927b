// A device that its system killed for want of memory is counted on for less when it comes back, and gets no more work
// than that.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan } from '../../cluster/cluster.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { type MemoryCluster, type MemoryRun, machineConfig, startCluster } from '../../testing/memory-cluster.ts';
import { batches, regressionNet, subjectOf } from '../../testing/training-subjects.ts';
import { createVirtualClock, type VirtualClock } from '../../testing/virtual-clock.ts';
import type { ProfileCache } from '../device/measure/cached-profile.ts';
import type { MeasuredProfile } from '../device/measure/measurement.ts';
import type { DeviceFacts } from '../protocol/device-facts.ts';
import { LayoutPlanner } from './layout-planner.ts';
import { MemoryBudgets, predictedMiB } from './memory-budgets.ts';

const timeout = 60_000;

function facts(memoryMiB: number, oomKillCount?: number): DeviceFacts {
  return {
    memoryMiB,
    cores: 1,
    engine: 'a test',
    machine: 'one',
    ...(oomKillCount === undefined ? {} : { oomKillCount }),
  };
}

test('half of what it was to hold; each further kill halves again; other losses change nothing', () => {
  const budgets = new MemoryBudgets();
  assert.equal(budgets.joined('a', facts(1000, 4)), undefined);
  assert.equal(budgets.withinMiB('a', 1000), 1000);
  budgets.vanished('a', 600);
  assert.equal(budgets.joined('a', facts(1000, 4)), undefined, 'its connection was lost');
  budgets.vanished('a', 600);
  assert.deepEqual(budgets.joined('a', facts(1000, 5)), { fromMiB: 600, toMiB: 300, killCount: 1 });
  assert.equal(budgets.withinMiB('a', 1000), 300);
  assert.equal(budgets.withinMiB('a', 200), 200, 'what it has in common with others is less');
  budgets.vanished('a', 280);
  assert.equal(budgets.joined('a', facts(1000, 5)), undefined);
  assert.equal(budgets.withinMiB('a', 1000), 300, 'for the rest of the run');
  budgets.vanished('a');
  assert.deepEqual(budgets.joined('a', facts(1000, 7)), { fromMiB: 300, toMiB: 150, killCount: 2 });
  assert.equal(budgets.joined('b', facts(1000, 7)), undefined, 'nobody else is meant');
  assert.equal(budgets.withinMiB('b', 1000), 1000);
});

test('a kill that was not its own: it had not vanished, or does not say how many there were', () => {
  const budgets = new MemoryBudgets();
  budgets.joined('a', facts(1000, 0));
  assert.equal(budgets.joined('a', facts(1000, 1)), undefined, 'it left in good order');
  budgets.vanished('a', 600);
  assert.equal(budgets.joined('a', facts(1000)), undefined);
  budgets.vanished('a', 600);
  assert.equal(budgets.joined('a', facts(1000, 3)), undefined);
  budgets.vanished('a', 600);
  assert.equal(budgets.joined('a', facts(1000, 0)), undefined, 'the machine was started again');
  assert.equal(budgets.isLowered('a'), false);
});

test('killed before it had any work: it gets none; with more memory it begins anew', () => {
  const budgets = new MemoryBudgets();
  budgets.joined('a', facts(1000, 0));
  budgets.vanished('a', 0);
  assert.deepEqual(budgets.joined('a', facts(1000, 1)), { fromMiB: 1000, toMiB: 0, killCount: 1 });
  assert.equal(budgets.withinMiB('a', 1000), 0);
  assert.equal(budgets.joined('a', facts(2000, 1)), undefined);
  assert.equal(budgets.withinMiB('a', 2000), 2000);
});

const layout = handPlan({ schedule: '1f1b', cuts: [2], shares: [[3, 1], [4]], microBatchCount: 2 }, 4);
const predicted = { roundMs: 1, samplesPerS: 8000, peakMemoryMiB: { a: 80, b: 90, c: 100 } };
const first: Plan = { ...layout, predicted };

test('what a device was to hold, while one layout follows another, is the more of the two', () => {
  const next: Plan = { ...layout, predicted: { ...predicted, peakMemoryMiB: { c: 130 } } };
  assert.equal(predictedMiB('c', [first, undefined]), 100);
  assert.equal(predictedMiB('c', [first, next]), 130);
  assert.equal(predictedMiB('d', [first, next]), undefined);
});

const measured = new Map<string, MeasuredProfile>();

/** All devices here are alike: one measures, for all tests. */
const profileCache: ProfileCache = {
  read: async (key) => measured.get(key),
  write: async (key, profile) => {
    measured.set(key, profile);
  },
};

/** Three measured devices; a round takes some 200 ms. `kills`: by device, what it says when it comes. */
function runOf(clock: VirtualClock, kills: ReadonlyMap<string, number>, more: Partial<MemoryRun>): MemoryRun {
  const net = regressionNet();
  const subject = subjectOf(net, 8);
  return {
    subject,
    batch: batches(net, subject),
    workerNames: ['a', 'b', 'c'],
    machine: { endRound: 10_000, checkpointEvery: 10_000, replicateEvery: 1 },
    clock,
    links: { clock, bandwidthMbps: 1000, latencyMs: 50 },
    choosePlan: () => first,
    profileCache,
    factsOf: (device) => ({ oomKillCount: kills.get(device) ?? 0 }),
    ...more,
  };
}

function lowered({ events }: MemoryCluster): unknown[] {
  return events.filter((event) => event.kind === 'memory-lowered');
}

test('a device killed for lack of memory returns: it is announced, and plans use half of what it had to hold', {
  timeout,
}, async () => {
  const clock = createVirtualClock();
  const kills = new Map<string, number>();
  const memories: (number | undefined)[] = [];
  const cluster = await startCluster(
    runOf(clock, kills, {
      planAgain: async (_profile, { devices }) => {
        const memoryMiB = devices.find(({ name }) => name === 'c')?.memoryMiB;
        if (memoryMiB !== undefined) memories.push(memoryMiB);
        if (memories.length > 0) cluster.coordinator.stop();
        return undefined;
      },
      observe: (event, running) => {
        if (event.kind === 'replicated' && event.round === 2) queueMicrotask(() => running.kill('c'));
        if (event.kind !== 'left' || event.device !== 'c' || kills.size > 0) return;
        kills.set('c', 1);
        clock.after(1000, () => void running.addWorker('c'));
      },
    }),
  );
  const outcome = await clock.runUntil(cluster.outcome());
  assert.ok(outcome.end.round > 10, `${outcome.end.round} rounds`);
  assert.deepEqual(lowered(cluster), [{ kind: 'memory-lowered', device: 'c', fromMiB: 100, toMiB: 50, killCount: 1 }]);
  assert.deepEqual(memories, [50]);
  const joined = cluster.events.flatMap((event) =>
    event.kind === 'joined' && event.device === 'c' ? [event.memoryMiB] : [],
  );
  assert.deepEqual(joined, [4096, 50]);
});

/**
 * A planner that knows a, b and c, of which c was killed with 100 MiB to hold and is back. `from`: the plan that
 * stands, or is given.
 */
async function plannerAfterKill(from: Plan, isGiven: boolean): Promise<LayoutPlanner> {
  const net = regressionNet();
  const subject = subjectOf(net, 8);
  const clock = createVirtualClock();
  const planner = new LayoutPlanner({
    subject,
    machine: machineConfig({ subject, machine: { planGiven: isGiven } }, 3),
    hooks: { observe: () => {} },
    clock,
    plan: async () => from,
    ...(isGiven ? { givenPlan: from } : {}),
  });
  for (const device of ['a', 'b', 'c']) planner.joined(device, facts(3000, 0));
  planner.vanished('c', 100);
  planner.joined('c', facts(3000, 1));
  await clock.runUntil(new Promise<void>((resolve) => clock.after(10_000, resolve))); // by then it is counted on again
  return planner;
}

const shapeOf = (plan: Plan | undefined): string | undefined =>
  plan?.stages.map(({ devices }) => devices.join('+')).join(' | ');

test('it replaces a lost device if that is predicted to fit, or without a prediction if it is the last', async () => {
  const straight = handPlan({ schedule: '1f1b', cuts: [2], shares: [[4], [4]], microBatchCount: 2 }, 4);
  const planWith = (peakMemoryMiB: Record<string, number>): Plan => ({
    ...straight,
    predicted: { ...predicted, peakMemoryMiB },
  });
  const without = async (from: Plan, ...lost: readonly string[]): Promise<string | undefined> => {
    const devices = ['a', 'b', 'c'].filter((device) => !lost.includes(device));
    return shapeOf(await (await plannerAfterKill(from, false)).plan({ devices, from, lost }, () => false));
  };
  assert.equal(await without(planWith({ a: 60, b: 40 }), 'b'), 'a | c');
  assert.equal(await without(planWith({ a: 60, b: 60 }), 'b'), 'a');
  assert.equal(await without(planWith({}), 'b'), 'a');
  assert.equal(
    await without(
      { ...planWith({}), stages: [{ layers: [0, 4], devices: ['b'], samples: [4], inFlight: 1 }] },
      'a',
      'b',
    ),
    'c',
  );
});

test('a given plan is not gone back to with it, unless the plan says that its part fits', async () => {
  const now = { round: 1, isOver: () => false };
  const from: Plan = { ...first, stages: [{ layers: [0, 4], devices: ['a', 'b'], samples: [2, 2], inFlight: 1 }] };
  const given = (peakMemoryMiB: Record<string, number>): Plan => ({
    ...first,
    predicted: { ...predicted, peakMemoryMiB },
  });
  const devices = ['a', 'b', 'c'];
  const back = async (plan: Plan): Promise<string | undefined> => {
    const planner = await plannerAfterKill(plan, true);
    return shapeOf((await planner.better(devices, from, now))?.plan);
  };
  assert.equal(await back(given({ a: 80, b: 90, c: 100 })), undefined);
  assert.equal(await back(given({})), undefined);
  assert.equal(await back(given({ a: 80, b: 90, c: 50 })), 'a+b | c');
});

test('killed while it is made ready, it is sent away when it comes back, and the run goes on', {
  timeout,
}, async () => {
  const clock = createVirtualClock();
  const kills = new Map<string, number>();
  const cluster = await startCluster(
    runOf(clock, kills, {
      observe: (event, running) => {
        if (event.kind === 'phase' && event.phase === 'training' && running.workers.size === 3)
          void running.addWorker('d');
        if (event.kind === 'joined' && event.device === 'd') queueMicrotask(() => running.kill('d'));
        if (event.kind !== 'left' || event.device !== 'd') return;
        kills.set('d', 1);
        clock.after(1000, () => void running.addWorker('d').then(() => running.coordinator.stop()));
      },
    }),
  );
  await clock.runUntil(cluster.outcome());
  assert.deepEqual(lowered(cluster), [{ kind: 'memory-lowered', device: 'd', fromMiB: 4096, toMiB: 0, killCount: 1 }]);
  const reason = 'its system killed it for want of memory before it had any work: it needs more memory for this model';
  assert.deepEqual((await cluster.workersEnd()).get('d'), { clean: true, reason });
});
