// Images lowered by a sample of their channels (autodiff/centering.ts) on the blocked layout. Behind a convolution this
// takes no pass over memory: the sample is what the filters make of a sample of the convolution's input, and the
// convolution's bias takes it away.

import { channelSampling, tapCoverage } from '../autodiff/centering.ts';
import { add, mul, product, slice, sub } from '../autodiff/expressions.ts';
import { padsEnd, type Sliding } from '../autodiff/forms.ts';
import { blockedConv, channelAffine, convolution, imageMeans, isPointwise, sampleSum } from './convolutions.ts';
import { denseFilter, depthwiseFilter } from './filters.ts';
import type { Layouts } from './layouts.ts';

/**
 * A sample of the channels of an image in blocks of so many channels (1: a plain one), [C]: seen as an image of rows
 * of blocks, [1, B, N, C/B·P].
 */
function sampleOf(l: Layouts, x: string, block: number): string {
  const [samples = 1, channels = 1, ...image] = l.emitter.shape(x);
  const places = product(image);
  if (places === 1) return sampleSum(l, x, 1 / samples);
  const blocks = channels / block;
  const rows = l.reshape(x, [1, block, samples, blocks * places]);
  const attributes = channelSampling(samples, places);
  const means =
    block === 1
      ? l.emitter.emit('AveragePool', [rows], attributes)
      : l.emit('AveragePool', [rows], [1, block, 1, blocks], attributes);
  return l.reshape(means, [channels]);
}

/** A sample of the channels of a blocked image: [C rounded up]. */
export function blockedSample(l: Layouts, x: string): string {
  return sampleOf(l, x, l.block);
}

/** A blocked image plus one number a channel, in one pass. */
export function shifted(l: Layouts, x: string, offset: string): string {
  return channelAffine(l, { x, factor: l.ones(l.emitter.shape(x)[1] as number), offset });
}

/**
 * `convolution` minus a sample of its channels: the result, and the sample, [K]. The bias belongs to the sample alone,
 * for what is centred is the same without it.
 */
export function centeredConvolution(
  l: Layouts,
  { bias, ...options }: Parameters<typeof convolution>[1],
): { readonly result: ReturnType<typeof convolution>; readonly sample: string } {
  const { emitter: e } = l;
  const [samples = 1] = l.shape(options.x);
  const [outputChannels = 1] = l.shape(options.w);
  if (isPointwise(options.sliding) && options.sliding.group === 1) {
    // a matrix: its columns' means cost less than those of its factor
    const { name, layout } = convolution(l, { ...options, bias });
    const matrix = l.reshape(name, [samples, outputChannels]);
    const sample = sampleSum(l, matrix, 1 / samples);
    return { result: { name: l.reshape(sub(e, matrix, sample), e.shape(name)), layout }, sample };
  }
  const { padded, negated } = options.sliding.group === 1 ? denseSample(l, options) : depthwiseSample(l, options);
  const sample = slice(e, padded, [0], [0], [outputChannels]);
  return {
    result: convolution(l, { ...options, bias: negated }),
    sample: bias === undefined ? sample : add(e, sample, bias),
  };
}

/** x ∗ w, of values of the old graph for which `convolution` writes a blocked one. */
interface Operands {
  readonly x: string;
  readonly w: string;
  readonly sliding: Sliding;
}

/** A sample of the channels of x ∗ w, [K rounded up], and minus it. */
interface ConvolvedSample {
  readonly padded: string;
  readonly negated: string;
}

/** For one group: the filters over a sample of x's channels, each tap as often as it lies inside x. */
function denseSample(l: Layouts, { x, w, sliding }: Operands): ConvolvedSample {
  const [, channels = 1] = l.shape(x);
  const outputChannels = l.padded(l.shape(w)[0] as number);
  const isPlain = channels < l.block;
  const block = isPlain ? 1 : l.block;
  const result = blockedConv(l, {
    x: withTaps(l, sampleOf(l, isPlain ? l.plain(x) : l.blocked(x), block), block, sliding),
    w: denseFilter(l, l.plain(w)),
    kernel: sliding.kernel,
    output: [1, 1],
    outputChannels,
  });
  const padded = l.reshape(result, [outputChannels]);
  return { padded, negated: l.emitter.emit('Neg', [padded]) };
}

/** From this number of samples on, one place of each is enough. */
const manySamples = 8;

/**
 * For one channel a group, whose filters are small: the mean of a few places of x ∗ w, at which the whole kernel lies
 * inside x if it fits.
 */
function depthwiseSample(l: Layouts, { x, w, sliding }: Operands): ConvolvedSample {
  const [samples = 1, given = 1] = l.shape(x);
  const channels = l.padded(given);
  const { input, kernel, dilations, padsBegin } = sliding;
  const ends = padsEnd(sliding).map((end) => Math.max(0, end));
  const reach = kernel.map((size, axis) => (size - 1) * (dilations[axis] as number) + 1);
  const fits = input.every((size, axis) => size >= (reach[axis] as number));
  const padding = input.map((_, axis) => (fits ? 0 : (padsBegin[axis] as number) + (ends[axis] as number)));
  const room = input.map((size, axis) => size + (padding[axis] as number) - (reach[axis] as number));
  const strides = room.map((size) => (samples < manySamples ? Math.max(1, Math.floor(size / 2)) : size + 1));
  const result = blockedConv(l, {
    x: l.blocked(x),
    w: depthwiseFilter(l, l.plain(w)),
    kernel,
    output: room.map((size, axis) => Math.floor(size / (strides[axis] as number)) + 1),
    outputChannels: channels,
    group: channels,
    strides,
    dilations,
    pads: fits ? [0, 0, 0, 0] : [...padsBegin, ...ends],
  });
  const negated = sampleSum(l, imageMeans(l, result), -1 / samples);
  return { padded: l.emitter.emit('Neg', [negated]), negated };
}

/** An image of the kernel's size for each entry of a vector, in blocks: the entry times the coverage of each tap. */
function withTaps(l: Layouts, vector: string, block: number, sliding: Sliding): string {
  const [channels = 1] = l.emitter.shape(vector);
  const coverage = tapCoverage(sliding);
  const shape = [1, channels, ...sliding.kernel];
  if (coverage.length === 1) return l.reshape(vector, shape);
  const taps = l.emitter.constant({
    type: 'float32',
    shape: [coverage.length, 1],
    data: Float32Array.from(coverage),
  });
  return l.reshape(mul(l.emitter, l.reshape(vector, [channels / block, 1, block]), taps), shape);
}
