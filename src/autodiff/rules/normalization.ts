// Gradients of the normalizations. x̂ = (x − mean)·inv is the normalized input, inv = 1/√(variance + ε), m the count of elements behind
// one mean. With ĝ = g·scale:  dx = inv · (ĝ − mean(ĝ) − x̂·mean(ĝ·x̂)),  dscale = Σ g·x̂,  dbias = Σ g.

import type { Emitter } from '../../graph/emitter.ts';
import { floatAttribute, intAttribute } from '../../graph/graph.ts';
import {
  add,
  apply,
  compare,
  div,
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
import { type RuleContext, gradientOf, inputOf, inputShape, outputOf, positiveAxis, whereNeeded } from '../rule.ts';

/** x − mean, and inv, each broadcasting to x's shape. */
interface Statistics {
  readonly centered: string;
  readonly inverse: string;
}

/** inv · (ĝ − mean(ĝ) − x̂·mean(ĝ·x̂)) over the normalized axes. */
function normalizedGradient(
  e: Emitter,
  { normalized, inverse, scaled, axes }: { normalized: string; inverse: string; scaled: string; axes: readonly number[] },
): string {
  const alongMean = sub(e, scaled, reduceMean(e, scaled, axes));
  const alongNormalized = mul(e, normalized, reduceMean(e, mul(e, scaled, normalized), axes));
  return mul(e, inverse, sub(e, alongMean, alongNormalized));
}

/** The statistics of x over some axes. */
function statistics(e: Emitter, x: string, axes: readonly number[], epsilon: number): Statistics {
  const centered = sub(e, x, reduceMean(e, x, axes));
  return { centered, inverse: inverseDeviation(e, reduceMean(e, square(e, centered), axes), epsilon) };
}

function inverseDeviation(e: Emitter, variance: string, epsilon: number): string {
  return apply(e, 'Reciprocal', apply(e, 'Sqrt', shift(e, variance, epsilon)));
}

/** A vector of one entry a channel, in the shape that broadcasts over [N, C, …]. */
function perChannel(e: Emitter, vector: string, rank: number): string {
  return reshape(e, vector, [...e.shape(vector), ...range(rank - 2).map(() => 1)]);
}

/** Axes of [N, C, …] other than the channels. */
function otherThanChannels(rank: number): readonly number[] {
  return range(rank).filter((axis) => axis !== 1);
}

/**
 * Training: the statistics are the batch's, which the forward node gives as outputs 1 and 2 (see forward.ts); in terms of the channel's
 * s = Σ g and t = Σ g·(x − mean):  dx = a·g − (x − mean)·a·inv²·t/m − a·s/m,  dscale = t·inv,  dbias = s,  a = scale·inv.
 * Inference: mean and variance are inputs:  dx = a·g,  dscale and dbias as above,  dmean = −a·s,  dvariance = −½·a·inv²·t.
 */
export function batchNormalization(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node, needs } = context;
  const g = gradientOf(context);
  const x = inputOf(context);
  const shape = e.shape(x);
  const training = intAttribute(node, 'training_mode', 0) !== 0;
  const [mean, variance] = training ? [outputOf(context, 1), outputOf(context, 2)] : [inputOf(context, 3), inputOf(context, 4)];
  const inverse = inverseDeviation(e, variance, floatAttribute(node, 'epsilon', 1e-5));
  const gain = mul(e, inputOf(context, 1), inverse);
  const spread = (vector: string): string => perChannel(e, vector, shape.length);
  const axes = otherThanChannels(shape.length);
  const needsProduct = needs[1] || needs[4] || (training && needs[0]);
  const centered = needsProduct ? sub(e, x, spread(mean)) : x;
  const s = reduceSum(e, g, axes, false);
  const t = needsProduct ? reduceSum(e, mul(e, g, centered), axes, false) : g;
  const steepness = (): string => mul(e, mul(e, gain, square(e, inverse)), t);
  return whereNeeded(
    context,
    () => {
      const direct = mul(e, g, spread(gain));
      if (!training) return direct;
      const count = product(shape) / (shape[1] as number);
      const slope = spread(scale(e, steepness(), -1 / count));
      const offset = spread(scale(e, mul(e, gain, s), -1 / count));
      return add(e, direct, add(e, mul(e, centered, slope), offset));
    },
    () => mul(e, t, inverse),
    () => s,
    () => (training ? undefined : scale(e, mul(e, gain, s), -1)),
    () => (training ? undefined : scale(e, steepness(), -0.5)),
  );
}

/** One mean a sample and channel, over the spatial axes. */
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
    () => normalizedGradient(e, { normalized, inverse, scaled: mul(e, g, perChannel(e, inputOf(context, 1), rank)), axes }),
    () => reduceSum(e, mul(e, g, normalized), otherThanChannels(rank), false),
    () => reduceSum(e, g, otherThanChannels(rank), false),
  );
}

/** One mean a sample and group of channels: x seen as [N, groups, elements of a group]. */
export function groupNormalization(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  const shape = inputShape(context);
  const rank = shape.length;
  const groups = intAttribute(node, 'num_groups', 1);
  const grouped = (value: string): string => reshape(e, value, [shape[0] as number, groups, product(shape.slice(1)) / groups]);
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

/** One mean for each index before `axis`; the forward node gives mean and inv as outputs 1 and 2 (see forward.ts). */
export function layerNormalization(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  const shape = inputShape(context);
  const axes = range(shape.length).slice(positiveAxis(intAttribute(node, 'axis', -1), shape.length));
  const inverse = outputOf(context, 2);
  const normalized = mul(e, sub(e, inputOf(context), outputOf(context, 1)), inverse);
  return whereNeeded(
    context,
    () => normalizedGradient(e, { normalized, inverse, scaled: mul(e, g, inputOf(context, 1)), axes }),
    () => sumTo(e, mul(e, g, normalized), inputShape(context, 1)),
    () => sumTo(e, g, inputShape(context, 2)),
  );
}

/** y = x / ‖x‖: dx = (g − u·Σ g·y) / ‖x‖, where u = y (p = 2) or sign(x) (p = 1); zero vectors pass g as if their norm were 1. */
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
