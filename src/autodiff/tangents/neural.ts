// Tangents of the operators of neural networks. x the input, y the output, ẋ the tangent of x; for the normalizations
// x̂ = (x − mean)·inv, inv = 1/√(variance + ε), and P(ẋ) = inv·(ẋ − mean(ẋ) − x̂·mean(ẋ·x̂)), the tangent of x̂.

import { floatAttribute, intAttribute } from '../../graph/graph.ts';
import type { NeuralName } from '../../graph/operators/names.ts';
import { deferNormalization } from '../deferred.ts';
import {
  apply,
  cast,
  compare,
  div,
  mul,
  product,
  range,
  reduceSum,
  reshape,
  scale,
  select,
  square,
  sub,
  sum,
} from '../expressions.ts';
import { inputOf, inputShape, outputOf, positiveAxis } from '../rule.ts';
import {
  channelAffine,
  channelProduct,
  channelSum,
  inverseDeviation,
  normalizedGradient,
  perChannel,
  statistics,
} from '../rules/normalization.ts';
import { reductionDerivatives } from '../rules/reductions.ts';
import {
  bilinear,
  expanded,
  linear,
  spatialAxes,
  symmetric,
  type TangentContext,
  type TangentEntry,
  term,
  total,
  zeros,
} from './rule.ts';

/** Conv, ConvTranspose: ẏ = ẋ ∗ w + x ∗ ẇ + ḃ, with one ḃ a channel. */
const convolution = bilinear((context, bias) =>
  expanded(context, perChannel(context.emitter, bias, inputShape(context).length)),
);

export const neuralTangents: Readonly<Record<NeuralName, TangentEntry>> = {
  AveragePool: linear(0),
  BatchNormalization: batchNormalization,
  Conv: convolution,
  ConvTranspose: convolution,
  Dropout: symmetric,
  // Y = α·A′·B′ + β·C: Ẏ = α·Ȧ′·B′ + α·A′·Ḃ′ + β·Ċ
  Gemm: bilinear((context, addend) =>
    expanded(context, scale(context.emitter, addend, floatAttribute(context.node, 'beta', 1))),
  ),
  GlobalAveragePool: linear(0),
  GlobalMaxPool: globalMaxPool,
  GroupNormalization: groupNormalization,
  InstanceNormalization: instanceNormalization,
  LayerNormalization: layerNormalization,
  LogSoftmax: logSoftmax,
  LpNormalization: lpNormalization,
  // Ẏ = Ȧ·B + A·Ḃ
  MatMul: bilinear(),
  MaxPool: maxPool,
  Resize: linear(0),
  // J = diag(y) − y·yᵀ
  Softmax: symmetric,
};

/** ẏ = ẋ at the first maximum of each window in row-major order, whose places are recomputed. */
function maxPool(context: TangentContext): readonly (string | undefined)[] {
  const { emitter: e, tangents, node } = context;
  const { storage_order: _, ...attributes } = node.attributes;
  const places = e.emitAll('MaxPool', [inputOf(context)], 2, attributes)[1] as string;
  const flat = reshape(e, tangents[0] as string, [product(inputShape(context))]);
  return [e.emit('Gather', [flat, places])];
}

/** ẏ = the mean of ẋ over the elements of an image that equal y */
function globalMaxPool(context: TangentContext): readonly (string | undefined)[] {
  const { emitter: e, tangents } = context;
  const axes = spatialAxes(context);
  const values = {
    x: inputOf(context),
    y: () => outputOf(context),
    axes,
    count: product(inputShape(context).slice(2)),
  };
  return [reduceSum(e, reductionDerivatives.ReduceMax(e, tangents[0] as string, values), axes)];
}

/**
 * ẏ = a·ẋ + slope·(x − mean) + offset with one a = scale·inv, slope and offset a channel. Each input with a tangent
 * adds a part: the scale's tangent times inv to the slope, the bias's to the offset, and in training (the statistics
 * depend on x; s = Σ ẋ, t = Σ ẋ·(x − mean) over m elements) −a·inv²·t/m to the slope and −a·s/m to the offset; in
 * inference (mean and variance are inputs) −½·a·inv² times the variance's tangent to the slope and −a times the mean's
 * to the offset.
 */
