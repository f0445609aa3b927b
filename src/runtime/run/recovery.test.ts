// The promise of fault tolerance: a device may vanish at any moment, and the losses and the final weights are those of
// a run in which nothing happened. All of it runs for real, but for the network and the processes.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type HandPlan, handPlan } from '../../testing/hand-plans.ts';
import {
  difference,
  type MemoryCluster,
  type MemoryRun,
  type Outcome,
  runAlone,
  startCluster,
} from '../../testing/memory-cluster.ts';
import {
  batches,
  dropoutNet,
  regressionNet,
  residualNet,
  subjectOf,
  type TestNet,
  transformerNet,
} from '../../testing/training-subjects.ts';
import { clipScale } from '../../training/clipping.ts';
import type { RunEvent } from '../protocol/events.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';

const timeout = 60_000;
const endRound = 6;

function runOf(net: TestNet, plan: HandPlan, training: Partial<TrainingSpec> = {}): MemoryRun {
  const batchSize = (plan.shares[0] as number[]).reduce((sum, share) => sum + share, 0) * plan.microBatchCount;
  const subject = subjectOf(net, batchSize, training);
  const { clipNorm } = subject.training;
  return {
    subject,
    batch: batches(net, subject),
    plan: handPlan(plan, subject.sequence.layers.length),
    machine: {
      endRound,
      checkpointEvery: 4,
      gradientScale: (squaredNorm) => (clipNorm === null ? 1 : clipScale(squaredNorm, clipNorm)),
    },
  };
}

async function expectAsAlone(run: MemoryRun, cluster: MemoryCluster, what: string, tolerance = 1e-5): Promise<void> {
  const single = await runAlone({ ...run, microBatchSize: run.plan?.microBatchSize ?? 1 });
  let outcome: Outcome;
  try {
    outcome = await cluster.outcome();
  } catch (error) {
    throw new Error(
      `${what}: ${error instanceof Error ? error.message : error}; ${JSON.stringify(cluster.events.slice(-12))}`,
      {
        cause: error,
      },
    );
  }
  assert.equal(outcome.losses.length, endRound, what);
  const { loss, weight, worst } = difference(outcome, single);
  assert.ok(loss <= tolerance, `${what}: losses differ by ${loss}: ${outcome.losses} and ${single.losses}`);
  assert.ok(weight <= tolerance, `${what}: ${worst} differs by ${weight}`);
}

const straight: HandPlan = { schedule: '1f1b', cuts: [1, 3], shares: [[4], [4], [4]], microBatchCount: 2 };
const hybrid: HandPlan = { schedule: '1f1b', cuts: [2], shares: [[3, 1], [4]], microBatchCount: 2 };
const replicated: HandPlan = { schedule: 'gpipe', cuts: [], shares: [[1, 2, 1]], microBatchCount: 2 };

const subjects: readonly (readonly [string, TestNet, Partial<TrainingSpec>])[] = [
  ['regression', regressionNet(), {}],
  ['dropout, adam', dropoutNet(), { optimizer: { ...subjectOf(regressionNet(), 8).training.optimizer, kind: 'adam' } }],
  ['residual, clipped', residualNet(), { clipNorm: 0.5 }],
];

/**
 * Starts a run that loses a device in its third round: when copies of that state have been made, or where the stage has
 * replicas, in the middle of it.
 */
function startAndLose(run: MemoryRun, device: string, isReplicated: boolean): Promise<MemoryCluster> {
  return startCluster({
    ...run,
    observe: (event: RunEvent, cluster: MemoryCluster) => {
      if (event.kind === 'replicated' && event.round === 2 && cluster.workers.has(device))
        queueMicrotask(() => cluster.kill(device));
      if (isReplicated && event.kind === 'trace' && event.round === 2 && event.device === device) cluster.kill(device);
    },
  });
}

function recoveryCount({ events }: MemoryCluster): number {
  return events.filter((event) => event.kind === 'recovered').length;
}

for (const [form, plan] of [
  ['straight', straight],
  ['hybrid', hybrid],
  ['replicated', replicated],
] as const) {
  for (const [name, net, training] of subjects) {
    for (const device of ['a', 'b', 'c']) {
      test(`${form} plan, ${name}: ${device} is lost, and nothing shows in losses and weights`, {
        timeout,
      }, async () => {
        const run = runOf(net, plan, training);
        const cluster = await startAndLose(run, device, form === 'replicated');
        await expectAsAlone(run, cluster, `${form}, ${name}, without ${device}`);
        assert.equal(recoveryCount(cluster), 1);
      });
    }
  }
}

/** By grain: plans whose shares are whole grains; the re-plan's must be, too. */
const strict: readonly (readonly [grain: number, HandPlan])[] = [
  [1, hybrid],
  [2, { schedule: '1f1b', cuts: [2], shares: [[6, 2], [8]], microBatchCount: 2 }],
  [2, { schedule: 'zb-h1', cuts: [], shares: [[2, 4, 2]], microBatchCount: 2 }],
];

for (const [grain, plan] of strict) {
  for (const device of ['a', 'b', 'c']) {
    const of = `${plan.schedule}, ${plan.cuts.length + 1} stages, grains of ${grain}`;
    test(`strict, ${of}: ${device} is lost, and not a bit changes`, {
      timeout,
    }, async () => {
      const run = runOf(transformerNet(), plan, { grain });
      const cluster = await startAndLose(run, device, plan.cuts.length === 0);
      await expectAsAlone(run, cluster, `without ${device}`, 0);
      assert.equal(recoveryCount(cluster), 1);
      const recovering = cluster.events.find((event) => event.kind === 'recovering');
      const shares = recovering?.kind === 'recovering' ? recovering.plan.stages.flatMap(({ samples }) => samples) : [];
      assert.ok(shares.length > 0 && shares.every((share) => share % grain === 0), String(shares));
    });
  }
}
