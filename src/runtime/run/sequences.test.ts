// Recurrent cells trained by forward gradients equal the unrolled net in PyTorch (test/fixtures/forward-gradient): on
// one device, in pipelines, in groups.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { systemClock } from '../../clock.ts';
import { createOnnxRuntimeNodeEngine } from '../../engine/node/onnxruntime-node.ts';
import { InputError } from '../../errors.ts';
import { layers } from '../../graph/layers.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { NoiseKind } from '../../noise.ts';
import { loadDataset } from '../../storage/node/datasets.ts';
import { type HandPlan, handPlan } from '../../testing/hand-plans.ts';
import { type MemoryRun, runAlone, runCluster } from '../../testing/memory-cluster.ts';
import { sgd } from '../../testing/training-subjects.ts';
import { createDataset, gather, inputField, labelField } from '../../training/data/dataset.ts';
import { batchIndices } from '../../training/data/order.ts';
import { asSteps } from '../../training/data/sequences.ts';
import { sliceSamples } from '../device/samples.ts';
import { loadModel } from '../host/models.ts';
import { BatchesAhead } from './batches-ahead.ts';
import type { DelayedRun } from './delayed-run.ts';
import { trainDelayed } from './delayed-training.ts';
import { evaluateOn } from './evaluate.ts';
import { withStates } from './sequences.ts';
import { bindToModel, labelCut } from './subject.ts';

interface Case {
  readonly name: string;
  readonly tangent: NoiseKind;
  readonly tangents: number;
  readonly optimizer: 'sgd' | 'adam';
  readonly momentum: number;
  readonly lr: number;
  readonly staleness?: readonly number[];
  readonly losses: readonly number[];
}

const folder = 'test/fixtures/forward-gradient';
const { cases, seed, batch, untrained } = JSON.parse(readFileSync(`${folder}/recurrent.json`, 'utf8')) as {
  readonly cases: readonly Case[];
  readonly seed: number;
  readonly batch: number;
  /** The mean loss over all steps before training. */
  readonly untrained: number;
};
const dataset = asSteps((await loadDataset(`npy:${folder}/XS.npy,${folder}/YS.npy`)).train);
const length = dataset.sequenceLength ?? 1;
const states = ['h1_next=h1', 'h2_next=h2'];
const sequence = layers(withStates((await loadModel(`${folder}/cell.onnx`, 0)).graph, states));

function runOf({ tangent, tangents, optimizer, momentum, lr, losses }: Case): MemoryRun {
  const bound = bindToModel(dataset, sequence, { loss: 'cross-entropy' });
  const { sampleCount } = dataset;
  const order = { sampleCount, batchSize: batch, seed: 0, shuffle: false, sequenceLength: length };
  const { graph } = sequence;
  return {
    subject: {
      modelName: 'cell',
      sequence,
      training: {
        ...{ batchSize: batch, loss: 'cross-entropy', clipNorm: null, seed, frozen: [] },
        optimizer: { ...sgd, kind: optimizer, momentum },
        forwardGradient: { tangentCount: tangents, kind: tangent, scales: {}, roundsPerEpoch: sampleCount / batch },
      },
      label: labelCut(bound),
      state: {
        parameter: new Map(graph.parameters.map((name) => [name, graph.initializers.get(name) as Tensor])),
        buffer: new Map(),
        optimizer: new Map(),
      },
    },
    batch: (round) => gather(bound, batchIndices(order, round)),
    machine: { endRound: losses.length, learningRate: () => lr },
    createEngine: () => createOnnxRuntimeNodeEngine(),
  };
}

function checkLosses(found: readonly number[], { losses, name }: Case): void {
  assert.equal(found.length, losses.length);
  for (const [round, expected] of losses.entries()) {
    const difference = Math.abs((found[round] as number) - expected) / expected;
    assert.ok(difference < 1e-4, `${name}: the loss of round ${round} is ${found[round]}, PyTorch's ${expected}`);
  }
}

test('between where a state is read and where it is made nothing can be cut', () => {
  assert.deepEqual(
    sequence.layers.map(({ name, states: own = [] }) => [name, ...own.map(({ input }) => input)]),
    [['first.weight_ih'], ['first.weight_hh', 'h1'], ['second.weight_ih'], ['second.weight_hh', 'h2'], ['head']],
  );
  assert.deepEqual(
    sequence.inputs.map(({ name }) => name),
    ['x'],
  );
});

for (const found of cases.filter(({ staleness }) => staleness === undefined)) {
  const microBatchSize = batch / length;
  test(`${found.name} on one device`, async () => {
    checkLosses((await runAlone({ ...runOf(found), microBatchSize })).losses, found);
  });
}

/** A stage for each cell and one for the rest; a group shares its sequences. */
const shares: readonly HandPlan['shares'][] = [
  [[4], [4], [4]],
  [[4], [3, 1], [2, 2]],
];

