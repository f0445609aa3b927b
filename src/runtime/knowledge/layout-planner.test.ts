import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, LayerProfile, Plan, Profile } from '../../cluster/cluster.ts';
import { program } from '../../schedule/generate.ts';
import { withStaleness } from '../../schedule/staleness.ts';
import { createSimulator } from '../../simulator/simulate.ts';
import { steadyRoundMs } from '../../simulator/steady.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { machineConfig } from '../../testing/memory-cluster.ts';
import { regressionNet, subjectOf } from '../../testing/training-subjects.ts';
import { createVirtualClock, type VirtualClock } from '../../testing/virtual-clock.ts';
import type { RunEvent } from '../protocol/events.ts';
import type { RoundResult } from '../protocol/messages.ts';
import { LayoutPlanner } from './layout-planner.ts';

/** a and b compute two layers each for two micro-batches: 2 · 2 · (1 + 2) = 12 ms a round. */
const plan: Plan = {
  ...handPlan({ schedule: '1f1b', cuts: [2], shares: [[4], [4]], microBatchCount: 2 }, 4),
  predicted: { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} },
};
/** For each transferred MiB. In a round two activations and two gradients cross, each of 4 samples with 7 numbers. */
const handlingMsPerMiB = 20_000;
const handlingMs = (handlingMsPerMiB * 4 * 4 * 7 * 4) / 2 ** 20;
const times = { forwardMs: [[1, 1, 1, 1]], backwardMs: [[2, 2, 2, 2]] };
const subject = subjectOf(regressionNet(), 8);
const layers = subject.sequence.layers.map(
  ({ name }): LayerProfile => ({
    name,
    outputBytes: 28,
    weightBytes: 4,
    savedBytes: 4,
    flops: 1,
    batchDependent: false,
  }),
);

/** A planner that has profiled a and b and measured the link between them. */
function profiledPlanner(
  clock: VirtualClock,
  observe: (event: RunEvent) => void,
  allowedMiB?: (device: string) => number,
): LayoutPlanner {
  const machine = { ...machineConfig({ subject, machine: {} }, 2), batchSizesToProfile: [4] };
  const planner = new LayoutPlanner({
    ...{ subject, machine, clock },
    hooks: { observe },
    plan: async () => plan,
    planAgain: async () => undefined,
    ...(allowedMiB === undefined ? {} : { allowedMiB }),
  });
  for (const device of ['a', 'b']) {
    planner.joined(device, { memoryMiB: 1000, cores: 1, engine: 'a test', machine: device });
    planner.profiled(device, { layers, times, cached: false });
  }
  const costs = { sendingMsPerMiB: handlingMsPerMiB, receivingMsPerMiB: handlingMsPerMiB };
  planner.measured('a', [{ peer: 'b', bandwidthMbps: 1000, latencyMs: 0, ...costs }]);
  return planner;
}

/** The steady round that a profile with these times predicts, in milliseconds. */
function predictedMs(devices: Profile['devices']): number {
  const profile = { model: 'test', inputBytes: 0, labelBytes: 0, layers, batchSizes: [4], devices };
  const cluster: Cluster = {
    devices: ['a', 'b'].map((name) => ({ name, memoryMiB: 1000 })),
    links: { default: { bandwidthMbps: 1000 } },
  };
  return steadyRoundMs(createSimulator(profile, cluster), program(plan), plan);
}

