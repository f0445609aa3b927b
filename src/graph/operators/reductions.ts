// Operators that combine elements along axes: the Reduce family, ArgMax and ArgMin, CumSum.

import { intAttribute, type Node } from '../graph.ts';
import { type ElementType, elementCount, type Tensor, type ValueType } from '../tensor.ts';
import {
  arithmeticTypes,
  check,
  constantIntegers,
  define,
  type Inputs,
  indexTypes,
  int64Only,
  normalizeAxes,
  normalizeAxis,
  numericTypes,
  required,
  typeText,
} from './define.ts';
import type { OperatorDefinition } from './definition.ts';
import { offsets, span, stridesOf } from './indexing.ts';
import type { ReductionName } from './names.ts';
import {
  highest,
  literal,
  lowest,
  type Numbers,
  numbers,
  plainNumbers,
  scratch,
  store,
  storePlain,
} from './numbers.ts';
import { topK } from './top-k.ts';

export const reductions: Readonly<Record<ReductionName, OperatorDefinition>> = {
  ArgMax: argument((candidate, best) => candidate > best),
  ArgMin: argument((candidate, best) => candidate < best),
  CumSum: define({
    inputs: [2, 2],
    types: [arithmeticTypes, indexTypes],
    attributes: { exclusive: 'int', reverse: 'int' },
    infer(node, inputs, constants) {
      const { type, shape } = required(inputs, 0);
      const axis = constants[1];
      check(
        elementCount(required(inputs, 1).shape) === 1,
        node,
        () => `wants a scalar axis, not ${typeText(required(inputs, 1))}`,
      );
      if (axis) normalizeAxis(node, Number(axis.data[0]), shape.length);
      return [{ type, shape }];
    },
    evaluate: (node, inputs) => [cumulativeSum(node, required(inputs, 0), Number(required(inputs, 1).data[0]))],
  }),
  ReduceL1: reduce((x) => sums(x, Math.abs), { plain: true }),
  ReduceL2: reduce((x) => sums(x, (value) => value * value).map(Math.sqrt), { plain: true }),
  ReduceLogSum: reduce((x) => sums(x, (value) => value).map(Math.log), { plain: true }),
  ReduceLogSumExp: reduce(logSumExp, { plain: true }),
  ReduceMax: reduce((x) => extremes(x, lowest(x.type), (candidate, best) => candidate > best), {
    types: [...numericTypes, 'bool'],
  }),
  ReduceMean: reduce((x) => sums(x, (value) => value).map((sum) => sum / x.groupSize), { plain: true }),
  ReduceMin: reduce((x) => extremes(x, highest(x.type), (candidate, best) => candidate < best), {
    types: [...numericTypes, 'bool'],
  }),
  ReduceProd: reduce((x) => fold(x, 1, (total, value) => total * value)),
  ReduceSum: reduce((x) => fold(x, 0, (total, value) => total + value)),
  ReduceSumSquare: reduce((x) => fold(x, 0, (total, value) => total + value * value)),
  TopK: topK,
};

/** The input of a reduction: element i of `values` belongs to group `groups[i]` of the result. */
interface Groups {
  readonly type: ElementType;
  readonly values: Numbers;
  readonly groups: Int32Array;
  readonly groupCount: number;
  /** Elements per group. */
  readonly groupSize: number;
}

interface ReduceOptions {
  readonly types?: readonly ElementType[];
  /** The rule computes on actual numbers, also for 64-bit integers: it divides, or takes roots or logarithms. */
  readonly plain?: boolean;
}

/**
 * A Reduce operator: axes from input 1 (default: all), `keepdims`, `noop_with_empty_axes`. "No-op" means that nothing
 * is joined: every element is its own group, so ReduceL1 then gives |x|, as ONNX clarified after opset 21 and runtimes
 * do.
 */
function reduce(
  rule: (x: Groups) => Numbers,
  { types = numericTypes, plain = false }: ReduceOptions = {},
): OperatorDefinition {
  return define({
    inputs: [1, 2],
    types: [types, int64Only],
    attributes: { keepdims: 'int', noop_with_empty_axes: 'int' },
    constantInputs: [1],
    infer(node, inputs, constants) {
      const { type, shape } = required(inputs, 0);
      const axes = reducedAxes(node, inputs, constants);
      const keep = intAttribute(node, 'keepdims', 1) !== 0;
      return [{ type, shape: keep ? collapse(shape, axes) : shape.filter((_, axis) => !axes.includes(axis)) }];
    },
    evaluate(node, inputs, [result]) {
      const x = required(inputs, 0);
      const { type, shape } = result as ValueType;
      const axes = reducedAxes(node, inputs, inputs);
      const collapsed = collapse(x.shape, axes);
      const strides = stridesOf(collapsed).map((stride, axis) => (axes.includes(axis) ? 0 : stride));
      const values = rule({
        type,
        values: plain ? plainNumbers(x) : numbers(x),
        groups: offsets(x.shape, strides),
        groupCount: elementCount(collapsed),
        groupSize: axes.reduce((size, axis) => size * (x.shape[axis] as number), 1),
      });
      return [plain ? storePlain(type, shape, values) : store(type, shape, values)];
    },
  });
}

