// The fast forms of a convolution's maps. Each form computes the same numbers; which one is fastest depends on the shapes, and
// the two functions `inputGradientForm` and `weightGradientForm` are the only places that choose.
//
// Letters: x [N, C, input…], w [K, C/group, kernel…], g [N, K, output…] the gradient of the output; P places = Π output, T taps = Π kernel.

import type { Emitter } from '../../graph/emitter.ts';
import { type Attributes, int, ints } from '../../graph/graph.ts';
import { unreachable } from '../../assert.ts';
import { flip, interleaveZeros, padZeros, product, range, reduceSum, reshape, slice, transpose, transposeLast } from '../expressions.ts';
import { matrixProduct } from './products.ts';

/** How a convolution slides: one entry a spatial axis. Places: o·stride − padsBegin + tap·dilation for 0 ≤ o < output, 0 ≤ tap < kernel. */
export interface Sliding {
  readonly input: readonly number[];
  readonly output: readonly number[];
  readonly kernel: readonly number[];
  readonly strides: readonly number[];
  readonly dilations: readonly number[];
  readonly padsBegin: readonly number[];
  readonly group: number;
}

/** The forms of the gradient with respect to x. */
export type InputGradientForm =
  /** Conv of g with the weights turned around and transposed; for stride 1. */
  | 'flipped'
  /** The same after putting stride − 1 zeros between g's elements. */
  | 'spread'
  /** ConvTranspose. */
  | 'transposed';

/** The forms of the gradient with respect to w. */
export type WeightGradientForm =
  /** For each tap one product [K, N·P]·[N·P, C], of copies with the batch moved inwards. One group. */
  | 'joint-products'
  /** For each tap a product [K/G, P]·[P, C/G] per sample and group, summed over samples. */
  | 'sample-products'
  /** One product [K, P]·[P, T·C] per sample, of the taps' slices side by side. One group. */
  | 'columns'
  /** Conv of x with g as filters, batch and channels exchanged. */
  | 'convolution'
  /** Conv of x as one image of N·C channels with g as N·K filters of one channel each, then a sum over N. One channel a group. */
  | 'depthwise';

/** The fastest known form of the input gradient. */
export function inputGradientForm({ strides, ...sliding }: Sliding): InputGradientForm {
  if (strides.some((stride) => stride !== 1)) return 'transposed';
  // turned around, a convolution's padding is what the window reaches beyond the old padding; it cannot be negative
  const reach = sliding.kernel.map((size, axis) => (size - 1) * (sliding.dilations[axis] as number));
  const ends = padsEnd({ strides, ...sliding });
  return reach.every((size, axis) => (sliding.padsBegin[axis] as number) <= size && (ends[axis] as number) <= size)
    ? 'flipped'
    : 'transposed';
}

/** The fastest known form of the weight gradient, for x [N, C, …] and g [N, K, …]. */
export function weightGradientForm(sliding: Sliding, samples: number, channels: number, outputChannels: number): WeightGradientForm {
  if (channels === sliding.group) return 'depthwise';
  if (sliding.group > 1) return 'sample-products';
  const moved = channels * product(sliding.input) + outputChannels * product(sliding.output);
  const summed = channels * outputChannels * product(sliding.kernel);
  return samples === 1 || moved < summed ? 'joint-products' : 'sample-products';
}

/** x ∗ w */
export function convolve(e: Emitter, { x, w, sliding }: { readonly x: string; readonly w: string; readonly sliding: Sliding }): string {
  const ends = padsEnd(sliding);
  // Elements at the end that no window reaches are dropped by rounding down, unless there are enough for one more window.
  const cropped = ends.map((end, axis) => (-end >= (sliding.strides[axis] as number) ? end : 0));
  const kept = padZeros(e, x, [0, 0, ...cropped.map(() => 0)], [0, 0, ...cropped]);
  return e.emit(
    'Conv',
    [kept, w],
    slidingAttributes(
      sliding,
      ends.map((end) => Math.max(0, end)),
    ),
  );
}

