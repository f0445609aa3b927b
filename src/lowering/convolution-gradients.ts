// Gradients of convolutions on the blocked layout. The input's gradient is a convolution with flipped weights; with
// strides, one for each residue of the places, interleaved afterwards. The weights' gradient is one matrix product of
// rows (channels last) for each tap, or, for one channel a group, a convolution with the output's gradient as its
// kernel. Notation as in autodiff/forms.ts.

import { concat, padZeros, product, range, reduceSum, slice, transpose } from '../autodiff/expressions.ts';
import { canFlip, padsEnd, type Sliding } from '../autodiff/forms.ts';
import { int } from '../graph/graph.ts';
import { blockedConv, isPointwise } from './convolutions.ts';
import { depthwiseFilter, flippedFilter } from './filters.ts';
import type { Layouts } from './layouts.ts';

/** True if `inputGradient` has a form for this geometry. */
export function hasInputGradient(sliding: Sliding): boolean {
  if (canFlip(sliding) || isPointwise(sliding)) return true;
  const { input, strides, dilations, kernel } = sliding;
  return (
    dilations.every((dilation) => dilation === 1) &&
    input.every((size, axis) => size % (strides[axis] as number) === 0) &&
    kernel.every(
      (size, axis) =>
        residues(sliding, axis).every((residue) => residue.padBegin >= 0 && residue.padEnd >= 0) && size > 0,
    )
  );
}

/** dx of y = x ∗ w, with `channels` of x. */
export function inputGradient(
  l: Layouts,
  {
    g,
    w,
    channels,
    sliding,
  }: { readonly g: string; readonly w: string; readonly channels: number; readonly sliding: Sliding },
): { readonly name: string; readonly layout: 'plain' | 'blocked' } {
  const [samples = 1, outputChannels = 1] = l.shape(g);
  const weights = l.plain(w);
  if (isPointwise(sliding) && sliding.group === 1) {
    const inputs = [l.reshape(l.plain(g), [samples, outputChannels]), l.reshape(weights, [outputChannels, channels])];
    return { name: l.reshape(l.emitter.emit('Gemm', inputs), [samples, channels, 1, 1]), layout: 'plain' };
  }
  const [, width = 1] = sliding.kernel;
  const flippedWeights = (rows: readonly number[], columns: readonly number[]): string => {
    const taps = rows.flatMap((row) => columns.map((column) => row * width + column));
    const kernel = [rows.length, columns.length];
    return sliding.group === 1
      ? flippedFilter(l, weights, taps, kernel)
      : depthwiseFilter(l, weights, { taps, kernel });
  };
  const group = sliding.group === 1 ? 1 : l.padded(channels);
  const x = l.blocked(g);
  if (canFlip(sliding)) {
    const reach = sliding.kernel.map((size, axis) => (size - 1) * (sliding.dilations[axis] as number));
    const ends = padsEnd(sliding);
    const [rows, columns] = sliding.kernel.map((size) => [...range(size)].reverse()) as [number[], number[]];
    const name = blockedConv(l, {
      x,
      w: flippedWeights(rows, columns),
      kernel: sliding.kernel,
      output: sliding.input,
      outputChannels: l.padded(channels),
      group,
      dilations: sliding.dilations,
      pads: [
        ...reach.map((size, axis) => size - (sliding.padsBegin[axis] as number)),
        ...reach.map((size, axis) => size - (ends[axis] as number)),
      ],
    });
    return { name, layout: 'blocked' };
  }
  return {
    name: stridedInputGradient(l, { x, flippedWeights, channels: l.padded(channels), group, sliding }),
    layout: 'blocked',
  };
}

/**
 * The input places of one residue modulo the stride, on one axis: their gradient is a convolution of g with stride 1
 * and some of the taps.
 */
interface Residue {
  /** In the order of the flipped kernel. */
  readonly taps: readonly number[];
  readonly padBegin: number;
  readonly padEnd: number;
}

