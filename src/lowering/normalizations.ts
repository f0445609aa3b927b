// Batch normalization of blocked images by the batch's statistics. Sums over places are dot products of whole images,
// in one convolution each; elementwise work is one factor and one offset a channel, fused with the following operators.
// m: elements of a channel.

import { mul, product, scale, shift, slice, sub } from '../autodiff/expressions.ts';
import { type Activation, channelAffine, imageDots, imageMeans, sampleSum } from './convolutions.ts';
import { channelVector } from './filters.ts';
import type { Layouts } from './layouts.ts';

/** Names of values in the lowered graph; vectors have C entries, padded ones whole blocks. */
export interface Normalized {
  /** scale·(x − mean)·inv + bias (+ sum), activated: blocked. */
  readonly y: string;
  /** [C] */
  readonly mean: string;
  readonly variance: string;
}

/** Writes a batch normalization in training mode. `x` is blocked, `scale` and `bias` plain. */
export function batchNormalization(
  l: Layouts,
  {
    x,
    channels,
    scale: gamma,
    bias,
    epsilon,
    sum,
    activation,
  }: {
    readonly x: string;
    readonly channels: number;
    readonly scale: string;
    readonly bias: string;
    readonly epsilon: number;
    readonly sum: string | undefined;
    readonly activation: Activation | undefined;
  },
): Normalized {
  const e = l.emitter;
  const [samples = 1, , ...image] = e.shape(x);
  const mean = sampleSum(l, imageMeans(l, x), 1 / samples);
  const meanSquare = sampleSum(l, imageDots(l, x, x), 1 / (samples * product(image)));
  // Rounding must not make the variance negative.
  const variance = e.emit('Relu', [sub(e, meanSquare, mul(e, mean, mean))]);
  const gain = gainOf(l, gamma, variance, epsilon);
  const offset = sub(e, channelVector(l, bias), mul(e, mean, gain));
  const y = channelAffine(l, { x, factor: gain, offset, ...(sum === undefined ? {} : { sum }), activation });
  return { y, mean: trimmed(l, mean, channels), variance: trimmed(l, variance, channels) };
}

/** scale·inv, padded to whole blocks; `variance` is padded. */
function gainOf(l: Layouts, gamma: string, variance: string, epsilon: number): string {
  return mul(l.emitter, channelVector(l, gamma), inverseOf(l, variance, epsilon));
}

function inverseOf(l: Layouts, variance: string, epsilon: number): string {
  const e = l.emitter;
  return e.emit('Reciprocal', [e.emit('Sqrt', [shift(e, variance, epsilon)])]);
}

function trimmed(l: Layouts, vector: string, channels: number): string {
  return slice(l.emitter, vector, [0], [0], [channels]);
}

/**
 * dx (blocked), dscale and dbias (plain, [C]). With the sums over a channel s = Σ g and t = Σ g·(x − mean) = Σ g·x −
 * mean·s, a = scale·inv, q = −a/m and k = q·inv²·t: dx = a·g + k·x + q·s − k·mean, dscale = inv·t, dbias = s. x lies
 * around zero (autodiff/centering.ts): no sum cancels.
 */
export function batchNormalizationGradient(
  l: Layouts,
  {
    g,
    x,
    channels,
    scale: gamma,
    mean: plainMean,
    variance,
    epsilon,
  }: {
    readonly g: string;
    readonly x: string;
    readonly channels: number;
    readonly scale: string;
    readonly mean: string;
    readonly variance: string;
    readonly epsilon: number;
  },
): readonly [dx: string, dscale: string, dbias: string] {
  const e = l.emitter;
  const [samples = 1, , ...image] = e.shape(x);
  const count = samples * product(image);
  const mean = channelVector(l, plainMean);
  const inverse = inverseOf(l, channelVector(l, variance), epsilon);
  const gain = mul(e, channelVector(l, gamma), inverse);
  const sum = sampleSum(l, imageMeans(l, g), product(image));
  const along = sub(e, sampleSum(l, imageDots(l, g, x), 1), mul(e, mean, sum));
  const dscale = mul(e, inverse, along);
  const share = scale(e, gain, -1 / count);
  const slope = mul(e, mul(e, share, inverse), dscale);
  const offset = sub(e, mul(e, share, sum), mul(e, slope, mean));
  const linear = channelAffine(l, { x, factor: slope, offset });
  const dx = channelAffine(l, { x: g, factor: gain, sum: linear });
  return [dx, trimmed(l, dscale, channels), trimmed(l, sum, channels)];
}