/** The adjoint of `convolve` in x. */
export function inputGradient(
  e: Emitter,
  {
    g,
    w,
    sliding,
    form = inputGradientForm(sliding),
  }: { readonly g: string; readonly w: string; readonly sliding: Sliding; readonly form?: InputGradientForm },
): string {
  const ends = padsEnd(sliding);
  switch (form) {
    case 'flipped':
      return convolve(e, { x: g, w: turnedWeights(e, w, sliding.group), sliding: turned(sliding) });
    case 'spread': {
      let spread = g;
      sliding.strides.forEach((stride, axis) => {
        spread = interleaveZeros(e, spread, axis + 2, stride);
      });
      const dense = { ...sliding, output: e.shape(spread).slice(2), strides: sliding.strides.map(() => 1) };
      return convolve(e, { x: spread, w: turnedWeights(e, w, sliding.group), sliding: turned(dense) });
    }
    case 'transposed': {
      // Elements that no window reached: output_padding gives them while they are fewer than a stride, zeros after that.
      const missing = ends.map((end) => Math.max(0, -end));
      const extra = missing.map((count, axis) => (count < (sliding.strides[axis] as number) ? count : 0));
      const attributes = slidingAttributes(
        sliding,
        ends.map((end) => Math.max(0, end)),
      );
      const dx = e.emit(
        'ConvTranspose',
        [g, w],
        extra.some((count) => count > 0) ? { ...attributes, output_padding: ints(extra) } : attributes,
      );
      return padZeros(e, dx, [0, 0, ...missing.map(() => 0)], [0, 0, ...missing.map((count, axis) => count - (extra[axis] as number))]);
    }
    default:
      return unreachable(form);
  }
}

/** The adjoint of `convolve` in w. */
export function weightGradient(
  e: Emitter,
  { x, g, sliding, form }: { readonly x: string; readonly g: string; readonly sliding: Sliding; readonly form?: WeightGradientForm },
): string {
  const [samples = 1, channels = 1] = e.shape(x);
  const outputChannels = e.shape(g)[1] as number;
  const chosen = form ?? weightGradientForm(sliding, samples, channels, outputChannels);
  switch (chosen) {
    case 'joint-products':
      return jointProducts(e, x, g, sliding);
    case 'sample-products':
      return sampleProducts(e, x, g, sliding);
    case 'columns':
      return columnsProduct(e, x, g, sliding);
    case 'convolution':
      return convolutionOfTransposes(e, x, g, sliding);
    case 'depthwise':
      return depthwise(e, x, g, sliding);
    default:
      return unreachable(chosen);
  }
}

function jointProducts(e: Emitter, x: string, g: string, sliding: Sliding): string {
  const channels = e.shape(x)[1] as number;
  const outputChannels = e.shape(g)[1] as number;
  const rows = reshape(e, batchInwards(e, g), [outputChannels, product(e.shape(g)) / outputChannels]);
  const taps = tapSlices(e, batchInwards(e, x), sliding).map((tap) =>
    matrixProduct(e, rows, reshape(e, tap, [channels, product(e.shape(tap)) / channels]), { b: true }),
  );
  return joinTaps(e, taps, [outputChannels, channels, ...sliding.kernel]);
}

function sampleProducts(e: Emitter, x: string, g: string, sliding: Sliding): string {
  const [samples, channels] = e.shape(x) as [number, number];
  const outputChannels = e.shape(g)[1] as number;
  const { group } = sliding;
  const places = product(sliding.output);
  const split = (value: string, count: number): string =>
    reshape(e, value, group === 1 ? [samples, count, places] : [samples, group, count / group, places]);
  const rows = split(g, outputChannels);
  const taps = tapSlices(e, x, sliding).map((tap) => {
    const products = e.emit('MatMul', [rows, transposeLast(e, split(tap, channels))]);
    return reshape(e, reduceSum(e, products, [0], false), [outputChannels, channels / group]);
  });
  return joinTaps(e, taps, [outputChannels, channels / group, ...sliding.kernel]);
}

function columnsProduct(e: Emitter, x: string, g: string, sliding: Sliding): string {
  const [samples, channels] = e.shape(x) as [number, number];
  const outputChannels = e.shape(g)[1] as number;
  const places = product(sliding.output);
  const slices = tapSlices(e, x, sliding).map((tap) => reshape(e, tap, [samples, channels, places]));
  const columns = slices.length === 1 ? (slices[0] as string) : e.emit('Concat', slices, { axis: int(1) });
  const products = e.emit('MatMul', [reshape(e, g, [samples, outputChannels, places]), transposeLast(e, columns)]);
  const summed = reshape(e, reduceSum(e, products, [0], false), [outputChannels, slices.length, channels]);
  return reshape(e, transpose(e, summed, [0, 2, 1]), [outputChannels, channels, ...sliding.kernel]);
}

/** dw[k, c] = Σ_n x[n, c] ∗ g[n, k]: a convolution whose images are x's channels, whose channels are the samples, and whose steps are exchanged. */
function convolutionOfTransposes(e: Emitter, x: string, g: string, sliding: Sliding): string {
  const [samples, channels] = e.shape(x) as [number, number];
  const { group, input } = sliding;
  const perGroup = channels / group;
  const spatial = range(input.length);
  const grouped = transpose(e, reshape(e, x, [samples, group, perGroup, ...input]), [2, 1, 0, ...spatial.map((axis) => axis + 3)]);
  const images = reshape(e, grouped, [perGroup, group * samples, ...input]);
  const filters = batchInwards(e, g);
  return transpose(e, tapsConvolution(e, images, filters, sliding, group), [1, 0, ...spatial.map((axis) => axis + 2)]);
}

