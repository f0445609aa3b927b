// The forms of a convolution and its adjoints, written out: all compute the same numbers; forms.ts chooses the fastest.
// Notation: x [N, C, input…], w [K, C/group, kernel…], g [N, K, output…] the gradient of the output; P places = Π
// output, T taps = Π kernel.

import { unreachable } from '../../assert.ts';
import type { Emitter } from '../../graph/emitter.ts';
import { type Attributes, int, ints } from '../../graph/graph.ts';
import {
  concat,
  flip,
  padZeros,
  product,
  range,
  reduceSum,
  reshape,
  slice,
  transpose,
  transposeLast,
} from '../expressions.ts';
import { type InputGradientForm, padsEnd, type Sliding, type WeightGradientForm } from '../forms.ts';
import { matrixProduct } from './products.ts';

/** x ∗ w */
export function convolve(
  e: Emitter,
  { x, w, sliding }: { readonly x: string; readonly w: string; readonly sliding: Sliding },
): string {
  const ends = padsEnd(sliding);
  // Rounding down drops elements at the end that no window reaches, unless there are enough for one more window.
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
    form,
  }: { readonly g: string; readonly w: string; readonly sliding: Sliding; readonly form: InputGradientForm },
): string {
  switch (form) {
    case 'flipped':
      return convolve(e, { x: g, w: flippedWeights(e, w, sliding.group), sliding: flipped(sliding) });
    case 'transposed':
      return transposedConvolution(e, g, w, sliding);
    default:
      return unreachable(form);
  }
}

/** The adjoint of `convolve` in w. */
export function weightGradient(
  e: Emitter,
  {
    x,
    g,
    sliding,
    form,
  }: { readonly x: string; readonly g: string; readonly sliding: Sliding; readonly form: WeightGradientForm },
): string {
  switch (form) {
    case 'joint-products':
      return jointProducts(e, x, g, sliding);
    case 'sample-products':
      return sampleProducts(e, x, g, sliding);
    case 'columns':
      return columnsProduct(e, x, g, sliding);
    case 'joint-columns':
      return jointColumns(e, x, g, sliding);
    case 'convolution':
      return convolutionOfTransposes(e, x, g, sliding);
    case 'depthwise':
      return depthwise(e, x, g, sliding);
    case 'joint-dots':
      return jointDots(e, x, g, sliding);
    default:
      return unreachable(form);
  }
}

function transposedConvolution(e: Emitter, g: string, w: string, sliding: Sliding): string {
  const ends = padsEnd(sliding);
  // Elements that no window reached: output_padding adds them if they are fewer than a stride, otherwise zeros are
  // appended.
  const missing = ends.map((end) => Math.max(0, -end));
  const extra = missing.map((count, axis) => (count < (sliding.strides[axis] as number) ? count : 0));
  const padded = extra.some((count) => count > 0) ? { output_padding: ints(extra) } : {};
  const attributes = {
    ...slidingAttributes(
      sliding,
      ends.map((end) => Math.max(0, end)),
    ),
    ...padded,
  };
  const dx = e.emit('ConvTranspose', [g, w], attributes);
  return padZeros(
    e,
    dx,
    [0, 0, ...missing.map(() => 0)],
    [0, 0, ...missing.map((count, axis) => count - (extra[axis] as number))],
  );
}

