// Small nets with seeded data, ready to be trained over workers and on one device: what the tests of runtime/ train.
// Each has what real nets have that may go wrong when a net is cut, replicated or fed in pieces.

import { GraphBuilder } from '../graph/builder.ts';
import { freezeBatchNormalization } from '../graph/freeze.ts';
import { type Graph, int } from '../graph/graph.ts';
import { type CutTensor, type LayerSequence, layers } from '../graph/layers.ts';
import { elementCount, int64s, type Tensor, tensor } from '../graph/tensor.ts';
import { createRandom } from '../random.ts';
import type { Batch } from '../runtime/coordinator/options.ts';
import type { RunSubject } from '../runtime/protocol/run-subject.ts';
import type { TrainingSpec } from '../runtime/protocol/training-spec.ts';

/** A net and its loss. */
export interface TestNet {
  readonly graph: Graph;
  readonly loss: TrainingSpec['loss'];
  /** Class numbers, and integers that the net reads, are below this. */
  readonly classCount: number;
}

/**
 * Two residual blocks with instance and group normalization, the second with a projection: cuts inside a block carry
 * two tensors.
 */
export function residualNet(): TestNet {
  const b = new GraphBuilder('residual', { seed: 1 });
  const conv = (x: string, name: string, outChannels: number, kernel: number, groups: number): string =>
    b.groupNorm(b.conv2d(x, { name, outChannels, kernel, padding: (kernel - 1) / 2, bias: false }), {
      name: `${name}.norm`,
      groups,
    });
  let x = b.relu(conv(b.input('x', 'float32', ['N', 2, 5, 5]), 'stem', 3, 3, 3));
  x = b.add(x, conv(b.relu(conv(x, 'block1.0', 3, 3, 3)), 'block1.1', 3, 3, 1));
  x = b.add(conv(x, 'block2.shortcut', 4, 1, 2), conv(b.relu(conv(x, 'block2.0', 4, 3, 2)), 'block2.1', 4, 3, 4));
  return {
    graph: b.build([
      b.linear(b.flatten(b.averagePool2d(x, { kernel: 2, stride: 1 })), { name: 'head', outFeatures: 3 }),
    ]),
    loss: 'cross-entropy',
    classCount: 3,
  };
}

/**
 * A transformer block over int64 tokens [N, 4] and a float mask that crosses cuts without a gradient; dropout on the
 * attention and behind the perceptron.
 */
export function transformerNet(): TestNet {
  const [tokens, width, heads] = [4, 6, 2];
  const b = new GraphBuilder('transformer', { seed: 2 });
  const x = b.embedding(b.input('ids', 'int64', ['N', tokens]), { name: 'embedding', count: 5, width });
  const mask = b.input('mask', 'float32', ['N', tokens]);
  const bias = b.node('Unsqueeze', [b.mul(mask, b.scalarLike(mask, 0.5)), b.constant(int64s([1, 2]))]);
  const normed = b.layerNorm(x, { name: 'norm1' });
  const split = (name: string): string =>
    b.transpose(
      b.reshape(b.linear(normed, { name, outFeatures: width, bias: false }), ['N', tokens, heads, width / heads]),
      [0, 2, 1, 3],
    );
  const key = b.transpose(split('key'), [0, 1, 3, 2]);
  const scores = b.softmax(b.add(b.mul(b.matMul(split('query'), key), b.scalarLike(key, 0.6)), bias));
  const mixed = b.matMul(b.dropout(scores, 0.25), split('value'));
  const joined = b.reshape(b.transpose(mixed, [0, 2, 1, 3]), ['N', tokens, width]);
  const attended = b.add(x, b.linear(joined, { name: 'out', outFeatures: width }));
  const hidden = b.gelu(b.linear(b.layerNorm(attended, { name: 'norm2' }), { name: 'up', outFeatures: 8 }));
  const y = b.add(attended, b.dropout(b.linear(hidden, { name: 'down', outFeatures: width }), 0.25));
  const pooled = b.node('ReduceMean', [y, b.constant(int64s([1]))], { keepdims: int(0) });
  return { graph: b.build([b.linear(pooled, { name: 'head', outFeatures: 3 })]), loss: 'cross-entropy', classCount: 3 };
}

/** Four linear layers with dropout between them. */
export function dropoutNet(): TestNet {
  const b = new GraphBuilder('dropout', { seed: 3 });
  let x = b.input('x', 'float32', ['N', 6]);
  for (const name of ['a', 'b', 'c']) x = b.dropout(b.tanh(b.linear(x, { name, outFeatures: 8 })), 0.4);
  return { graph: b.build([b.linear(x, { name: 'head', outFeatures: 4 })]), loss: 'cross-entropy', classCount: 4 };
}

/**
 * Works on [4, N, 5] inside, with dropout there; four positions, so that a batch of 1, 2 or 4 could be taken for the
 * positions.
 */
