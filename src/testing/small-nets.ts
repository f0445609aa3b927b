// Small nets that have what real ones have: small enough for finite differences of every weight.

import { GraphBuilder } from '../graph/builder.ts';
import type { Graph } from '../graph/graph.ts';

/**
 * Convolutions with batch normalization and a skip connection, ReLU and ReLU6, an overlapping maximum pool, a linear
 * head.
 */
export function residualNet(): Graph {
  const builder = new GraphBuilder('residual', { seed: 3 });
  const x = builder.input('x', 'float32', ['N', 2, 5, 5]);
  const stem = builder.relu(
    builder.batchNorm(builder.conv2d(x, { name: 'stem', outChannels: 3, kernel: 3, padding: 1, bias: false }), {
      name: 'bn0',
    }),
  );
  const inner = builder.relu6(
    builder.batchNorm(builder.conv2d(stem, { name: 'a', outChannels: 3, kernel: 3, padding: 1 }), { name: 'bn1' }),
  );
  const block = builder.add(stem, builder.conv2d(inner, { name: 'b', outChannels: 3, kernel: 1 }));
  const pooled = builder.maxPool2d(block, { kernel: 3, stride: 2, padding: 1 });
  return builder.build([
    builder.linear(builder.flatten(builder.globalAveragePool(pooled)), { name: 'head', outFeatures: 2 }),
  ]);
}

/** Embedding, attention with two heads, layer normalization, a GELU perceptron. Reads int64 tokens [N, 3] below 5. */
export function attentionNet(): Graph {
  const builder = new GraphBuilder('attention', { seed: 4 });
  const x = builder.embedding(builder.input('tokens', 'int64', ['N', 3]), { name: 'embedding', count: 5, width: 4 });
  const heads = (name: string): string =>
    builder.transpose(builder.reshape(builder.linear(x, { name, outFeatures: 4 }), ['N', 3, 2, 2]), [0, 2, 1, 3]);
  const [query, key, value] = [heads('query'), heads('key'), heads('value')];
  const scores = builder.mul(builder.matMul(query, builder.transpose(key, [0, 1, 3, 2])), builder.scalarLike(key, 0.7));
  const mixed = builder.matMul(builder.softmax(scores), value);
  const joined = builder.reshape(builder.transpose(mixed, [0, 2, 1, 3]), ['N', 3, 4]);
  const normed = builder.layerNorm(builder.add(x, builder.linear(joined, { name: 'out', outFeatures: 4 })), {
    name: 'norm',
  });
  const y = builder.linear(builder.gelu(builder.linear(normed, { name: 'up', outFeatures: 6 })), {
    name: 'down',
    outFeatures: 4,
  });
  return builder.build([builder.add(normed, y)]);
}

/** An inverted residual: expansion, depthwise convolution with stride 2, squeeze and excitation, projection; SiLU. */
export function depthwiseNet(): Graph {
  const builder = new GraphBuilder('depthwise', { seed: 5 });
  const x = builder.input('x', 'float32', ['N', 2, 6, 6]);
  const wide = builder.silu(
    builder.batchNorm(builder.conv2d(x, { name: 'expand', outChannels: 4, kernel: 1, bias: false }), { name: 'bn0' }),
  );
  const deep = builder.conv2d(wide, {
    name: 'deep',
    outChannels: 4,
    kernel: 3,
    stride: 2,
    padding: 1,
    groups: 4,
    bias: false,
  });
  const active = builder.silu(builder.batchNorm(deep, { name: 'bn1' }));
  const squeezed = builder.silu(
    builder.conv2d(builder.globalAveragePool(active), { name: 'reduce', outChannels: 1, kernel: 1 }),
  );
  const excited = builder.mul(
    active,
    builder.sigmoid(builder.conv2d(squeezed, { name: 'excite', outChannels: 4, kernel: 1 })),
  );
  return builder.build([builder.conv2d(excited, { name: 'project', outChannels: 2, kernel: 1 })]);
}
