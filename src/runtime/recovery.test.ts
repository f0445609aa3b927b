// The promise of fault tolerance: a device may vanish at any moment, and the losses and the final weights are those of a run in which nothing happened.
// All of it runs for real, but for the network and the processes.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRandom } from '../random.ts';
import { type HandPlan, handPlan } from '../testing/hand-plans.ts';
import { cut, difference, type MemoryCluster, type MemoryRun, type Outcome, runAlone, startCluster } from '../testing/memory-cluster.ts';
import { batches, dropoutNet, regressionNet, residualNet, subjectOf, type TestNet, transformerNet } from '../testing/training-subjects.ts';
import { clipScale } from '../training/clipping.ts';
import type { RunEvent } from './events.ts';
import type { TrainingSpec } from './training-spec.ts';

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

async function expectAsAlone(run: MemoryRun, cluster: MemoryCluster, what: string): Promise<void> {
  const single = await runAlone({ ...run, microBatchSize: run.plan?.microBatchSize ?? 1 });
  let outcome: Outcome;
  try {
    outcome = await cluster.outcome();
  } catch (error) {
    throw new Error(`${what}: ${error instanceof Error ? error.message : error}; ${JSON.stringify(cluster.events.slice(-12))}`, {
      cause: error,
    });
  }
  assert.equal(outcome.losses.length, endRound, what);
  const { loss, weight, worst } = difference(outcome, single);
  assert.ok(loss <= 1e-5, `${what}: losses differ by ${loss}: ${outcome.losses} and ${single.losses}`);
  assert.ok(weight <= 1e-5, `${what}: ${worst} differs by ${weight}`);
}

const straight: HandPlan = { schedule: '1f1b', cuts: [1, 3], shares: [[4], [4], [4]], microBatchCount: 2 };
const hybrid: HandPlan = { schedule: '1f1b', cuts: [2], shares: [[3, 1], [4]], microBatchCount: 2 };
const replicated: HandPlan = { schedule: 'gpipe', cuts: [], shares: [[1, 2, 1]], microBatchCount: 2 };

const subjects: readonly (readonly [string, TestNet, Partial<TrainingSpec>])[] = [
  ['regression', regressionNet(), {}],
  ['dropout, adam', dropoutNet(), { optimizer: { ...subjectOf(regressionNet(), 8).training.optimizer, kind: 'adam' } }],
  ['residual, clipped', residualNet(), { clipNorm: 0.5 }],
];

for (const [form, plan] of [
  ['straight', straight],
  ['hybrid', hybrid],
  ['replicated', replicated],
] as const) {
  for (const [name, net, training] of subjects) {
    for (const device of ['a', 'b', 'c']) {
      test(`${form} plan, ${name}: ${device} is lost, and nothing shows in losses and weights`, { timeout }, async () => {
        const run = runOf(net, plan, training);
        const cluster = await startCluster({
          ...run,
          observe: (event: RunEvent, { losses, kill, workers }: MemoryCluster) => {
            if (event.kind === 'replicated' && event.round === 2 && workers.has(device)) queueMicrotask(() => kill.call(cluster, device));
            if (form === 'replicated' && event.kind === 'trace' && event.round === 2 && event.device === device) kill.call(cluster, device);
            void losses;
          },
        });
        await expectAsAlone(run, cluster, `${form}, ${name}, without ${device}`);
        const recovered = cluster.events.filter((event) => event.kind === 'recovered');
        assert.equal(recovered.length, 1);
      });
    }
  }
}
void cut;
void createRandom;
void transformerNet;