test('computing and transfers of the profile are corrected separately and announced while they are wrong', async () => {
  const clock = createVirtualClock();
  const profiles: Profile[] = [];
  const checked: unknown[] = [];
  const planner = profiledPlanner(clock, (event) => {
    if (event.kind === 'profile') profiles.push(event.profile);
    if (event.kind === 'checked') checked.push(event);
  });
  planner.begin(plan, 10);
  /** A minute of rounds in which a computes for `computeMs`, and its bytes cost this part of what was measured. */
  const train = async (computeMs: number, bytes: number): Promise<void> => {
    for (let round = 0; round < 60; round++) {
      await clock.runUntil(new Promise<void>((resolve) => clock.after(1000, resolve)));
      const result = (ms: number, linksMs: number): RoundResult => ({
        ...{ round, lossSum: 1, correctCount: 0, squaredNorm: 0, finite: true, roundMs: 100, busyMs: ms },
        ...{ processMs: ms + linksMs, linksMs },
      });
      planner.computed({ a: result(computeMs, bytes * handlingMs), b: result(12, handlingMs) }, plan);
    }
  };
  const near = (value: number | undefined, expected: number): void =>
    assert.ok(Math.abs((value ?? 0) / expected - 1) < 1e-9, `${value} instead of ${expected}`);

  await train(12, 1);
  assert.equal(profiles.length, 0, 'all is as it was measured');
  const measured = { ...times, handlingMsPerMiB };
  const measuredMs = predictedMs({ a: measured, b: measured });
  assert.deepEqual(checked, [{ kind: 'checked', roundMs: measuredMs, plannedMs: 1 }]);
  await train(18, 0.5);
  assert.equal(profiles.length, 1, 'the corrected profile predicts the following rounds');
  const { a, b } = profiles[0]?.devices ?? {};
  near(a?.forwardMs[0]?.[0], 1.5);
  near(a?.backwardMs[0]?.[3], 3);
  near(a?.handlingMsPerMiB, handlingMsPerMiB / 2);
  assert.deepEqual(b, measured);
  assert.equal(checked.length, 1, 'a layout is checked once');
  planner.begin(plan, 10);
  await train(18, 0.5);
  const roundMs = predictedMs(profiles.at(-1)?.devices ?? {});
  assert.deepEqual(checked.slice(1), [{ kind: 'checked', roundMs, plannedMs: 1 }]);
});

test('after a loss, plans keep to the memory that the user allows, however much the device has', async () => {
  const noOne = (): boolean => false;
  const request = { devices: ['b'], from: plan, lost: ['a'] };
  const free = await profiledPlanner(createVirtualClock(), () => {}).plan(request, noOne);
  assert.deepEqual(
    free?.stages.map(({ devices }) => devices),
    [['b']],
  );
  const needed = free?.predicted.peakMemoryMiB['b'] ?? 0;
  const held = async (mib: number): Promise<unknown> =>
    profiledPlanner(
      createVirtualClock(),
      () => {},
      (device) => (device === 'b' ? mib : 1),
    ).plan(request, noOne);
  assert.ok(await held(needed));
  assert.equal(await held(needed / 2), undefined, 'the light re-plan refuses it, and so does the planner');
});

test('a stream takes a spare in the place of a lost device only where it would not be slower with it', async () => {
  const stream: Plan = {
    ...plan,
    ...withStaleness(handPlan({ schedule: 'async', cuts: [2], shares: [[4], [4]], microBatchCount: 2 }, 4), {}),
  };
  /** The devices after the loss of b, where c takes so many times as long as a; in reserve, too. */
  const after = async (factor: number, from: Plan, isReserved: boolean): Promise<unknown> => {
    const clock = createVirtualClock();
    const planner = profiledPlanner(clock, () => {});
    planner.joined('c', { memoryMiB: 1000, cores: 1, engine: 'a test', machine: 'c' });
    const slow = ([row = []]: readonly (readonly number[])[]): number[][] => [row.map((ms) => factor * ms)];
    const ofC = { forwardMs: slow(times.forwardMs), backwardMs: slow(times.backwardMs) };
    planner.profiled('c', { layers, times: ofC, cached: false });
    if (isReserved) {
      planner.prepare(['a', 'b', 'c'], from);
      await clock.runUntil(new Promise<void>((resolve) => clock.after(1000, resolve)));
    }
    const found = await planner.plan({ devices: ['a', 'c'], from, lost: ['b'] }, () => false);
    return found?.stages.map(({ devices }) => devices.join());
  };
  for (const isReserved of [false, true]) {
    // a alone takes 24 ms a round, c 12 ms for its part if it is as fast as a.
    assert.deepEqual(await after(1, stream, isReserved), ['a', 'c']);
    assert.deepEqual(await after(10, stream, isReserved), ['a']);
  }
  assert.deepEqual(await after(10, plan, false), ['a', 'c'], 'synchronous rounds: as before');
});