/** By residue a: the place s·i + a gets, from tap t ≡ a + p (mod s), the gradient at i + (a + p − t)/s. */
function residues(sliding: Sliding, axis: number): readonly Residue[] {
  const [stride, pad, kernel, input, output] = [
    sliding.strides[axis] as number,
    sliding.padsBegin[axis] as number,
    sliding.kernel[axis] as number,
    sliding.input[axis] as number,
    sliding.output[axis] as number,
  ];
  return range(stride).map((a) => {
    const first = (a + pad) % stride;
    const count = Math.max(0, Math.ceil((kernel - first) / stride));
    const shift = (a + pad - first) / stride;
    const padBegin = count - 1 - shift;
    const taps = range(count).map((index) => first + stride * (count - 1 - index));
    return {
      taps,
      padBegin: count === 0 ? 0 : padBegin,
      padEnd: count === 0 ? 0 : input / stride - output - padBegin + count - 1,
    };
  });
}

function stridedInputGradient(
  l: Layouts,
  {
    x,
    flippedWeights,
    channels,
    group,
    sliding,
  }: {
    readonly x: string;
    readonly flippedWeights: (rows: readonly number[], columns: readonly number[]) => string;
    readonly channels: number;
    readonly group: number;
    readonly sliding: Sliding;
  },
): string {
  const e = l.emitter;
  const samples = e.shape(x)[0] as number;
  const [height = 1, width = 1] = sliding.input.map((size, axis) => size / (sliding.strides[axis] as number));
  const images = (samples * channels) / l.block;
  const [rowResidues, columnResidues] = [residues(sliding, 0), residues(sliding, 1)];
  const part = (rows: Residue, columns: Residue): string | undefined => {
    if (rows.taps.length === 0 || columns.taps.length === 0) return undefined;
    return blockedConv(l, {
      x,
      w: flippedWeights(rows.taps, columns.taps),
      kernel: [rows.taps.length, columns.taps.length],
      output: [height, width],
      outputChannels: channels,
      group,
      pads: [rows.padBegin, columns.padBegin, rows.padEnd, columns.padEnd],
    });
  };
  /** Interleaves the parts along an axis; missing parts are zeros. If there is a single part, it must be the first. */
  const interleave = (
    parts: readonly (string | undefined)[],
    shape: readonly [number, number, number],
  ): string | undefined => {
    if (parts.every((value) => value === undefined)) return undefined;
    const [outer, , inner] = shape;
    const first = parts[0];
    if (first !== undefined && parts.slice(1).every((value) => value === undefined)) {
      return padZeros(e, l.reshape(first, [outer, 1, inner]), [0, 0, 0], [0, parts.length - 1, 0]);
    }
    const zero = parts.includes(undefined) ? zeros(l, [outer, 1, inner]) : '';
    return concat(
      e,
      parts.map((value) => (value === undefined ? zero : l.reshape(value, [outer, 1, inner]))),
      1,
    );
  };
  const rows = rowResidues.map((row) =>
    interleave(
      columnResidues.map((column) => part(row, column)),
      [images * height * width, 1, l.block],
    ),
  );
  const whole = interleave(rows, [images * height, 1, width * columnResidues.length * l.block]);
  return l.reshape(whole as string, [samples, channels, ...sliding.input]);
}

function zeros(l: Layouts, shape: readonly number[]): string {
  return l.emitter.emit('ConstantOfShape', [l.emitter.int64s(shape)], {
    value: { type: 'tensor', value: { type: 'float32', shape: [1], data: new Float32Array(1) } },
  });
}

/** True if `weightGradient` has a form for this geometry. */
export function hasWeightGradient(sliding: Sliding): boolean {
  // With g as its kernel, dilated by the strides and sliding by the dilations, a convolution has as many places as
  // there are taps, if no element is unread.
  return sliding.group === 1 || padsEnd(sliding).every((end) => end >= 0);
}

