// Gradients of the normalizations. x̂ = (x − mean)·inv is the normalized input, inv = 1/√(variance + ε), m the number
// of elements that a mean is taken over. With ĝ = g·scale: dx = inv · (ĝ − mean(ĝ) − x̂·mean(ĝ·x̂)), dscale = Σ g·x̂,
// dbias = Σ g.

import type { Emitter } from '../../graph/emitter.ts';
import { float, floatAttribute, int, intAttribute } from '../../graph/graph.ts';
import { deferNormalization, type NormalizationParts } from '../deferred.ts';
import {
  add,
  apply,
  cast,
  compare,
  div,
  full,
  mul,
  product,
  range,
  reduceMean,
  reduceSum,
  reshape,
  scale,
  select,
  shift,
  square,
  sub,
  sumTo,
} from '../expressions.ts';
import { gradientOf, inputOf, inputShape, outputOf, positiveAxis, type RuleContext, whereNeeded } from '../rule.ts';

/** x − mean, and inv, each in a shape that broadcasts to x's. */
interface Statistics {
  readonly centered: string;
  readonly inverse: string;
}

/** inv · (ĝ − mean(ĝ) − x̂·mean(ĝ·x̂)) over the normalized axes. */
export function normalizedGradient(
  e: Emitter,
  {
    normalized,
    inverse,
    scaled,
    axes,
  }: { normalized: string; inverse: string; scaled: string; axes: readonly number[] },
): string {
  const alongMean = sub(e, scaled, reduceMean(e, scaled, axes));
  const alongNormalized = mul(e, normalized, reduceMean(e, mul(e, scaled, normalized), axes));
  return mul(e, inverse, sub(e, alongMean, alongNormalized));
}

/** The statistics of x over some axes. */
export function statistics(e: Emitter, x: string, axes: readonly number[], epsilon: number): Statistics {
  const centered = sub(e, x, reduceMean(e, x, axes));
  return { centered, inverse: inverseDeviation(e, reduceMean(e, square(e, centered), axes), epsilon) };
}

export function inverseDeviation(e: Emitter, variance: string, epsilon: number): string {
  return apply(e, 'Reciprocal', apply(e, 'Sqrt', shift(e, variance, epsilon)));
}

/** A vector with one entry a channel, in the shape that broadcasts over [N, C, …]. */
export function perChannel(e: Emitter, vector: string, rank: number): string {
  return reshape(e, vector, [...e.shape(vector), ...range(rank - 2).map(() => 1)]);
}

/** Axes of [N, C, …] other than the channels. */
function otherThanChannels(rank: number): readonly number[] {
  return range(rank).filter((axis) => axis !== 1);
}

/** The gradients through the statistics of the batch, or through mean and variance that are inputs. */
export function batchNormalization(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node, needs } = context;
  const training = intAttribute(node, 'training_mode', 0) !== 0;
  const [mean, variance] = training
    ? [outputOf(context, 1), outputOf(context, 2)]
    : [inputOf(context, 3), inputOf(context, 4)];
  const epsilon = floatAttribute(node, 'epsilon', 1e-5);
  const parts = { g: gradientOf(context), x: inputOf(context), scale: inputOf(context, 1), mean, variance, epsilon };
  if (!training) return givenStatistics(context, parts);
  return context.deferred && e.shape(parts.x).length === 4
    ? deferNormalization(e, parts, needs)
    : trainingGradients(e, parts, needs);
}

/**
 * The vectors with one entry a channel that the gradients consist of: s = Σ g, t = Σ g·(x − mean), inv, a = scale·inv.
 */
interface ChannelSums {
  readonly centered: string;
  readonly inverse: string;
  readonly gain: string;
  readonly s: string;
  readonly t: string;
  /** a·inv²·t */
  steepness(): string;
}

function channelSums(
  e: Emitter,
  { g, x, scale, mean, variance, epsilon }: NormalizationParts,
  needsProduct: boolean,
): ChannelSums {
  const inverse = inverseDeviation(e, variance, epsilon);
  const gain = mul(e, scale, inverse);
  const centered = needsProduct ? sub(e, x, perChannel(e, mean, e.shape(x).length)) : x;
  const s = channelSum(e, g);
  const t = needsProduct ? channelProduct(e, g, centered) : g;
  return { centered, inverse, gain, s, t, steepness: () => mul(e, mul(e, gain, square(e, inverse)), t) };
}

