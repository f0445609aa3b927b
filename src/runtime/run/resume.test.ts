// A checkpoint holds all that training depends on: a run that goes on from one is the run that was never interrupted.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import { type HandPlan, handPlan } from '../../testing/hand-plans.ts';
import { difference, type MemoryRun, type Outcome, runAlone, runCluster } from '../../testing/memory-cluster.ts';
import {
  batches,
  batchNormNet,
  sgd,
  subjectOf,
  type TestNet,
  transformerNet,
} from '../../testing/training-subjects.ts';
import type { RunState } from '../protocol/run-state.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';

const timeout = 60_000;
const straight: HandPlan = { schedule: '1f1b', cuts: [2], shares: [[4], [4]], microBatchCount: 2 };
const hybrid: HandPlan = { schedule: 'gpipe', cuts: [1, 3], shares: [[3, 1], [2, 2], [4]], microBatchCount: 2 };

function runOf(
  net: TestNet,
  plan: HandPlan,
  training: Partial<TrainingSpec>,
  from?: RunState,
): MemoryRun & { readonly microBatchSize: number } {
  const fresh = subjectOf(net, 8, training);
  const subject = from === undefined ? fresh : { ...fresh, state: from };
  return {
    subject,
    batch: batches(net, subject),
    plan: handPlan(plan, subject.sequence.layers.length),
    microBatchSize: 4,
    machine: { firstRound: from === undefined ? 0 : 3, endRound: 6, checkpointEvery: 3, learningRate: () => 0.01 },
  };
}

const optimizers: readonly Partial<TrainingSpec>[] = [
  { optimizer: { ...sgd, nesterov: true } },
  { optimizer: { ...sgd, kind: 'adam' } },
  { optimizer: { ...sgd, kind: 'adamw', weightDecay: 0.1 }, clipNorm: 0.5 },
  { optimizer: { ...sgd, kind: 'lion', weightDecay: 0.1 } },
];

function checkGoesOn(whole: Outcome, resumed: Outcome, tolerance: number): void {
  assert.deepEqual([...whole.checkpoints.keys()], [3, 6]);
  assert.deepEqual([...resumed.checkpoints.keys()], [6]);
  const { loss, weight, worst } = difference(resumed, { ...whole, losses: whole.losses.slice(3) });
  assert.ok(loss <= tolerance && weight <= tolerance, `losses differ by ${loss}, ${worst} by ${weight}`);
  for (const [name, value] of whole.state.optimizer) {
    const found = defined(resumed.state.optimizer.get(name), name);
    value.data.forEach((expected, index) => {
      assert.ok(Math.abs(Number(expected) - Number(found.data[index])) <= tolerance * 10, name);
    });
  }
}

test('six rounds are three, a checkpoint, and three more: the very same bits, here and over workers', {
  timeout,
}, async () => {
  for (const net of [transformerNet(), batchNormNet()]) {
    for (const training of optimizers) {
      for (const train of [runCluster, runAlone]) {
        const whole = await train(runOf(net, straight, training));
        const resumed = await train(
          runOf(net, straight, training, defined(whole.checkpoints.get(3), 'the checkpoint')),
        );
        checkGoesOn(whole, resumed, 0);
      }
    }
  }
});

test('a run by forward gradients whose rounds do not overlap goes on with the very same bits', {
  timeout,
}, async () => {
  const forwardGradient = { tangentCount: 2, kind: 'gaussian', scales: {}, roundsPerEpoch: 4 } as const;
  const training = { forwardGradient, optimizer: { ...sgd, kind: 'adam' } } as const;
  const tangents = (from?: RunState): MemoryRun => {
    const run = runOf(batchNormNet(), { ...straight, schedule: 'forward-gradient' }, training, from);
    return { ...run, plan: { ...defined(run.plan, 'a plan'), staleness: [0, 0], tangentCount: 2 } };
  };
  const whole = await runCluster(tangents());
  checkGoesOn(whole, await runCluster(tangents(defined(whole.checkpoints.get(3), 'the checkpoint'))), 0);
});

test('a run goes on with another plan, and as one device, within the rounding of sums', { timeout }, async () => {
  const net = transformerNet();
  for (const training of optimizers) {
    const whole = await runCluster(runOf(net, straight, training));
    const checkpoint = defined(whole.checkpoints.get(3), 'the checkpoint');
    checkGoesOn(whole, await runCluster(runOf(net, hybrid, training, checkpoint)), 1e-5);
    checkGoesOn(whole, await runAlone(runOf(net, straight, training, checkpoint)), 1e-5);
  }
});

test('a checkpoint holds every trained parameter, buffer and piece of optimizer state once, in its shape', {
  timeout,
}, async () => {
  const run = runOf(batchNormNet(), hybrid, { optimizer: { ...sgd, kind: 'adam' }, frozen: ['a.weight'] });
  const { state } = await runCluster(run);
  const { graph } = run.subject.sequence;
  const trained = graph.parameters.filter((name) => name !== 'a.weight');
  assert.deepEqual([...state.parameter.keys()].sort(), [...trained].sort());
  assert.deepEqual([...state.buffer.keys()].sort(), [...graph.buffers].sort());
  assert.deepEqual(
    [...state.optimizer.keys()].sort(),
    trained.flatMap((name) => [`${name}/mean`, `${name}/variance`]).sort(),
  );
  for (const [name, { shape }] of [...state.parameter, ...state.buffer])
    assert.deepEqual(shape, graph.initializers.get(name)?.shape);
});

test('training here leaves the state that it began with untouched', { timeout }, async () => {
  const run = runOf(transformerNet(), straight, {});
  const before = structuredClone(run.subject.state);
  await runAlone(run);
  assert.deepEqual(run.subject.state, before);
});

test('a stream of forward gradients that pauses at a checkpoint goes on with the very same bits, in groups too', {
  timeout,
}, async () => {
  const forwardGradient = { tangentCount: 2, kind: 'gaussian', scales: {}, roundsPerEpoch: 2 } as const;
  const training: Partial<TrainingSpec> = { optimizer: { ...sgd, kind: 'adam' }, forwardGradient };
  for (const plan of [straight, hybrid]) {
    const run = (from?: RunState): MemoryRun => {
      const found = runOf(transformerNet(), { ...plan, schedule: 'forward-gradient' }, training, from);
      return { ...found, plan: { ...defined(found.plan, 'a plan'), tangentCount: 2 } };
    };
    const whole = await runCluster(run());
    checkGoesOn(whole, await runCluster(run(defined(whole.checkpoints.get(3), 'the checkpoint'))), 0);
  }
});