/** dw of y = x ∗ w, in row-major order. */
export function weightGradient(
  l: Layouts,
  { x, g, sliding }: { readonly x: string; readonly g: string; readonly sliding: Sliding },
): string {
  return sliding.group === 1 ? denseWeightGradient(l, x, g, sliding) : depthwiseWeightGradient(l, x, g, sliding);
}

/** One product [K, N·P]·[N·P, C] for each tap. */
function denseWeightGradient(l: Layouts, x: string, g: string, sliding: Sliding): string {
  const e = l.emitter;
  const [samples = 1, channels = 1] = l.shape(x);
  const outputChannels = l.shape(g)[1] as number;
  const { kernel, output, strides, dilations, padsBegin } = sliding;
  const places = samples * product(output);
  const rows = l.reshape(l.rows(g), [places, outputChannels]);
  const ends = padsEnd(sliding).map((end) => Math.max(0, end));
  const images = padZeros(e, l.rows(x), [0, ...padsBegin, 0], [0, ...ends, 0]);
  const [kernelHeight = 1, kernelWidth = 1] = kernel;
  const taps = range(kernelHeight).flatMap((row) =>
    range(kernelWidth).map((column) => {
      const starts = [row * (dilations[0] as number), column * (dilations[1] as number)];
      const stops = starts.map((start, axis) => start + ((output[axis] as number) - 1) * (strides[axis] as number) + 1);
      const tap = slice(e, images, [1, 2], starts, stops, strides);
      return e.emit('Gemm', [rows, l.reshape(tap, [places, channels])], { transA: int(1) });
    }),
  );
  if (taps.length === 1) return l.reshape(taps[0] as string, [outputChannels, channels, 1, 1]);
  const size = outputChannels * channels;
  if (size % l.block === 0) {
    // Concatenated in blocks, the taps are images [B, h, w] that the runtime's fast reorder transposes.
    const blocks = size / l.block;
    const joined = concat(
      e,
      taps.map((tap) => l.reshape(tap, [blocks, 1, l.block])),
      1,
    );
    const images = l.reshape(joined, [blocks, l.block, ...kernel]);
    return l.reshape(l.emit('ReorderOutput', [images], [blocks, l.block, ...kernel], { channels: int(l.block) }), [
      outputChannels,
      channels,
      ...kernel,
    ]);
  }
  const joined = concat(
    e,
    taps.map((tap) => l.reshape(tap, [1, size])),
    0,
  );
  return l.reshape(transpose(e, joined, [1, 0]), [outputChannels, channels, ...kernel]);
}

/**
 * Every sample's channel is an image of its own, and its output gradient the kernel: [1, N·C, h, w], then summed over
 * the samples.
 */
function depthwiseWeightGradient(l: Layouts, x: string, g: string, sliding: Sliding): string {
  const e = l.emitter;
  const [samples = 1, given = 1] = l.shape(x);
  const channels = l.padded(given);
  const { kernel, input, output, strides, dilations, padsBegin } = sliding;
  const images = samples * channels;
  const dots = blockedConv(l, {
    x: l.reshape(l.blocked(x), [1, images, ...input]),
    w: l.reshape(l.blocked(g), [images, 1, ...output]),
    kernel: output,
    output: kernel,
    outputChannels: images,
    group: images,
    strides: dilations,
    dilations: strides,
    pads: [...padsBegin, ...padsEnd(sliding)],
  });
  const taps = product(kernel);
  const sums = reduceSum(e, l.reshape(dots, [samples, (channels / l.block) * taps * l.block]), [0], false);
  const ordered = transpose(e, l.reshape(sums, [channels / l.block, taps, l.block]), [0, 2, 1]);
  const all = l.reshape(ordered, [channels, taps]);
  const kept = channels === given ? all : slice(e, all, [0], [0], [given]);
  return l.reshape(kept, [given, 1, ...kernel]);
}