/** The statistics are the batch's: dx = a·g − (x − mean)·a·inv²·t/m − a·s/m, dscale = t·inv, dbias = s. */
export function trainingGradients(
  e: Emitter,
  parts: NormalizationParts,
  needs: readonly boolean[],
): readonly (string | undefined)[] {
  const { g, x } = parts;
  const shape = e.shape(x);
  const { centered, inverse, gain, s, t, steepness } = channelSums(e, parts, needs[0] === true || needs[1] === true);
  const gradient = (): string => {
    const count = product(shape) / (shape[1] as number);
    const slope = perChannel(e, scale(e, steepness(), -1 / count), shape.length);
    const offset = scale(e, mul(e, gain, s), -1 / count);
    return add(e, channelAffine(e, g, gain, offset), mul(e, centered, slope));
  };
  return [needs[0] ? gradient() : undefined, needs[1] ? mul(e, t, inverse) : undefined, needs[2] ? s : undefined];
}

/** Mean and variance are inputs: dx = a·g, dscale and dbias as in training, dmean = −a·s, dvariance = −½·a·inv²·t. */
function givenStatistics(context: RuleContext, parts: NormalizationParts): readonly (string | undefined)[] {
  const { emitter: e, needs } = context;
  const { inverse, gain, s, t, steepness } = channelSums(e, parts, needs[1] === true || needs[4] === true);
  return whereNeeded(
    context,
    () => mul(e, parts.g, perChannel(e, gain, e.shape(parts.x).length)),
    () => mul(e, t, inverse),
    () => s,
    () => scale(e, mul(e, gain, s), -1),
    () => scale(e, steepness(), -0.5),
  );
}

/**
 * Σ over all axes of [N, C, …] but the channels: spatial axes first, then samples, which is faster in runtimes than
 * both at once.
 */
export function channelSum(e: Emitter, x: string): string {
  const spatial = range(e.shape(x).length).slice(2);
  return reduceSum(e, reduceSum(e, x, spatial, false), [0], false);
}

/**
 * From this number of elements an image on, the sum of a product is fastest as a convolution of each image with the
 * other as its kernel.
 */
const convolvedProduct = 512;

/** Σ a·b over all axes of [N, C, …] but the channels. */
export function channelProduct(e: Emitter, a: string, b: string): string {
  const [samples = 1, channels = 1, ...image] = e.shape(a);
  const size = product(image);
  if (size < convolvedProduct) return channelSum(e, mul(e, a, b));
  const images = samples * channels;
  const dots = e.emit('Conv', [reshape(e, a, [1, images, size]), reshape(e, b, [images, 1, size])], {
    group: int(images),
  });
  return reduceSum(e, reshape(e, dots, [samples, channels]), [0], false);
}

/** factor·x + offset per channel in one pass: batch normalization in inference mode with mean 0 and variance 1. */
export function channelAffine(e: Emitter, x: string, factor: string, offset: string): string {
  const { type, shape } = e.type(factor);
  const [mean, variance] = [full(e, type, shape, 0), full(e, type, shape, 1)];
  return e.emit('BatchNormalization', [x, factor, offset, mean, variance], { epsilon: float(0) });
}

/** InstanceNormalization: one mean for each sample and channel, over the spatial axes. */
export function instanceNormalization(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  const x = inputOf(context);
  const rank = e.shape(x).length;
  const axes = range(rank).slice(2);
  const { centered, inverse } = statistics(e, x, axes, floatAttribute(node, 'epsilon', 1e-5));
  const normalized = mul(e, centered, inverse);
  return whereNeeded(
    context,
    () =>
      normalizedGradient(e, { normalized, inverse, scaled: mul(e, g, perChannel(e, inputOf(context, 1), rank)), axes }),
    () => reduceSum(e, mul(e, g, normalized), otherThanChannels(rank), false),
    () => reduceSum(e, g, otherThanChannels(rank), false),
  );
}

