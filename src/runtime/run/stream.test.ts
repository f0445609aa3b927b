// The promise of asynchronous training: whatever the plan, every loss and the final weights are those of one device
// that computes the gradient of round t at version max(first, t − s) of the weights (delayed-training.ts). All of it
// runs for real, but for the network and the processes.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createReferenceEngine } from '../../engine/reference.ts';
import { type StalenessWish, stalenessOf, withStaleness } from '../../schedule/staleness.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { difference, type MemoryRun, type Outcome, runCluster } from '../../testing/memory-cluster.ts';
import { batches, dropoutNet, residualNet, sgd, subjectOf, type TestNet } from '../../testing/training-subjects.ts';
import { clipScale } from '../../training/clipping.ts';
import type { MachineConfig } from '../coordinator/machine-types.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';
import { trainDelayed } from './delayed-training.ts';

const timeout = 300_000;
const endRound = 8;

/** A plan, how it is trained, and when it pauses. */
interface Case extends Partial<TrainingSpec> {
  readonly shares: readonly (readonly number[])[];
  readonly microBatchCount: number;
  readonly wish?: StalenessWish;
  readonly machine?: Partial<MachineConfig>;
  readonly net?: TestNet;
}

const cutsOf: Readonly<Record<number, readonly number[]>> = { 1: [], 2: [2], 3: [2, 5], 4: [1, 2, 5] };

function runOf({ shares, microBatchCount, wish = {}, machine, net = residualNet(), ...training }: Case): MemoryRun {
  const batchSize = (shares[0] as number[]).reduce((sum, share) => sum + share, 0) * microBatchCount;
  const subject = subjectOf(net, batchSize, training);
  const cuts = net.graph.name === 'dropout' ? [1, 2].slice(0, shares.length - 1) : (cutsOf[shares.length] as number[]);
  const plan = handPlan({ schedule: 'async', cuts, shares, microBatchCount }, subject.sequence.layers.length);
  const { clipNorm } = subject.training;
  return {
    subject,
    batch: batches(net, subject),
    plan: withStaleness(plan, wish),
    machine: {
      endRound,
      learningRate: (round) => (training.optimizer?.kind?.startsWith('adam') ? 0.01 : 0.1) / (round + 1),
      gradientScale: (squaredNorm) => (clipNorm === null ? 1 : clipScale(squaredNorm, clipNorm)),
      ...machine,
    },
  };
}

/** The same rounds on one device. */
async function delayed(run: MemoryRun): Promise<Pick<Outcome, 'losses' | 'state'>> {
  const { plan, subject, batch, machine } = run;
  assert.ok(plan !== undefined && machine !== undefined);
  const staleness = stalenessOf(plan);
  const engine = createReferenceEngine();
  try {
    return await trainDelayed(engine, {
      subject,
      batch,
      config: {
        firstRound: 0,
        endRound,
        batchSize: plan.batchSize,
        learningRate: machine.learningRate ?? (() => 0),
        gradientScale: machine.gradientScale ?? (() => 1),
      },
      microBatchSize: plan.microBatchSize,
      stages: plan.stages.map(({ layers }, stage) => ({ layers, staleness: staleness[stage] as number })),
    });
  } finally {
    await engine.close();
  }
}

async function compareWithOracle(given: Case): Promise<void> {
  const run = runOf(given);
  const [found, oracle] = [await runCluster(run), await delayed(run)];
  const { loss, weight, worst } = difference(found, { ...found, ...oracle });
  assert.equal(found.losses.length, endRound);
  assert.ok(loss <= 1e-5, `losses differ by ${loss}: ${found.losses} and ${oracle.losses}`);
  assert.ok(weight <= 1e-5, `${worst} differs by ${weight}`);
}

const adam: TrainingSpec['optimizer'] = { ...sgd, kind: 'adam' };
const adamw: TrainingSpec['optimizer'] = { ...sgd, kind: 'adamw', weightDecay: 0.05 };

const cases: readonly (readonly [title: string, given: Case])[] = [
  ['two stages', { shares: [[4], [4]], microBatchCount: 1 }],
  ['two stages, two micro-batches, Adam', { shares: [[4], [4]], microBatchCount: 2, optimizer: adam }],
  ['three stages', { shares: [[4], [4], [4]], microBatchCount: 1 }],
  ['three stages, two micro-batches', { shares: [[4], [4], [4]], microBatchCount: 2 }],
  ['three stages, eight micro-batches, AdamW', { shares: [[2], [2], [2]], microBatchCount: 8, optimizer: adamw }],
  ['four stages', { shares: [[4], [4], [4], [4]], microBatchCount: 1, optimizer: adam }],
  ['four stages, two micro-batches, clipping', { shares: [[4], [4], [4], [4]], microBatchCount: 2, clipNorm: 0.5 }],
  ['three stages, no vertical sync', { shares: [[4], [4], [4]], microBatchCount: 1, wish: { verticalSync: false } }],
  ['more staleness than needed', { shares: [[4], [4]], microBatchCount: 1, wish: { staleness: 3 } }],
  ['replicated stages', { shares: [[3, 1], [2, 2]], microBatchCount: 1 }],
  ['replicated stages, Adam', { shares: [[3, 1], [4], [2, 2]], microBatchCount: 2, optimizer: adam }],
  ['replicated stages, eight micro-batches, clipping', { shares: [[2], [1, 1]], microBatchCount: 8, clipNorm: 0.5 }],
  ['a device without samples', { shares: [[4, 0], [1, 3]], microBatchCount: 2 }],
  ['a pause every third round', { shares: [[4], [4], [4]], microBatchCount: 1, machine: { checkpointEvery: 3 } }],
  ['dropout', { net: dropoutNet(), shares: [[4], [4], [4]], microBatchCount: 2 }],
];

for (const [title, given] of cases)
  test(`as the delayed oracle: ${title}`, { timeout }, () => compareWithOracle(given));