function batchNormalization(context: TangentContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const x = inputOf(context);
  const shape = e.shape(x);
  const training = intAttribute(node, 'training_mode', 0) !== 0;
  if (training && context.deferred) return [deferredNormalization(context)];
  const [mean, variance] = training
    ? [outputOf(context, 1), outputOf(context, 2)]
    : [inputOf(context, 3), inputOf(context, 4)];
  const inverse = inverseDeviation(e, variance, floatAttribute(node, 'epsilon', 1e-5));
  const gain = mul(e, inputOf(context, 1), inverse);
  const centered = sub(e, x, perChannel(e, mean, shape.length));
  const steepness = (factor: number): string => scale(e, mul(e, gain, square(e, inverse)), factor);
  const count = product(shape) / (shape[1] as number);
  const moving = training ? context.tangents[0] : undefined;
  const slopes = [
    moving && mul(e, steepness(-1 / count), channelProduct(e, moving, centered)),
    term(context, 1, (tangent) => mul(e, tangent, inverse)),
    training ? undefined : term(context, 4, (tangent) => mul(e, steepness(-0.5), tangent)),
  ].filter((part) => part !== undefined);
  const offsets = [
    moving && scale(e, mul(e, gain, channelSum(e, moving)), -1 / count),
    context.tangents[2],
    training ? undefined : term(context, 3, (tangent) => scale(e, mul(e, gain, tangent), -1)),
  ].filter((part) => part !== undefined);
  const spread = (parts: readonly string[]): string => perChannel(e, sum(e, parts), shape.length);
  const sloped = slopes.length === 0 ? undefined : mul(e, centered, spread(slopes));
  const direct = term(context, 0, (tangent) =>
    offsets.length === 0
      ? mul(e, tangent, perChannel(e, gain, shape.length))
      : channelAffine(e, tangent, gain, sum(e, offsets)),
  );
  return [total(context, [direct ?? (offsets.length === 0 ? undefined : spread(offsets)), sloped])];
}

/**
 * The symmetric Jacobian's product with ẋ is written as a deferred gradient; the tangents of scale and bias enter as in
 * the forward pass: a batch normalization with their tangents.
 */
function deferredNormalization(context: TangentContext): string {
  const { emitter: e, node, tangents } = context;
  const [x, scales, biases] = [inputOf(context), inputOf(context, 1), inputOf(context, 2)];
  const [mean, variance, epsilon] = [outputOf(context, 1), outputOf(context, 2), floatAttribute(node, 'epsilon', 1e-5)];
  const along = term(
    context,
    0,
    (g) => deferNormalization(e, { g, x, scale: scales, mean, variance, epsilon }, [true, false, false])[0],
  );
  const own = [tangents[1] ?? zeros(e, scales), tangents[2] ?? zeros(e, biases), ...node.inputs.slice(3)];
  const moved = tangents[1] ?? tangents[2];
  const across = moved === undefined ? undefined : e.emitAll('BatchNormalization', [x, ...own], 3, node.attributes)[0];
  return total(context, [along, across]);
}

/** ẏ = scale·P(ẋ) + x̂ times the scale's tangent + the bias's tangent */
function scaledNormalization(
  context: TangentContext,
  { scale: gain, normalized, moved, spread }: ScaledNormalization,
): readonly (string | undefined)[] {
  const e = context.emitter;
  return [
    total(context, [
      term(context, 0, (tangent) => mul(e, moved(tangent), spread(gain))),
      term(context, 1, (tangent) => mul(e, normalized, spread(tangent))),
      term(context, 2, spread),
    ]),
  ];
}

interface ScaledNormalization {
  readonly scale: string;
  /** x̂ */
  readonly normalized: string;
  /** P(ẋ) */
  readonly moved: (tangent: string) => string;
  /** Reshapes a scale or a bias so that it broadcasts to x's shape. */
  readonly spread: (vector: string) => string;
}