/** GroupNormalization: one mean for each sample and group of channels: x seen as [N, groups, elements of a group]. */
export function groupNormalization(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  const shape = inputShape(context);
  const rank = shape.length;
  const groups = intAttribute(node, 'num_groups', 1);
  const grouped = (value: string): string =>
    reshape(e, value, [shape[0] as number, groups, product(shape.slice(1)) / groups]);
  const { centered, inverse } = statistics(e, grouped(inputOf(context)), [2], floatAttribute(node, 'epsilon', 1e-5));
  const normalized = mul(e, centered, inverse);
  return whereNeeded(
    context,
    () => {
      const scaled = grouped(mul(e, g, perChannel(e, inputOf(context, 1), rank)));
      return reshape(e, normalizedGradient(e, { normalized, inverse, scaled, axes: [2] }), shape);
    },
    () => reduceSum(e, mul(e, g, reshape(e, normalized, shape)), otherThanChannels(rank), false),
    () => reduceSum(e, g, otherThanChannels(rank), false),
  );
}

/**
 * LayerNormalization: one mean for each index before `axis` (a row of D elements); the forward node gives mean and inv
 * as outputs 1 and 2 (see forward.ts). With one scale an element of a row, u = x − mean and h = g·u, sums along rows
 * and columns are products of matrices with vectors: dx = inv·g·scale − u·(inv³·(h·scale)/D) − inv·(g·scale)/D, dscale
 * = invᵀ·h, dbias = Σ g.
 */
export function layerNormalization(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  const shape = inputShape(context);
  const first = positiveAxis(intAttribute(node, 'axis', -1), shape.length);
  const scales = inputOf(context, 1);
  const { type } = e.type(scales);
  const [mean, inverse] = [cast(e, outputOf(context, 1), type), cast(e, outputOf(context, 2), type)];
  const centered = sub(e, inputOf(context), mean);
  const bias = (): string => sumTo(e, g, inputShape(context, 2));
  const columns = product(shape.slice(first));
  if (product(e.shape(scales)) !== columns) {
    const axes = range(shape.length).slice(first);
    const normalized = mul(e, centered, inverse);
    return whereNeeded(
      context,
      () => normalizedGradient(e, { normalized, inverse, scaled: mul(e, g, scales), axes }),
      () => sumTo(e, mul(e, g, normalized), e.shape(scales)),
      bias,
    );
  }
  const rows = product(shape.slice(0, first));
  const matrix = (value: string): string => reshape(e, value, [rows, columns]);
  const raised = mul(e, matrix(g), matrix(centered));
  const perRow = (value: string): string => e.emit('MatMul', [value, reshape(e, scales, [columns, 1])]);
  const deviations = reshape(e, inverse, [rows, 1]);
  return whereNeeded(
    context,
    () => {
      const direct = mul(e, mul(e, matrix(g), reshape(e, scales, [columns])), deviations);
      const slope = scale(e, mul(e, perRow(raised), mul(e, deviations, square(e, deviations))), -1 / columns);
      const offset = scale(e, mul(e, perRow(matrix(g)), deviations), -1 / columns);
      return reshape(e, add(e, add(e, direct, mul(e, matrix(centered), slope)), offset), shape);
    },
    () => reshape(e, e.emit('MatMul', [reshape(e, inverse, [1, rows]), raised]), e.shape(scales)),
    bias,
  );
}

/**
 * y = x / ‖x‖: dx = (g − u·Σ g·y) / ‖x‖, where u = y (p = 2) or sign(x) (p = 1); zero vectors pass g as if their norm
 * were 1.
 */
export function lpNormalization(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  const [x, y] = [inputOf(context), outputOf(context)];
  const axes = [positiveAxis(intAttribute(node, 'axis', -1), e.shape(x).length)];
  const p = intAttribute(node, 'p', 2);
  const norm = e.emit(p === 1 ? 'ReduceL1' : 'ReduceL2', [x, e.int64s(axes)]);
  const safe = select(e, compare(e, 'Equal', norm, 0), e.scalarLike(norm, 1), norm);
  const along = mul(e, p === 1 ? apply(e, 'Sign', x) : y, reduceSum(e, mul(e, g, y), axes));
  return [div(e, sub(e, g, along), safe)];
}

/** dx = y · (g − Σ g·y) */
export function softmax(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  const y = outputOf(context);
  const axis = positiveAxis(intAttribute(node, 'axis', -1), e.shape(y).length);
  return [mul(e, y, sub(e, g, reduceSum(e, mul(e, g, y), [axis])))];
}

/** y = x − ln Σ exp x: dx = g − exp(y) · Σ g */
export function logSoftmax(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  const y = outputOf(context);
  const axis = positiveAxis(intAttribute(node, 'axis', -1), e.shape(y).length);
  return [sub(e, g, mul(e, apply(e, 'Exp', y), reduceSum(e, g, [axis])))];
}