for (const share of shares) {
  for (const found of cases) {
    test(`${found.name} in stages of ${share.map((own) => own.join('+')).join(', ')} sequences`, async () => {
      const plan = handPlan(
        { schedule: 'forward-gradient', cuts: [2, 4], shares: share, microBatchCount: length },
        sequence.layers.length,
      );
      const staleness = found.staleness ?? plan.stages.map(() => 0);
      checkLosses(
        (await runCluster({ ...runOf(found), plan: { ...plan, staleness, tangentCount: found.tangents } })).losses,
        found,
      );
    });
  }
}

for (const found of cases) {
  test(`${found.name} by the oracle that a run is verified by`, async () => {
    const { machine = {}, ...run } = runOf(found);
    const cuts = [0, 2, 4, sequence.layers.length];
    const stages = cuts.slice(1).map((end, stage) => ({
      layers: [cuts[stage] as number, end] as const,
      staleness: found.staleness?.[stage] ?? 0,
    }));
    const config = {
      ...{ firstRound: 0, batchSize: batch, endRound: found.losses.length, learningRate: () => found.lr },
      ...{ batchAt: () => ({ sampleCount: batch, factor: 1 }), gradientScale: () => 1 },
      ...machine,
    };
    const engine = await createOnnxRuntimeNodeEngine();
    const delayed = { subject: run.subject, batch: run.batch as DelayedRun['batch'], config, stages };
    checkLosses((await trainDelayed(engine, { ...delayed, microBatchSize: batch / length })).losses, found);
    await engine.close();
  });
}

test('a test hands states from step to step', async () => {
  const { graph } = await loadModel(`${folder}/cell.onnx`, 0);
  const options = { loss: 'cross-entropy', engine: 'onnxruntime', threads: 1 } as const;
  const found = await evaluateOn(() => createOnnxRuntimeNodeEngine(), withStates(graph, states), dataset, options);
  assert.ok(Math.abs(found.loss - untrained) < 1e-5, `the loss is ${found.loss}, PyTorch's ${untrained}`);
  assert.equal(found.sampleCount, dataset.sampleCount);
});

test('the pieces of a batch that is sent are those of the whole batch', () => {
  const order = { sampleCount: dataset.sampleCount, batchSize: batch, seed: 3, shuffle: true, sequenceLength: length };
  const batches = new BatchesAhead(dataset, order, 2, systemClock);
  const whole = batches.at(1);
  const fed = batches.fed(1);
  assert.ok(!(whole instanceof Promise) && 'piece' in fed);
  assert.equal(fed.sampleCount, batch);
  for (const range of [
    [0, 3],
    [batch - 5, batch],
  ] as const) {
    const cut = (value: Tensor): Tensor => sliceSamples(value, 0, range[0], range[1]);
    assert.deepEqual(
      fed.piece('input', range).map(({ shape, data }) => [shape, [...data]]),
      whole.inputs.map(cut).map(({ shape, data }) => [shape, [...data]]),
    );
    assert.deepEqual(fed.piece('label', range)[0]?.data, cut(whole.labels).data.slice());
  }
});

test('a label for a whole sequence is that of its last step', () => {
  const inputs = { type: 'float32', shape: [2, 3, 1], data: Float32Array.of(1, 2, 3, 4, 5, 6) } as const;
  const labels = { type: 'int64', shape: [2], data: BigInt64Array.of(1n, 0n) } as const;
  const steps = asSteps(createDataset('two', [inputField('x', inputs, 'x.npy')], labelField(labels, 'y.npy')));
  assert.deepEqual(steps.labels.values.data, BigInt64Array.of(-100n, -100n, 1n, -100n, -100n, 0n));
  const order = { sampleCount: 6, batchSize: 6, seed: 0, shuffle: false, sequenceLength: 3 };
  const [values] = gather(steps, batchIndices(order, 0)).inputs;
  assert.deepEqual(values?.data, Float32Array.of(1, 4, 2, 5, 3, 6));
});

test('steps stay steps: a run that is prepared again has the same data', () => {
  assert.equal(asSteps(dataset), dataset);
});

test('data without steps, and states that are not there, are one sentence', () => {
  const flat = { type: 'float32', shape: [2], data: Float32Array.of(1, 2) } as const;
  const labels = { type: 'int64', shape: [2], data: BigInt64Array.of(1n, 0n) } as const;
  const data = createDataset('two', [inputField('x', flat, 'x.npy')], labelField(labels, 'y.npy'));
  assert.throws(
    () => asSteps(data),
    new InputError(
      'x.npy has samples of shape []; a cell with --state takes sequences of so many steps, [samples, steps, ...].',
    ),
  );
  assert.throws(() => withStates(sequence.graph, ['h1']), /--state h1 is not OUT=IN/);
  assert.throws(() => layers(withStates(sequence.graph, ['h1_next=h3'])), /has no input "h3" for its state h1_next=h3/);
});
