// Multi-head self-attention (Vaswani et al. 2017) in standard operators, shared by BERT and the vision transformers.

import type { GraphBuilder } from '../graph/builder.ts';
import { type Initialization, zeros } from '../graph/initialization.ts';
import { int64s } from '../graph/tensor.ts';
import { dropoutOf } from './blocks.ts';

/** An attention over all positions. */
export interface AttentionOptions {
  /** Names of the three projections. */
  readonly query: string;
  readonly key: string;
  readonly value: string;
  readonly headCount: number;
  /** Dropout ratio of the attention weights. */
  readonly dropout: number;
  readonly weightInitialization: Initialization;
}

/** softmax(Q·Kᵀ / √d)·V of x [N, S, W], with the heads joined: [N, S, W]. Without the output projection. */
export function selfAttention(b: GraphBuilder, x: string, options: AttentionOptions): string {
  const { headCount, dropout, weightInitialization } = options;
  const [length, width] = [b.size(x, 1), b.size(x, 2)];
  const headWidth = width / headCount;
  const project = (name: string): string =>
    b.reshape(b.linear(x, { name, outFeatures: width, weightInitialization, biasInitialization: zeros }), [
      'N',
      length,
      headCount,
      headWidth,
    ]);
  const query = b.transpose(project(options.query), [0, 2, 1, 3]);
  const key = b.transpose(project(options.key), [0, 2, 3, 1]);
  const value = b.transpose(project(options.value), [0, 2, 1, 3]);
  const scores = b.matMul(b.mul(query, b.scalarLike(query, headWidth ** -0.5)), key);
  const mixed = b.matMul(dropoutOf(b, b.softmax(scores), dropout), value);
  return b.reshape(b.transpose(mixed, [0, 2, 1, 3]), ['N', length, width]);
}

/** The first position of x [N, S, W]: [N, W]. */
export function firstPosition(b: GraphBuilder, x: string): string {
  return b.node('Squeeze', [sliceRows(b, x, { axis: 1, end: 1 }), b.constant(int64s([1]))]);
}

/** x[0 … end) along an axis. */
export function sliceRows(b: GraphBuilder, x: string, { axis, end }: { axis: number; end: number }): string {
  return b.node('Slice', [x, b.constant(int64s([0])), b.constant(int64s([end])), b.constant(int64s([axis]))]);
}
