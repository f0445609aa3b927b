// What a trained model says of samples without labels: its outputs, and the classes or numbers that they mean.

import { defined } from '../../assert.ts';
import type { Engine, Executable } from '../../engine/engine.ts';
import { InputError } from '../../errors.ts';
import type { Graph } from '../../graph/graph.ts';
import { type LayerSequence, layers } from '../../graph/layers.ts';
import { withLogits } from '../../graph/logits.ts';
import { inferenceMode } from '../../graph/onnx/modes.ts';
import { elementCount, type Tensor } from '../../graph/tensor.ts';
import { batchOf } from '../../training/data/batch.ts';
import { bindDataset } from '../../training/data/bind.ts';
import type { Dataset } from '../../training/data/dataset.ts';
import type { LossKind } from '../../training/losses.ts';
import { design } from '../device/designers.ts';
import type { EngineFactory } from './evaluate.ts';
import { checkBatchesFirst, sizedByData } from './subject.ts';

export interface PredictOptions {
  readonly loss: LossKind;
  readonly engine: 'onnxruntime' | 'reference';
  readonly threads: number;
}

/** Samples of one run. */
const batchSize = 32;

/**
 * The model's first output for each sample, in order: probabilities of the classes for cross-entropy, of each label for
 * binary cross-entropy, the outputs themselves for losses of numbers. Throws InputError if data and model do not fit.
 */
export async function predictOn(
  createEngine: EngineFactory,
  model: Graph,
  dataset: Dataset,
  options: PredictOptions,
): Promise<readonly (readonly number[])[]> {
  const graph = sizedByData(inferenceMode(model), dataset);
  const sequence = layers({ ...graph, outputs: graph.outputs.slice(0, 1) });
  checkBatchesFirst(sequence);
  const inputs = sequence.inputs.map(({ name, type, shape }) => ({ name, type, shape }));
  const data = bindDataset(dataset, inputs, { type: 'int64' });
  const meaning = meaningOf(graph, options.loss);
  const engine = await createEngine({ engine: options.engine, threadCount: options.threads });
  try {
    return (await outputsOf(engine, sequence, data)).map(meaning);
  } finally {
    await engine.close();
  }
}

/** Makes probabilities of logits; a model that ends in a Softmax or Sigmoid gives them already. */
function meaningOf(graph: Graph, loss: LossKind): (outputs: readonly number[]) => readonly number[] {
  switch (loss) {
    case 'cross-entropy':
    case 'focal':
      return withLogits(graph, 'Softmax').removed === undefined ? softmax : same;
    case 'binary-cross-entropy':
      return withLogits(graph, 'Sigmoid').removed === undefined
        ? (outputs) => outputs.map((value) => 1 / (1 + Math.exp(-value)))
        : same;
    case 'mse':
    case 'l1':
    case 'huber':
      return same;
  }
}

function same(outputs: readonly number[]): readonly number[] {
  return outputs;
}

function softmax(outputs: readonly number[]): readonly number[] {
  const most = Math.max(...outputs);
  const powers = outputs.map((value) => Math.exp(value - most));
  const sum = powers.reduce((total, value) => total + value, 0);
  return powers.map((value) => value / sum);
}

async function outputsOf(engine: Engine, sequence: LayerSequence, data: Dataset): Promise<number[][]> {
  const size = sequence.fixedBatch ?? Math.min(batchSize, data.sampleCount);
  const rows: number[][] = [];
  let compiled: { readonly count: number; readonly forward: Executable } | undefined;
  for (let first = 0; first < data.sampleCount; first += size) {
    const given = Math.min(size, data.sampleCount - first);
    // The last sample fills up a batch of fixed size.
    const count = sequence.fixedBatch ?? given;
    if (compiled?.count !== count) {
      compiled?.forward.release();
      compiled = { count, forward: await compile(engine, sequence, count) };
    }
    const indices = Uint32Array.from({ length: count }, (_, index) => first + Math.min(index, given - 1));
    rows.push(...rowsOf(await runBatch(engine, compiled.forward, data, indices), count).slice(0, given));
  }
  return rows;
}

async function compile(engine: Engine, sequence: LayerSequence, sampleCount: number): Promise<Executable> {
  const { graphs } = design(engine, {
    kind: 'infer',
    sequence,
    layers: [0, sequence.layers.length],
    sampleCount,
  });
  return engine.compile(defined(graphs.forward, 'the forward pass'));
}

async function runBatch(engine: Engine, forward: Executable, data: Dataset, indices: Uint32Array): Promise<Tensor> {
  const { inputs } = await batchOf(data, indices);
  const feeds = Object.fromEntries(
    data.inputs.map((field, index) => [field.name, engine.upload(defined(inputs[index], field.name))]),
  );
  const output = defined(Object.values(forward.run(feeds))[0], 'the output');
  for (const value of Object.values(feeds)) engine.release(value);
  return engine.take(output);
}

function rowsOf({ type, shape, data }: Tensor, count: number): number[][] {
  if (type !== 'float32' && type !== 'float64')
    throw new InputError(`The model's first output is ${type}, and predictions are floats: export its probabilities.`);
  const size = elementCount(shape) / count;
  return Array.from({ length: count }, (_, row) =>
    Array.from(data.subarray(row * size, (row + 1) * size) as Float32Array),
  );
}