export function sequenceFirstNet(): TestNet {
  const b = new GraphBuilder('sequence-first', { seed: 4 });
  let x = b.transpose(b.input('x', 'float32', ['N', 4, 5]), [1, 0, 2]);
  for (const name of ['a', 'b']) x = b.dropout(b.tanh(b.linear(x, { name, outFeatures: 5 })), 0.4);
  x = b.add(x, b.linear(b.layerNorm(x, { name: 'norm' }), { name: 'c', outFeatures: 5 }));
  const pooled = b.node('ReduceMean', [x, b.constant(int64s([0]))], { keepdims: int(0) });
  return { graph: b.build([b.linear(pooled, { name: 'head', outFeatures: 3 })]), loss: 'cross-entropy', classCount: 3 };
}

/** Much to send and little to compute: 4 KiB a sample between its two layers. */
export function wideNet(): TestNet {
  const b = new GraphBuilder('wide', { seed: 7 });
  const x = b.tanh(b.linear(b.input('x', 'float32', ['N', 3]), { name: 'a', outFeatures: 1024 }));
  return { graph: b.build([b.linear(x, { name: 'head', outFeatures: 3 })]), loss: 'cross-entropy', classCount: 3 };
}

/** A regression with two outputs. */
export function regressionNet(): TestNet {
  const b = new GraphBuilder('regression', { seed: 5 });
  let x = b.input('x', 'float32', ['N', 5]);
  for (const name of ['a', 'b', 'c']) x = b.silu(b.linear(x, { name, outFeatures: 7 }));
  return { graph: b.build([b.linear(x, { name: 'head', outFeatures: 2 })]), loss: 'mse', classCount: 0 };
}

/** Convolutions with batch normalization and a skip connection. */
export function batchNormNet(): TestNet {
  const b = new GraphBuilder('batch-norm', { seed: 6 });
  const conv = (x: string, name: string): string =>
    b.batchNorm(b.conv2d(x, { name, outChannels: 3, kernel: 3, padding: 1, bias: false }), { name: `${name}.bn` });
  let x = b.relu(conv(b.input('x', 'float32', ['N', 2, 4, 4]), 'stem'));
  x = b.relu(b.add(x, conv(b.relu(conv(x, 'a')), 'b')));
  return {
    graph: b.build([b.linear(b.flatten(b.globalAveragePool(x)), { name: 'head', outFeatures: 3 })]),
    loss: 'cross-entropy',
    classCount: 3,
  };
}

/** What is trained, from the net's own initial weights, with SGD and momentum unless said otherwise. */
export function subjectOf(net: TestNet, batchSize: number, training: Partial<TrainingSpec> = {}): RunSubject {
  const frozen = training.frozen ?? [];
  const sequence = layers(freezeBatchNormalization(net.graph, frozen), { frozen });
  const { graph } = sequence;
  const pick = (names: readonly string[]): Map<string, Tensor> =>
    new Map(
      names
        .flatMap((name) => [[name, graph.initializers.get(name)] as const])
        .filter((entry): entry is [string, Tensor] => entry[1] !== undefined),
    );
  const outputShape = net.graph.outputs[0]?.shape.slice(1) as number[];
  const label: CutTensor = {
    name: 'label',
    type: net.loss === 'mse' ? 'float32' : 'int64',
    shape: net.loss === 'mse' ? ['N', ...outputShape] : ['N'],
    batchAxis: 0,
    differentiable: false,
  };
  return {
    modelName: net.graph.name,
    sequence,
    training: { batchSize, loss: net.loss, optimizer: sgd, clipNorm: null, seed: 7, frozen: [], ...training },
    label,
    state: { parameter: pick(graph.parameters), buffer: pick(graph.buffers), optimizer: new Map() },
  };
}

export const sgd: TrainingSpec['optimizer'] = {
  kind: 'sgd',
  momentum: 0.9,
  nesterov: false,
  weightDecay: 0,
  beta1: 0.9,
  beta2: 0.999,
  epsilon: 1e-8,
};

/** Seeded data: another batch for every round. */
export function batches(
  net: TestNet,
  { sequence, label, training: { batchSize } }: RunSubject,
): (round: number) => Batch {
  return (round) => {
    const draw = (cut: CutTensor, index: number): Tensor => {
      const random = createRandom(11, round, index);
      const shape = cut.shape.map((dimension) => (dimension === 'N' ? batchSize : dimension));
      const isFloat = cut.type === 'float32';
      return tensor(
        cut.type,
        shape,
        Array.from({ length: elementCount(shape) }, () => (isFloat ? random.normal() : random.integer(net.classCount))),
      );
    };
    return { inputs: sequence.inputs.map(draw), labels: draw(label, 100) };
  };
}

/** Linear layers of 6 to 6 with tanh between, and a head of 2. */
export function chainOfLinears(count: number): LayerSequence {
  const b = new GraphBuilder('chain', { seed: 1 });
  let x = b.input('x', 'float32', ['N', 6]);
  for (let index = 0; index < count; index++) x = b.tanh(b.linear(x, { name: `layer${index}`, outFeatures: 6 }));
  return layers(b.build([b.linear(x, { name: 'head', outFeatures: 2 })]));
}