function depthwise(e: Emitter, x: string, g: string, sliding: Sliding): string {
  const [samples, channels] = e.shape(x) as [number, number];
  const outputChannels = e.shape(g)[1] as number;
  const image = reshape(e, x, [1, samples * channels, ...sliding.input]);
  const filters = reshape(e, g, [samples * outputChannels, 1, ...sliding.output]);
  const perSample = reshape(e, tapsConvolution(e, image, filters, sliding, samples * channels), [
    samples,
    outputChannels,
    1,
    ...sliding.kernel,
  ]);
  return reduceSum(e, perSample, [0], false);
}

/** The convolution that has one place a tap: g as the kernel, strides and dilations exchanged. */
function tapsConvolution(
  e: Emitter,
  x: string,
  filters: string,
  { input, output, kernel, strides, dilations, padsBegin }: Sliding,
  group: number,
): string {
  return convolve(e, {
    x,
    w: filters,
    sliding: { input, output: kernel, kernel: output, strides: dilations, dilations: strides, padsBegin, group },
  });
}

/** For each tap of the kernel, the elements of x that it touches: […, output…] each. */
function tapSlices(e: Emitter, x: string, sliding: Sliding): readonly string[] {
  const { kernel, output, strides, dilations, padsBegin } = sliding;
  const padded = padZeros(e, x, [0, 0, ...padsBegin], [0, 0, ...padsEnd(sliding)]);
  const axes = kernel.map((_, axis) => axis + 2);
  return tapPositions(kernel).map((position) => {
    const starts = position.map((tap, axis) => tap * (dilations[axis] as number));
    const ends = starts.map((start, axis) => start + ((output[axis] as number) - 1) * (strides[axis] as number) + 1);
    return slice(e, padded, axes, starts, ends, strides);
  });
}

/** All coordinates in a kernel, in row-major order. */
function tapPositions(kernel: readonly number[]): readonly (readonly number[])[] {
  return kernel.reduce<readonly (readonly number[])[]>(
    (positions, size) => positions.flatMap((position) => range(size).map((tap) => [...position, tap])),
    [[]],
  );
}

/** Matrices [K, C], one a tap, as weights [K, C, kernel…]. */
function joinTaps(e: Emitter, taps: readonly string[], shape: readonly number[]): string {
  const [first = ''] = taps;
  if (taps.length === 1) return reshape(e, first, shape);
  const stacked = e.emit(
    'Concat',
    taps.map((tap) => reshape(e, tap, [1, ...e.shape(tap)])),
    { axis: int(0) },
  );
  return reshape(e, transpose(e, stacked, [1, 2, 0]), shape);
}

/** [N, C, …] as [C, N, …]. */
function batchInwards(e: Emitter, x: string): string {
  const [samples = 1, channels = 1, ...rest] = e.shape(x);
  if (samples === 1 || channels === 1) return reshape(e, x, [channels, samples, ...rest]);
  return transpose(e, x, [1, 0, ...rest.map((_, axis) => axis + 2)]);
}

/** Weights [K, C/group, …] as those of the opposite direction [C, K/group, …], turned around. */
function turnedWeights(e: Emitter, w: string, group: number): string {
  const [outputChannels = 1, perGroup = 1, ...kernel] = e.shape(w);
  const axes = kernel.map((_, axis) => axis + 2);
  const grouped = reshape(e, flip(e, w, axes), [group, outputChannels / group, perGroup, ...kernel]);
  return reshape(e, transpose(e, grouped, [0, 2, 1, ...axes.map((axis) => axis + 1)]), [
    group * perGroup,
    outputChannels / group,
    ...kernel,
  ]);
}

/** The convolution from output to input with turned weights, for stride 1. */
function turned(sliding: Sliding): Sliding {
  const padsBegin = sliding.kernel.map(
    (size, axis) => (size - 1) * (sliding.dilations[axis] as number) - (sliding.padsBegin[axis] as number),
  );
  return { ...sliding, input: sliding.output, output: sliding.input, padsBegin };
}

/** The padding at the end that the last window needs; negative where windows leave elements unread. */
function padsEnd({ input, output, kernel, strides, dilations, padsBegin }: Sliding): readonly number[] {
  return input.map(
    (size, axis) =>
      ((output[axis] as number) - 1) * (strides[axis] as number) +
      ((kernel[axis] as number) - 1) * (dilations[axis] as number) +
      1 -
      size -
      (padsBegin[axis] as number),
  );
}

function slidingAttributes({ strides, dilations, padsBegin, group }: Sliding, ends: readonly number[]): Attributes {
  return { strides: ints(strides), dilations: ints(dilations), pads: ints([...padsBegin, ...ends]), group: int(group) };
}
