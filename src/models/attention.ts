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
  /** Whether each projection has a bias. Default true. */
  readonly bias?: boolean;
  /** Added to the scores, [N or 1, 1, S or 1, S]: very negative where a position is not to be seen. */
  readonly mask?: string | undefined;
}

/** Queries [N, H, R, d], keys [N, H, d, S] and values [N, H, S, d] of the heads. */
export interface Heads {
  readonly query: string;
  readonly key: string;
  readonly value: string;
}

/** softmax(Q·Kᵀ / √d + mask)·V of each head, [N, H, R, d]. */
export function attend(
  b: GraphBuilder,
  { query, key, value }: Heads,
  { dropout, mask }: { readonly dropout: number; readonly mask?: string | undefined },
): string {
  const scale = b.size(query, 3) ** -0.5;
  const scores = b.matMul(b.mul(query, b.scalarLike(query, scale)), key);
  const weights = b.softmax(mask === undefined ? scores : b.add(scores, mask));
  return b.matMul(dropoutOf(b, weights, dropout), value);
}

/** The width of each of several heads. Throws Error where they do not divide the whole. */
export function widthOfHeads(width: number, headCount: number): number {
  if (width % headCount !== 0) throw new Error(`${width} columns are not to be shared among ${headCount} heads`);
  return width / headCount;
}

/** softmax(Q·Kᵀ / √d)·V of x [N, S, W], with the heads joined: [N, S, W]. Without the output projection. */
export function selfAttention(b: GraphBuilder, x: string, options: AttentionOptions): string {
  const { headCount, dropout, weightInitialization, bias = true, mask } = options;
  const [length, width] = [b.size(x, 1), b.size(x, 2)];
  const headWidth = widthOfHeads(width, headCount);
  const project = (name: string): string =>
    b.reshape(b.linear(x, { name, outFeatures: width, bias, weightInitialization, biasInitialization: zeros }), [
      'N',
      length,
      headCount,
      headWidth,
    ]);
  const query = b.transpose(project(options.query), [0, 2, 1, 3]);
  const key = b.transpose(project(options.key), [0, 2, 3, 1]);
  const value = b.transpose(project(options.value), [0, 2, 1, 3]);
  const mixed = attend(b, { query, key, value }, { dropout, mask });
  return b.reshape(b.transpose(mixed, [0, 2, 1, 3]), ['N', length, width]);
}

/** The first position of x [N, S, W]: [N, W]. */
export function firstPosition(b: GraphBuilder, x: string): string {
  return b.node('Squeeze', [sliceRows(b, x, { axis: 1, end: 1 }), b.constant(int64s([1]))]);
}

/** x[start … end) along an axis. */
export function sliceRows(
  b: GraphBuilder,
  x: string,
  { axis, start = 0, end }: { readonly axis: number; readonly start?: number; readonly end: number },
): string {
  return b.node('Slice', [x, b.constant(int64s([start])), b.constant(int64s([end])), b.constant(int64s([axis]))]);
}