/** InstanceNormalization: one mean for each sample and channel, over the spatial axes. */
function instanceNormalization(context: TangentContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const x = inputOf(context);
  const axes = spatialAxes(context);
  const { centered, inverse } = statistics(e, x, axes, floatAttribute(node, 'epsilon', 1e-5));
  const normalized = mul(e, centered, inverse);
  return scaledNormalization(context, {
    scale: inputOf(context, 1),
    normalized,
    moved: (tangent) => normalizedGradient(e, { normalized, inverse, scaled: tangent, axes }),
    spread: (vector) => perChannel(e, vector, e.shape(x).length),
  });
}

/** GroupNormalization: one mean for each sample and group of channels: x seen as [N, groups, elements of a group]. */
function groupNormalization(context: TangentContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const shape = inputShape(context);
  const groups = intAttribute(node, 'num_groups', 1);
  const grouped = (value: string): string =>
    reshape(e, value, [shape[0] as number, groups, product(shape.slice(1)) / groups]);
  const { centered, inverse } = statistics(e, grouped(inputOf(context)), [2], floatAttribute(node, 'epsilon', 1e-5));
  const normalized = mul(e, centered, inverse);
  return scaledNormalization(context, {
    scale: inputOf(context, 1),
    normalized: reshape(e, normalized, shape),
    moved: (tangent) =>
      reshape(e, normalizedGradient(e, { normalized, inverse, scaled: grouped(tangent), axes: [2] }), shape),
    spread: (vector) => perChannel(e, vector, shape.length),
  });
}

/**
 * LayerNormalization: one mean for each index before `axis`; the forward node gives mean and inv as outputs 1 and 2.
 */
function layerNormalization(context: TangentContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const rank = inputShape(context).length;
  const axes = range(rank).slice(positiveAxis(intAttribute(node, 'axis', -1), rank));
  const { type } = e.type(inputOf(context, 1));
  const [mean, inverse] = [cast(e, outputOf(context, 1), type), cast(e, outputOf(context, 2), type)];
  const normalized = mul(e, sub(e, inputOf(context), mean), inverse);
  return scaledNormalization(context, {
    scale: inputOf(context, 1),
    normalized,
    moved: (tangent) => normalizedGradient(e, { normalized, inverse, scaled: tangent, axes }),
    spread: (vector) => vector,
  });
}

/**
 * y = x / ‖x‖: ẏ = (ẋ − y·Σ u·ẋ) / ‖x‖, where u = y (p = 2) or sign(x) (p = 1); zero vectors pass ẋ as if their norm
 * were 1.
 */
function lpNormalization(context: TangentContext): readonly (string | undefined)[] {
  const { emitter: e, node, tangents } = context;
  const tangent = tangents[0] as string;
  const [x, y] = [inputOf(context), outputOf(context)];
  const axes = [positiveAxis(intAttribute(node, 'axis', -1), e.shape(x).length)];
  const p = intAttribute(node, 'p', 2);
  const norm = e.emit(p === 1 ? 'ReduceL1' : 'ReduceL2', [x, e.int64s(axes)]);
  const safe = select(e, compare(e, 'Equal', norm, 0), e.scalarLike(norm, 1), norm);
  const along = mul(e, y, reduceSum(e, mul(e, p === 1 ? apply(e, 'Sign', x) : y, tangent), axes));
  return [div(e, sub(e, tangent, along), safe)];
}

/** y = x − ln Σ exp x: ẏ = ẋ − Σ exp(y)·ẋ */
function logSoftmax(context: TangentContext): readonly (string | undefined)[] {
  const { emitter: e, node, tangents } = context;
  const tangent = tangents[0] as string;
  const y = outputOf(context);
  const axis = positiveAxis(intAttribute(node, 'axis', -1), e.shape(y).length);
  return [sub(e, tangent, reduceSum(e, mul(e, apply(e, 'Exp', y), tangent), [axis]))];
}
