import assert from 'node:assert/strict';
import { test } from 'node:test';
import { systemClock } from '../../clock.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { RunError } from '../../errors.ts';
import { GraphBuilder } from '../../graph/builder.ts';
import { tensor } from '../../graph/tensor.ts';
import { machineConfig, runAlone } from '../../testing/memory-cluster.ts';
import { batches, regressionNet, sgd, subjectOf, type TestNet } from '../../testing/training-subjects.ts';
import type { RunHooks } from '../coordinator/options.ts';
import { trainHere } from './local.ts';
import { localDevice, localPlan } from './local-plan.ts';

test('the local plan is one device with all layers', () => {
  assert.deepEqual(localPlan(5, 12, 4), {
    planner: 'single',
    schedule: '1f1b',
    batchSize: 12,
    microBatchSize: 4,
    microBatchCount: 3,
    stages: [{ layers: [0, 5], devices: ['this process'], samples: [4], inFlight: 1 }],
    predicted: { roundMs: 0, samplesPerS: 0, peakMemoryMiB: {} },
  });
});

/** y = 2x, with mse. */
function scaleNet(): TestNet {
  const b = new GraphBuilder('scale', { seed: 1 });
  const graph = b.build([b.linear(b.input('x', 'float32', ['N', 1]), { name: 'w', outFeatures: 1, bias: false })]);
  return {
    graph: { ...graph, initializers: new Map([['w.weight', tensor('float32', [1, 1], [2])]]) },
    loss: 'mse',
    classCount: 0,
  };
}

const batch = () => ({
  inputs: [tensor('float32', [4, 1], [1, 2, 3, 4])],
  labels: tensor('float32', [4, 1], [0, 0, 0, 0]),
});

test('gradient descent by hand: loss, weight and momentum of two rounds, in one micro-batch or four', async () => {
  // loss = mean (wx)² = 7.5 w²; gradient 15 w. Momentum m ← 0.5 m + g; w ← w − 0.01 m.
  // round 0: loss 30, m = 30, w = 2 − 0.3 = 1.7; round 1: loss 21.675, m = 15 + 25.5 = 40.5, w = 1.7 − 0.405 = 1.295
  for (const microBatchSize of [4, 1]) {
    const subject = subjectOf(scaleNet(), 4, { optimizer: { ...sgd, momentum: 0.5 } });
    const { end, losses, state } = await runAlone({
      subject,
      batch,
      microBatchSize,
      machine: { endRound: 2, learningRate: () => 0.01 },
    });
    assert.deepEqual(end, { round: 2, stopped: false });
    assert.deepEqual(
      losses.map((loss) => loss.toFixed(4)),
      ['30.0000', '21.6750'],
    );
    assert.equal(Number(state.parameter.get('w.weight')?.data[0]).toFixed(5), '1.29500');
    assert.equal(Number(state.optimizer.get('w.weight/momentum')?.data[0]).toFixed(4), '40.5000');
  }
});

test('clipping scales the gradient to the norm', async () => {
  const subject = subjectOf(scaleNet(), 4, { optimizer: { ...sgd, momentum: 0 }, clipNorm: 3 });
  const norms: number[] = [];
  const gradientScale = (squaredNorm: number): number => {
    norms.push(Math.sqrt(squaredNorm));
    return 3 / Math.sqrt(squaredNorm);
  };
  const { state } = await runAlone({
    subject,
    batch,
    microBatchSize: 2,
    machine: { endRound: 1, learningRate: () => 0.1, gradientScale },
  });
  assert.deepEqual(
    norms.map((norm) => norm.toFixed(3)),
    ['30.000'],
  );
  assert.equal(Number(state.parameter.get('w.weight')?.data[0]).toFixed(4), '1.7000');
  assert.equal(state.optimizer.size, 0);
});

test('checkpoints come on their rounds and at the end', async () => {
  const net = regressionNet();
  const subject = subjectOf(net, 4);
  const { checkpoints } = await runAlone({
    subject,
    batch: batches(net, subject),
    microBatchSize: 4,
    machine: { endRound: 7, checkpointEvery: 3 },
  });
  assert.deepEqual([...checkpoints.keys()], [3, 6, 7]);
});

/** Trains the regression net here, with hooks and a signal of the test's own. */
async function train(hooks: Partial<RunHooks>, signal: AbortSignal, endRound = 10): ReturnType<typeof trainHere> {
  const net = regressionNet();
  const subject = subjectOf(net, 4);
  const engine = createReferenceEngine();
  const all: RunHooks = {
    batch: batches(net, subject),
    observe: () => {},
    onCommitted: () => {},
    onCheckpoint: async () => true,
    ...hooks,
  };
  try {
    return await trainHere(subject, all, machineConfig({ subject, machine: { endRound } }, 0), localPlan(4, 4, 2), {
      engine,
      clock: systemClock,
      signal,
    });
  } finally {
    await engine.close();
  }
}

test('a stop ends after the round in progress, with a checkpoint; on the last round it is no stop', async () => {
  for (const [at, endRound, expected] of [
    [3, 10, { round: 4, stopped: true }],
    [9, 10, { round: 10, stopped: false }],
  ] as const) {
    const stop = new AbortController();
    const rounds: number[] = [];
    const checkpoints: number[] = [];
    const end = await train(
      {
        onCommitted: (round, _loss, _correct, _rate, results) => {
          rounds.push(round);
          assert.deepEqual(Object.keys(results), [localDevice]);
          if (round === at) stop.abort();
        },
        onCheckpoint: async (round) => {
          checkpoints.push(round);
          return true;
        },
      },
      stop.signal,
      endRound,
    );
    assert.deepEqual(end, expected);
    assert.deepEqual(
      rounds,
      Array.from({ length: at + 1 }, (_, index) => index),
    );
    assert.deepEqual(checkpoints, [at + 1]);
  }
});

test('a loss that is not finite ends the run before the round counts', async () => {
  const rounds: number[] = [];
  const broken = (round: number) => ({
    inputs: [tensor('float32', [4, 5], new Array(20).fill(round < 2 ? 1 : Number.NaN))],
    labels: tensor('float32', [4, 2], new Array(8).fill(0)),
  });
  await assert.rejects(
    train({ batch: broken, onCommitted: (round) => rounds.push(round) }, new AbortController().signal),
    (error) =>
      error instanceof RunError &&
      error.message.startsWith(
        'Training ended: the loss or a gradient of round 2 is not a finite number: lower the learning rate ' +
          '(--lr) or clip gradients (--clip-norm)',
      ),
  );
  assert.deepEqual(rounds, [0, 1]);
});

test('what fails in the data, in a checkpoint or in a hook is the run’s failure', async () => {
  const broken = (): never => {
    throw new RunError('broken');
  };
  const hooks: readonly Partial<RunHooks>[] = [
    { batch: broken },
    { onCommitted: broken },
    { onCheckpoint: async () => broken() },
  ];
  for (const each of hooks) await assert.rejects(train(each, new AbortController().signal, 2), /^RunError: broken$/);
});
