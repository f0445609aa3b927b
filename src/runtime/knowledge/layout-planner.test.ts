import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, LayerProfile, Plan, Profile } from '../../cluster/cluster.ts';
import { program } from '../../schedule/generate.ts';
import { createSimulator } from '../../simulator/simulate.ts';
import { steadyRoundMs } from '../../simulator/steady.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { machineConfig } from '../../testing/memory-cluster.ts';
import { regressionNet, subjectOf } from '../../testing/training-subjects.ts';
import { createVirtualClock } from '../../testing/virtual-clock.ts';
import type { RoundResult } from '../protocol/messages.ts';
import { LayoutPlanner } from './layout-planner.ts';

/** a and b compute two layers each for two micro-batches: 2 · 2 · (1 + 2) = 12 ms a round. */
const plan: Plan = {
  ...handPlan({ schedule: '1f1b', cuts: [2], shares: [[4], [4]], microBatchCount: 2 }, 4),
  predicted: { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} },
};
/** Of a MiB; two activations and two gradients of 4 samples with 7 numbers cross in a round. */
const handlingMsPerMiB = 20_000;
const handlingMs = (handlingMsPerMiB * 4 * 4 * 7 * 4) / 2 ** 20;

test('rounds check the profile on the real stages: computing and bytes are corrected apart, and the profile is told, until it says the same', async () => {
  const clock = createVirtualClock();
  const [net, told, checked]: [ReturnType<typeof regressionNet>, Profile[], unknown[]] = [regressionNet(), [], []];
  const subject = subjectOf(net, 8);
  const machine = { ...machineConfig({ subject, machine: {} }, 2), batchSizesToProfile: [4] };
  const planner = new LayoutPlanner({
    subject,
    machine,
    hooks: {
      observe: (event) => {
        if (event.kind === 'profile') told.push(event.profile);
        if (event.kind === 'checked') checked.push(event);
      },
    },
    clock,
    plan: async () => plan,
    planAgain: async () => undefined,
  });
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
  const times = { forwardMs: [[1, 1, 1, 1]], backwardMs: [[2, 2, 2, 2]] };
  for (const device of ['a', 'b']) {
    planner.joined(device, { memoryMiB: 1000, cores: 1, engine: 'a test', machine: device });
    planner.profiled(device, { layers, times, cached: false });
  }
  const costs = { sendingMsPerMiB: handlingMsPerMiB, receivingMsPerMiB: handlingMsPerMiB };
  planner.measured('a', [{ peer: 'b', bandwidthMbps: 1000, latencyMs: 0, ...costs }]);
  planner.begin(plan, 10);
  /** A minute of rounds in which a computes for so long, and its bytes take so much of what they should. */
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
  assert.equal(told.length, 0, 'all is as it was measured');
  const cluster: Cluster = {
    devices: ['a', 'b'].map((name) => ({ name, memoryMiB: 1000 })),
    links: { default: { bandwidthMbps: 1000 } },
  };
  const device = { ...times, handlingMsPerMiB };
  const measured = {
    model: 'test',
    inputBytes: 0,
    labelBytes: 0,
    layers,
    batchSizes: [4],
    devices: { a: device, b: device },
  };
  const roundMs = (profile: Profile): number => steadyRoundMs(createSimulator(profile, cluster), program(plan), plan);
  assert.deepEqual(checked, [{ kind: 'checked', roundMs: roundMs(measured), plannedMs: 1 }]);
  await train(18, 0.5);
  assert.equal(told.length, 1, 'what was corrected predicts the rounds that come');
  const { a, b } = told[0]?.devices ?? {};
  near(a?.forwardMs[0]?.[0], 1.5);
  near(a?.backwardMs[0]?.[3], 3);
  near(a?.handlingMsPerMiB, handlingMsPerMiB / 2);
  assert.deepEqual(b, { ...times, handlingMsPerMiB });
  assert.equal(checked.length, 1, 'a layout is checked once');
  planner.begin(plan, 10);
  await train(18, 0.5);
  assert.deepEqual(checked.slice(1), [{ kind: 'checked', roundMs: roundMs(told.at(-1) as Profile), plannedMs: 1 }]);
});
