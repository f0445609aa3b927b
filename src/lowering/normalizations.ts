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
 * dx (blocked), dscale and dbias (plain, [C]). With the means over a channel s = mean(g) and t = mean(g·(x − mean)) =
 * mean(g·x) − mean·s, a = scale·inv and k = −a·inv²·t: dx = a·g + k·x − a·s − k·mean, dscale = m·inv·t, dbias = m·s.
 * Subtracted terms are computed with their sign.
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
  const minusS = sampleSum(l, imageMeans(l, g), -1 / samples);
  const minusT = sub(e, sampleSum(l, imageDots(l, g, x), -1 / count), mul(e, mean, minusS));
  const ratio = mul(e, inverse, minusT);
  const slope = mul(e, mul(e, gain, inverse), ratio);
  const offset = sub(e, mul(e, gain, minusS), mul(e, slope, mean));
  const linear = channelAffine(l, { x, factor: slope, offset });
  const dx = channelAffine(l, { x: g, factor: gain, sum: linear });
  return [dx, trimmed(l, scale(e, ratio, -count), channels), trimmed(l, scale(e, minusS, -count), channels)];
}
