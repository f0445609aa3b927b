// Gradients of the reductions. x the input, y the output with its reduced axes kept with size 1, g = dL/dy in y's
// shape.

import type { Emitter } from '../../graph/emitter.ts';
import { int, intAttribute } from '../../graph/graph.ts';
import type { ReductionName } from '../../graph/operators/names.ts';
import {
  apply,
  cast,
  compare,
  div,
  expand,
  full,
  masked,
  mul,
  product,
  range,
  reduceSum,
  reshape,
  scale,
  select,
  sub,
} from '../expressions.ts';
import {
  constantInput,
  type GradientRule,
  gradientOf,
  inputOf,
  inputShape,
  type NodeContext,
  outputOf,
  positiveAxis,
  type RuleContext,
  type RuleEntry,
} from '../rule.ts';

/** The reductions whose output is differentiable and has one element for many of x. */
export type DifferentiableReduction = Exclude<ReductionName, 'ArgMax' | 'ArgMin' | 'CumSum' | 'TopK'>;

/** The values that the formulas read, in shapes that broadcast to x's. */
export interface ReductionValues {
  readonly x: string;
  readonly y: () => string;
  readonly axes: readonly number[];
  /** The number of elements of x that are reduced to one of y. */
  readonly count: number;
}

/**
 * g · dy/dx element by element, for a g that broadcasts to x's shape. Used in both modes: in reverse with g = dL/dy,
 * and forward with g = ẋ followed by a sum over the reduced axes.
 */
export type ReductionDerivative = (e: Emitter, g: string, values: ReductionValues) => string;

export const reductionDerivatives: Readonly<Record<DifferentiableReduction, ReductionDerivative>> = {
  // g · sign(x)
  ReduceL1: (e, g, { x }) => mul(e, g, apply(e, 'Sign', x)),
  // g · x / y; 0 where y = 0
  ReduceL2: (e, g, { x, y }) => mul(e, x, masked(e, div(e, g, y()), compare(e, 'Greater', y(), 0))),
  // y = ln Σx: g / Σx = g · exp(−y)
  ReduceLogSum: (e, g, { y }) => mul(e, g, apply(e, 'Exp', scale(e, y(), -1))),
  // g · exp(x − y)
  ReduceLogSumExp: (e, g, { x, y }) => mul(e, g, apply(e, 'Exp', sub(e, x, y()))),
  ReduceMax: extremum,
  // g / n
  ReduceMean: (e, g, { count }) => scale(e, g, 1 / count),
  ReduceMin: extremum,
  ReduceProd: reduceProduct,
  // g
  ReduceSum: (_, g) => g,
  // g · 2x
  ReduceSumSquare: (e, g, { x }) => mul(e, scale(e, g, 2), x),
};

export const reductionRules: Readonly<Record<ReductionName, RuleEntry>> = {
  ArgMax: 'not-differentiable',
  ArgMin: 'not-differentiable',
  // y_i = Σ_{j ≤ i} x_j, so dx_j = Σ_{i ≥ j} g_i: the same sum from the other end
  CumSum: ({ node, emitter: e, outputGradients }) => [
    e.emit('CumSum', [outputGradients[0] as string, node.inputs[1] as string], {
      exclusive: int(intAttribute(node, 'exclusive', 0)),
      reverse: int(1 - intAttribute(node, 'reverse', 0)),
    }),
    undefined,
  ],
  ReduceL1: reduction(reductionDerivatives.ReduceL1),
  ReduceL2: reduction(reductionDerivatives.ReduceL2),
  ReduceLogSum: reduction(reductionDerivatives.ReduceLogSum),
  ReduceLogSumExp: reduction(reductionDerivatives.ReduceLogSumExp),
  ReduceMax: reduction(reductionDerivatives.ReduceMax),
  ReduceMean: reduction(reductionDerivatives.ReduceMean),
  ReduceMin: reduction(reductionDerivatives.ReduceMin),
  ReduceProd: reduction(reductionDerivatives.ReduceProd),
  ReduceSum: reduction(reductionDerivatives.ReduceSum),
  ReduceSumSquare: reduction(reductionDerivatives.ReduceSumSquare),
  TopK: topK,
};

/** Zeros with each g at the place of its value. */
function topK(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const { type, shape } = e.type(inputOf(context));
  const axis = { axis: int(intAttribute(node, 'axis', -1)) };
  return [
    e.emit('ScatterElements', [full(e, type, shape), outputOf(context, 1), gradientOf(context)], axis),
    undefined,
  ];
}

function reduction(derivative: ReductionDerivative): GradientRule {
  return (context) => {
    const e = context.emitter;
    const values = reductionValues(context);
    const g = reshape(e, gradientOf(context), keptShape(e.shape(values.x), values.axes));
    return [expand(e, derivative(e, g, values), e.shape(values.x)), undefined];
  };
}

/** The values that the derivative of a reduction reads. */
export function reductionValues(context: NodeContext): ReductionValues {
  const e = context.emitter;
  const x = inputOf(context);
  const shape = e.shape(x);
  const axes = reducedAxes(context);
  return {
    x,
    y: () => reshape(e, outputOf(context), keptShape(shape, axes)),
    axes,
    count: product(axes.map((axis) => shape[axis] as number)),
  };
}

function keptShape(shape: readonly number[], axes: readonly number[]): readonly number[] {
  return shape.map((dimension, axis) => (axes.includes(axis) ? 1 : dimension));
}

/**
 * The axes that a reduction reduces, in [0, rank): its input 1, or all; none if noop_with_empty_axes is set and there
 * are no axes.
 */
function reducedAxes(context: NodeContext): readonly number[] {
  const rank = inputShape(context).length;
  const axes = constantInput(context, 1) ?? [];
  if (axes.length > 0) return axes.map((axis) => positiveAxis(axis, rank));
  return intAttribute(context.node, 'noop_with_empty_axes', 0) === 1 ? [] : range(rank);
}

/** g to the elements that equal y, shared evenly among ties. */
function extremum(e: Emitter, g: string, { x, y, axes }: ReductionValues): string {
  const hits = cast(e, e.emit('Equal', [x, y()]), e.type(g).type);
  return mul(e, hits, div(e, g, reduceSum(e, hits, axes)));
}

/**
 * The product of the other elements times g. With p the product of the nonzero ones and n the number of zeros: p/x if n
 * = 0; p at the zero if n = 1; else 0.
 */
function reduceProduct(e: Emitter, g: string, { x, axes }: ReductionValues): string {
  const one = e.scalarLike(x, 1);
  const isZero = compare(e, 'Equal', x, 0);
  const nonZero = select(e, isZero, one, x);
  const others = axes.length === 0 ? nonZero : e.emit('ReduceProd', [nonZero, e.int64s(axes)], { keepdims: int(1) });
  const zeros = reduceSum(e, cast(e, isZero, e.type(x).type), axes);
  const atZero = masked(e, others, compare(e, 'Equal', zeros, 1));
  const elsewhere = div(e, masked(e, others, compare(e, 'Equal', zeros, 0)), nonZero);
  return mul(e, g, select(e, isZero, atZero, elsewhere));
}