function jointProducts(e: Emitter, x: string, g: string, sliding: Sliding): string {
  const channels = e.shape(x)[1] as number;
  const outputChannels = e.shape(g)[1] as number;
  const rows = reshape(e, batchInwards(e, g), [outputChannels, product(e.shape(g)) / outputChannels]);
  const taps = tapSlices(e, x, sliding, true).map((tap) =>
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
  const taps = tapSlices(e, x, sliding, false).map((tap) => {
    const products = e.emit('MatMul', [rows, transposeLast(e, split(tap, channels))]);
    return reshape(e, reduceSum(e, products, [0], false), [outputChannels, channels / group]);
  });
  return joinTaps(e, taps, [outputChannels, channels / group, ...sliding.kernel]);
}

function columnsProduct(e: Emitter, x: string, g: string, sliding: Sliding): string {
  const [samples, channels] = e.shape(x) as [number, number];
  const outputChannels = e.shape(g)[1] as number;
  const places = product(sliding.output);
  const slices = tapSlices(e, x, sliding, false).map((tap) => reshape(e, tap, [samples, channels, 1, places]));
  const columns = reshape(e, concat(e, slices, 2), [samples, channels * slices.length, places]);
  const products = e.emit('MatMul', [reshape(e, g, [samples, outputChannels, places]), transposeLast(e, columns)]);
  return reshape(e, reduceSum(e, products, [0], false), [outputChannels, channels, ...sliding.kernel]);
}

function jointColumns(e: Emitter, x: string, g: string, sliding: Sliding): string {
  const channels = e.shape(x)[1] as number;
  const outputChannels = e.shape(g)[1] as number;
  const length = product(e.shape(g)) / outputChannels;
  const slices = tapSlices(e, x, sliding, true).map((tap) => reshape(e, tap, [channels, 1, length]));
  const columns = reshape(e, concat(e, slices, 1), [channels * slices.length, length]);
  const rows = reshape(e, batchInwards(e, g), [outputChannels, length]);
  return reshape(e, matrixProduct(e, rows, columns, { b: true }), [outputChannels, channels, ...sliding.kernel]);
}

/**
 * dw[k, c] = Σ_n x[n, c] ∗ g[n, k]: a convolution whose images are x's channels, whose channels are the samples, and
 * whose strides and dilations are exchanged.
 */
function convolutionOfTransposes(e: Emitter, x: string, g: string, sliding: Sliding): string {
  const [samples, channels] = e.shape(x) as [number, number];
  const { group, input } = sliding;
  const perGroup = channels / group;
  const spatial = range(input.length);
  const grouped = transpose(e, reshape(e, x, [samples, group, perGroup, ...input]), [
    2,
    1,
    0,
    ...spatial.map((axis) => axis + 3),
  ]);
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

function jointDots(e: Emitter, x: string, g: string, sliding: Sliding): string {
  const channels = e.shape(x)[1] as number;
  const outputChannels = e.shape(g)[1] as number;
  const length = product(e.shape(g)) / outputChannels;
  const filters = reshape(e, batchInwards(e, g), [outputChannels, 1, length]);
  const taps = tapSlices(e, x, sliding, true).map((tap) => {
    const dots = e.emit('Conv', [reshape(e, tap, [1, channels, length]), filters], { group: int(channels) });
    return reshape(e, dots, [outputChannels, 1]);
  });
  return joinTaps(e, taps, [outputChannels, 1, ...sliding.kernel]);
}

/** The convolution with one place a tap: g as the kernel, strides and dilations exchanged. */
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

/** For each tap of the kernel, the elements of x that it reads: [N, C, output…] each, or [C, N, output…]. */
function tapSlices(e: Emitter, x: string, sliding: Sliding, channelsFirst: boolean): readonly string[] {
  const { kernel, output, strides, dilations, padsBegin } = sliding;
  const padded = padZeros(e, x, [0, 0, ...padsBegin], [0, 0, ...padsEnd(sliding)]);
  const positions = tapPositions(kernel);
  // A single slice is transposed after slicing, so that fewer elements move.
  const movedBefore = channelsFirst && positions.length > 1;
  const source = movedBefore ? batchInwards(e, padded) : padded;
  const axes = kernel.map((_, axis) => axis + 2);
  return positions.map((position) => {
    const starts = position.map((tap, axis) => tap * (dilations[axis] as number));
    const ends = starts.map((start, axis) => start + ((output[axis] as number) - 1) * (strides[axis] as number) + 1);
    const tap = slice(e, source, axes, starts, ends, strides);
    return channelsFirst && !movedBefore ? batchInwards(e, tap) : tap;
  });
}

/** All coordinates in a kernel, in row-major order. */
function tapPositions(kernel: readonly number[]): readonly (readonly number[])[] {
  return kernel.reduce<readonly (readonly number[])[]>(
    (positions, size) => positions.flatMap((position) => range(size).map((tap) => [...position, tap])),
    [[]],
  );
}

/** Matrices [K, C], one a tap, joined to weights [K, C, kernel…]. */
function joinTaps(e: Emitter, taps: readonly string[], shape: readonly number[]): string {
  const [first = ''] = taps;
  if (taps.length === 1) return reshape(e, first, shape);
  const stacked = concat(
    e,
    taps.map((tap) => reshape(e, tap, [1, ...e.shape(tap)])),
    0,
  );
  return reshape(e, transpose(e, stacked, [1, 2, 0]), shape);
}

/** Transposes [N, C, …] to [C, N, …]. */
function batchInwards(e: Emitter, x: string): string {
  const [samples = 1, channels = 1, ...rest] = e.shape(x);
  if (samples === 1 || channels === 1) return reshape(e, x, [channels, samples, ...rest]);
  return transpose(e, x, [1, 0, ...rest.map((_, axis) => axis + 2)]);
}

/** Weights [K, C/group, …] as those of the opposite direction [C, K/group, …], flipped. */
function flippedWeights(e: Emitter, w: string, group: number): string {
  const [outputChannels = 1, perGroup = 1, ...kernel] = e.shape(w);
  const axes = kernel.map((_, axis) => axis + 2);
  const grouped = reshape(e, flip(e, w, axes), [group, outputChannels / group, perGroup, ...kernel]);
  return reshape(e, transpose(e, grouped, [0, 2, 1, ...axes.map((axis) => axis + 1)]), [
    group * perGroup,
    outputChannels / group,
    ...kernel,
  ]);
}

/** The convolution from output to input with flipped weights, for stride 1. */
function flipped(sliding: Sliding): Sliding {
  const padsBegin = sliding.kernel.map(
    (size, axis) => (size - 1) * (sliding.dilations[axis] as number) - (sliding.padsBegin[axis] as number),
  );
  return { ...sliding, input: sliding.output, output: sliding.input, padsBegin };
}

function slidingAttributes({ strides, dilations, padsBegin, group }: Sliding, ends: readonly number[]): Attributes {
  return { strides: ints(strides), dilations: ints(dilations), pads: ints([...padsBegin, ...ends]), group: int(group) };
}
