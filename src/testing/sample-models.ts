// Small models of the kinds that matter for cutting, for tests: residual, depthwise with squeeze-and-excitation,
// attention.

import { GraphBuilder } from '../graph/builder.ts';
import { type Graph, int } from '../graph/graph.ts';
import { elementCount, int64s, type Tensor, tensor, type ValueType } from '../graph/tensor.ts';
import { createRandom } from '../random.ts';

/**
 * Two residual blocks (the second with a projection), batch normalization, a classifier of 5 classes over [N, 3, 8, 8].
 */
export function residualModel(seed = 1): Graph {
  const b = new GraphBuilder('residual', { seed });
  const conv = (x: string, name: string, outChannels: number, kernel: number, stride = 1): string =>
    b.batchNorm(
      b.conv2d(x, { name: `${name}.conv`, outChannels, kernel, stride, padding: (kernel - 1) / 2, bias: false }),
      {
        name: `${name}.bn`,
      },
    );
  let x = b.relu(conv(b.input('x', 'float32', ['N', 3, 8, 8]), 'stem', 4, 3));
  const first = b.relu(conv(x, 'block1.0', 4, 3));
  x = b.relu(b.add(conv(first, 'block1.1', 4, 3), x));
  const second = b.relu(conv(x, 'block2.0', 8, 3, 2));
  const shortcut = conv(x, 'block2.shortcut', 8, 1, 2);
  x = b.relu(b.add(conv(second, 'block2.1', 8, 3), shortcut));
  return b.build([b.linear(b.flatten(b.globalAveragePool(x)), { name: 'head', outFeatures: 5 })]);
}

/** An inverted residual block with squeeze-and-excitation over [N, 3, 8, 8], without batch normalization. */
export function depthwiseModel(seed = 1): Graph {
  const b = new GraphBuilder('depthwise', { seed });
  const input = b.relu6(
    b.conv2d(b.input('x', 'float32', ['N', 3, 8, 8]), {
      name: 'stem',
      outChannels: 4,
      kernel: 3,
      stride: 2,
      padding: 'same',
    }),
  );
  let x = b.silu(b.conv2d(input, { name: 'expand', outChannels: 8, kernel: 1 }));
  x = b.silu(b.conv2d(x, { name: 'depthwise', outChannels: 8, kernel: 3, padding: 1, groups: 8 }));
  const squeezed = b.silu(b.conv2d(b.globalAveragePool(x), { name: 'squeeze', outChannels: 2, kernel: 1 }));
  x = b.mul(x, b.sigmoid(b.conv2d(squeezed, { name: 'excite', outChannels: 8, kernel: 1 })));
  x = b.add(b.conv2d(x, { name: 'project', outChannels: 4, kernel: 1 }), input);
  return b.build([b.linear(b.flatten(b.averagePool2d(x, { kernel: 2 })), { name: 'head', outFeatures: 5 })]);
}

/**
 * Token and position embeddings, one pre-norm attention block with a mask input, a feed-forward block, a classifier;
 * ids [N, 6].
 */
export function attentionModel(seed = 1): Graph {
  const [tokens, width, heads] = [6, 8, 2];
  const b = new GraphBuilder('attention', { seed });
  const ids = b.input('ids', 'int64', ['N', tokens]);
  const mask = b.input('mask', 'float32', ['N', tokens]);
  const bias = b.node('Unsqueeze', [
    b.mul(b.node('Sub', [mask, b.scalarLike(mask, 1)]), b.scalarLike(mask, 100)),
    b.constant(int64s([1, 2])),
  ]);
  const positions = b.embedding(b.constant(int64s([0, 1, 2, 3, 4, 5])), { name: 'positions', count: 10, width });
  const x = b.add(b.embedding(ids, { name: 'tokens', count: 11, width }), positions);
  const normed = b.layerNorm(x, { name: 'attention.norm' });
  const split = (name: string): string =>
    b.transpose(
      b.reshape(b.linear(normed, { name: `attention.${name}`, outFeatures: width }), [
        'N',
        tokens,
        heads,
        width / heads,
      ]),
      [0, 2, 1, 3],
    );
  const scores = b.mul(
    b.matMul(split('query'), b.transpose(split('key'), [0, 1, 3, 2])),
    b.scalarLike(mask, (width / heads) ** -0.5),
  );
  const mixed = b.matMul(b.softmax(b.add(scores, bias)), split('value'));
  const joined = b.reshape(b.transpose(mixed, [0, 2, 1, 3]), ['N', tokens, width]);
  const attended = b.add(x, b.linear(joined, { name: 'attention.output', outFeatures: width }));
  const hidden = b.gelu(
    b.linear(b.layerNorm(attended, { name: 'feedForward.norm' }), { name: 'feedForward.in', outFeatures: 16 }),
  );
  const y = b.add(attended, b.linear(hidden, { name: 'feedForward.out', outFeatures: width }));
  const pooled = b.node('ReduceMean', [y, b.constant(int64s([1]))], { keepdims: int(0) });
  return b.build([b.linear(pooled, { name: 'head', outFeatures: 3 })]);
}

/** Seeded inputs for a graph with static shapes: floats in [−1, 1), integers below `integerBound`. */
export function randomInputs(
  inputs: readonly (ValueType & { readonly name: string })[],
  seed: number,
  integerBound = 10,
): Map<string, Tensor> {
  return new Map(
    inputs.map(({ name, type, shape }, index) => {
      const random = createRandom(seed, index);
      const isFloat = type.startsWith('float');
      const values = Array.from({ length: elementCount(shape) }, () =>
        isFloat ? random.uniform() * 2 - 1 : random.integer(integerBound),
      );
      return [name, tensor(type, shape, values)];
    }),
  );
}