function reducedAxes(node: Node, inputs: Inputs<ValueType>, constants: Inputs<Tensor>): readonly number[] {
  const rank = required(inputs, 0).shape.length;
  const axes = constantIntegers(node, inputs, constants, 1) ?? [];
  if (axes.length > 0) return normalizeAxes(node, axes, rank);
  return intAttribute(node, 'noop_with_empty_axes', 0) === 0 ? Array.from({ length: rank }, (_, axis) => axis) : [];
}

/** The shape with 1 in place of each of the axes. */
function collapse(shape: readonly number[], axes: readonly number[]): readonly number[] {
  return shape.map((dimension, axis) => (axes.includes(axis) ? 1 : dimension));
}

/**
 * Folds each group, starting from `start`; `combine` may only use + − · and comparisons (64-bit integers pass through
 * it).
 */
function fold(
  { type, values, groups, groupCount }: Groups,
  start: number,
  combine: (total: number, value: number) => number,
): Numbers {
  const totals = scratch(type, groupCount).fill(literal(type, start));
  for (let index = 0; index < values.length; index++) {
    const group = groups[index] as number;
    totals[group] = combine(totals[group] as number, values[index] as number);
  }
  return totals;
}

/** Σ f(x) of each group, in doubles. */
function sums({ values, groups, groupCount }: Groups, f: (value: number) => number): Numbers {
  const totals = new Float64Array(groupCount);
  for (let index = 0; index < values.length; index++)
    (totals[groups[index] as number] as number) += f(values[index] as number);
  return totals;
}

/** The extreme of each group, `start` if it is empty; NaN if the group contains one. */
function extremes(
  { type, values, groups, groupCount }: Groups,
  start: number,
  better: (candidate: number, best: number) => boolean,
): Numbers {
  const best = scratch(type, groupCount).fill(start);
  for (let index = 0; index < values.length; index++) {
    const group = groups[index] as number;
    const value = values[index] as number;
    if (better(value, best[group] as number) || Number.isNaN(value)) best[group] = value;
  }
  return best;
}

/** m + log Σ exp(x − m), where m is the group's maximum, to avoid overflow. */
function logSumExp(x: Groups): Numbers {
  const maxima = extremes({ ...x, type: 'float64' }, Number.NEGATIVE_INFINITY, (candidate, best) => candidate > best);
  const totals = new Float64Array(x.groupCount);
  x.values.forEach((value, index) => {
    const group = x.groups[index] as number;
    const maximum = maxima[group] as number;
    (totals[group] as number) += Number.isFinite(maximum) ? Math.exp(value - maximum) : 1;
  });
  return totals.map((total, group) => (maxima[group] as number) + Math.log(total));
}

/** ArgMax or ArgMin: the position along `axis` of the first (or last) best element, in int64. */
function argument(better: (candidate: number, best: number) => boolean): OperatorDefinition {
  return define({
    inputs: [1, 1],
    types: [numericTypes],
    attributes: { axis: 'int', keepdims: 'int', select_last_index: 'int' },
    infer(node, inputs) {
      const { shape } = required(inputs, 0);
      const axis = normalizeAxis(node, intAttribute(node, 'axis', 0), shape.length);
      check(shape[axis] !== 0, node, () => `has no elements along axis ${axis} of ${typeText(required(inputs, 0))}`);
      const keep = intAttribute(node, 'keepdims', 1) !== 0;
      return [{ type: 'int64', shape: keep ? shape.with(axis, 1) : shape.toSpliced(axis, 1) }];
    },
    evaluate(node, inputs, [result]) {
      const x = required(inputs, 0);
      const axis = normalizeAxis(node, intAttribute(node, 'axis', 0), x.shape.length);
      const last = intAttribute(node, 'select_last_index', 0) !== 0;
      const { shape } = result as ValueType;
      const [length, inner] = [x.shape[axis] as number, span(x.shape, axis + 1)];
      const values = numbers(x);
      const data = new BigInt64Array(elementCount(shape));
      for (let group = 0; group < data.length; group++) {
        const start = Math.floor(group / inner) * length * inner + (group % inner);
        let best = 0;
        for (let position = 1; position < length; position++) {
          const [candidate, leader] = [
            values[start + position * inner] as number,
            values[start + best * inner] as number,
          ];
          if (better(candidate, leader) || (last && candidate === leader)) best = position;
        }
        data[group] = BigInt(best);
      }
      return [{ type: 'int64', shape, data }];
    },
  });
}

/** Running sums along an axis; `exclusive` leaves each element out of its own sum, `reverse` runs from the end. */
function cumulativeSum(node: Node, x: Tensor, rawAxis: number): Tensor {
  const axis = normalizeAxis(node, rawAxis, x.shape.length);
  const exclusive = intAttribute(node, 'exclusive', 0) !== 0;
  const reverse = intAttribute(node, 'reverse', 0) !== 0;
  const [length, inner] = [x.shape[axis] as number, span(x.shape, axis + 1)];
  const values = numbers(x);
  const totals = scratch(x.type, values.length);
  for (let lane = 0; lane < values.length / Math.max(1, length); lane++) {
    const start = Math.floor(lane / inner) * length * inner + (lane % inner);
    let total = literal(x.type, 0);
    for (let step = 0; step < length; step++) {
      const index = start + (reverse ? length - 1 - step : step) * inner;
      const before = total;
      total += values[index] as number;
      totals[index] = exclusive ? before : total;
    }
  }
  return store(x.type, x.shape, totals);
}
