// Convolutions of images on the blocked layout, and sums over images written as such. Notation as in autodiff/forms.ts.

import { product } from '../autodiff/expressions.ts';
import { padsEnd, type Sliding } from '../autodiff/forms.ts';
import { type Attributes, floats, int, ints, string } from '../graph/graph.ts';
import { channelVector, denseFilter, depthwiseFilter } from './filters.ts';
import type { Layouts } from './layouts.ts';

/** The activation that a blocked convolution applies to its result. */
export interface Activation {
  readonly name: 'Relu' | 'Clip';
  /** Clip: lower and upper bound. */
  readonly parameters?: readonly [number, number];
}

/**
 * A convolution as the blocked kernel takes it; x and sum are blocked (x may be plain with fewer channels than a
 * block), w and bias in the kernel's order.
 */
export interface BlockedConvolution {
  readonly x: string;
  readonly w: string;
  readonly bias?: string | undefined;
  /** Added before the activation. */
  readonly sum?: string | undefined;
  readonly activation?: Activation | undefined;
  readonly kernel: readonly number[];
  readonly output: readonly number[];
  readonly outputChannels: number;
  readonly group?: number;
  readonly strides?: readonly number[];
  readonly dilations?: readonly number[];
  /** Begins, then ends. */
  readonly pads?: readonly number[];
}

/** Writes the kernel's node. */
export function blockedConv(l: Layouts, options: BlockedConvolution): string {
  const { x, w, bias = '', sum = '', activation, kernel, output, outputChannels, group = 1 } = options;
  // Defaults are left out: the runtime takes time for each attribute of a net's many hundred convolutions.
  const unless = (usual: number, name: string, values: readonly number[] = []): Attributes =>
    values.every((value) => value === usual) ? {} : { [name]: ints(values) };
  const attributes: Attributes = {
    kernel_shape: ints(kernel),
    ...unless(1, 'strides', options.strides),
    ...unless(1, 'dilations', options.dilations),
    ...unless(0, 'pads', options.pads),
    ...(group === 1 ? {} : { group: int(group) }),
    ...(activation === undefined ? {} : { activation: string(activation.name) }),
    ...(activation?.parameters === undefined ? {} : { activation_params: floats(activation.parameters) }),
  };
  const inputs = [x, w, bias, sum];
  while (inputs.at(-1) === '') inputs.pop();
  return l.emit('Conv', inputs, [l.emitter.shape(x)[0] as number, outputChannels, ...output], attributes);
}

/** factor·x + offset (+ sum) per channel in one pass: x is [n, c, h, w] blocked, factor and offset have c entries. */
export function channelAffine(
  l: Layouts,
  {
    x,
    factor,
    offset,
    sum,
    activation,
  }: { x: string; factor: string; offset?: string; sum?: string; activation?: Activation | undefined },
): string {
  const [, channels = 1, ...output] = l.emitter.shape(x);
  const w = l.reshape(factor, [channels, 1, 1, 1]);
  return blockedConv(l, {
    x,
    w,
    bias: offset,
    sum,
    activation,
    kernel: [1, 1],
    output,
    outputChannels: channels,
    group: channels,
  });
}

/** True for shapes that the blocked kernels support and that pay. */
export function isBlockable(l: Layouts, sliding: Sliding, channels: number, outputChannels: number): boolean {
  if (sliding.group === 1) return outputChannels >= l.block / 2;
  return isDepthwise(sliding, channels, outputChannels) && channels >= l.block / 2;
}

function isDepthwise(sliding: Sliding, channels: number, outputChannels: number): boolean {
  return sliding.group === channels && channels === outputChannels;
}

/** True if kernel and images are single places: every value is a matrix of samples and channels. */
export function isPointwise({ kernel, input, output, padsBegin }: Sliding): boolean {
  return [...kernel, ...input, ...output].every((size) => size === 1) && padsBegin.every((pad) => pad === 0);
}

/**
 * y = x ∗ w + bias; x and w are values of the old graph, the bias a vector of the new one. The name is that of the
 * blocked result, or of the plain one if both are the same.
 */
export function convolution(
  l: Layouts,
  {
    x,
    w,
    bias,
    sliding,
  }: { readonly x: string; readonly w: string; readonly bias: string | undefined; readonly sliding: Sliding },
): { readonly name: string; readonly layout: 'plain' | 'blocked' } {
  const [samples = 1, channels = 1] = l.shape(x);
  const outputChannels = l.shape(w)[0] as number;
  const { group, kernel, output, strides, dilations, padsBegin } = sliding;
  const weights = l.plain(w);
  if (isPointwise(sliding) && group === 1) {
    const inputs = [l.reshape(l.plain(x), [samples, channels]), l.reshape(weights, [outputChannels, channels])];
    const product = l.emitter.emit('Gemm', bias === undefined ? inputs : [...inputs, bias], { transB: int(1) });
    return { name: l.reshape(product, [samples, outputChannels, 1, 1]), layout: 'plain' };
  }
  const dense = group === 1;
  const name = blockedConv(l, {
    x: dense && channels < l.block ? l.plain(x) : l.blocked(x),
    w: dense ? denseFilter(l, weights) : depthwiseFilter(l, weights),
    bias: bias === undefined ? undefined : channelVector(l, bias),
    kernel,
    output,
    outputChannels: l.padded(outputChannels),
    group: dense ? 1 : l.padded(channels),
    strides,
    dilations,
    pads: [...padsBegin, ...padsEnd(sliding).map((end) => Math.max(0, end))],
  });
  return { name, layout: 'blocked' };
}

/**
 * Σ a·b over the places of each sample's channel: blocked values of one shape give [N, C rounded up], in plain order.
 */
export function imageDots(l: Layouts, a: string, b: string): string {
  const [samples = 1, channels = 1, ...image] = l.emitter.shape(a);
  const images = samples * channels;
  const dots = blockedConv(l, {
    x: l.reshape(a, [1, images, ...image]),
    w: l.reshape(b, [images, 1, ...image]),
    kernel: image,
    output: [1, 1],
    outputChannels: images,
    group: images,
  });
  return l.reshape(dots, [samples, channels]);
}

/** The mean over the places of each sample's channel: [N, C rounded up, 1, 1]. */
export function imageMeans(l: Layouts, x: string): string {
  const [samples = 1, channels = 1, ...image] = l.emitter.shape(x);
  return product(image) === 1 ? x : l.emit('GlobalAveragePool', [x], [samples, channels, 1, 1]);
}

/**
 * factor · Σ over samples of x [N, C] (or [N, C, 1, 1]): [C]. One matrix product, which is faster than a sum and a
 * factor.
 */
export function sampleSum(l: Layouts, x: string, factor: number): string {
  const e = l.emitter;
  const [samples = 1, channels = 1] = e.shape(x);
  const weights = e.constant({ type: 'float32', shape: [samples], data: new Float32Array(samples).fill(factor) });
  return e.emit('MatMul', [weights, l.reshape(x, [samples, channels])]);
}
