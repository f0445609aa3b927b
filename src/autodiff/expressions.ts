// Arithmetic on an emitter, in which gradient rules read like their formulas. Each function writes at most a few nodes
// and returns the result's name; trivial cases (a factor of 1, a reshape to the same shape) write nothing.

import type { Emitter } from '../graph/emitter.ts';
import { int, ints, tensorAttribute } from '../graph/graph.ts';
import { dataTypeCode } from '../graph/operators/data-types.ts';
import { type ElementType, elementCount, sameShape, tensor } from '../graph/tensor.ts';

/** a + b */
export function add(e: Emitter, a: string, b: string): string {
  return e.emit('Add', [a, b]);
}

/** a − b */
export function sub(e: Emitter, a: string, b: string): string {
  return e.emit('Sub', [a, b]);
}

/** a · b */
export function mul(e: Emitter, a: string, b: string): string {
  return e.emit('Mul', [a, b]);
}

/** a / b */
export function div(e: Emitter, a: string, b: string): string {
  return e.emit('Div', [a, b]);
}

/** f(x) for an operator of one input and no attributes. */
export function apply(e: Emitter, operator: string, x: string): string {
  return e.emit(operator, [x]);
}

/** x · factor */
export function scale(e: Emitter, x: string, factor: number): string {
  if (factor === 1) return x;
  return factor === -1 ? e.emit('Neg', [x]) : mul(e, x, e.scalarLike(x, factor));
}

/** x + term */
export function shift(e: Emitter, x: string, term: number): string {
  return term === 0 ? x : add(e, x, e.scalarLike(x, term));
}

/** x · x */
export function square(e: Emitter, x: string): string {
  return mul(e, x, x);
}

/** 1 − x */
export function oneMinus(e: Emitter, x: string): string {
  return sub(e, e.scalarLike(x, 1), x);
}

/** The bool x < bound, x > bound, … */
export function compare(
  e: Emitter,
  operator: 'Less' | 'LessOrEqual' | 'Greater' | 'GreaterOrEqual' | 'Equal',
  x: string,
  bound: number,
): string {
  return e.emit(operator, [x, e.scalarLike(x, bound)]);
}

/** condition ? a : b */
export function select(e: Emitter, condition: string, a: string, b: string): string {
  return e.emit('Where', [condition, a, b]);
}

/** x where the condition holds, 0 elsewhere. */
export function masked(e: Emitter, x: string, condition: string): string {
  return select(e, condition, x, e.scalarLike(x, 0));
}

/** x where `gate` is not 0, x · 0 elsewhere; a third faster than `masked`. x must be finite. */
export function gated(e: Emitter, x: string, gate: string): string {
  return mul(e, x, cast(e, cast(e, gate, 'bool'), e.type(x).type));
}

/** x in another element type. */
export function cast(e: Emitter, x: string, type: ElementType): string {
  return e.type(x).type === type ? x : e.emit('Cast', [x], { to: int(dataTypeCode(type)) });
}

/** The sum of all terms (at least one). */
export function sum(e: Emitter, terms: readonly string[]): string {
  const [first = '', second = ''] = terms;
  if (terms.length === 1) return first;
  return terms.length === 2 ? add(e, first, second) : e.emit('Sum', terms);
}

/** x in another shape with the same number of elements. */
export function reshape(e: Emitter, x: string, shape: readonly number[]): string {
  if (sameShape(e.shape(x), shape)) return x;
  // allowzero: a 0 in a static shape is a dimension of size 0, not "copy the input's"
  const attributes = shape.includes(0) ? { allowzero: int(1) } : {};
  return e.emit('Reshape', [x, e.int64s(shape)], attributes);
}

/** Output axis i is input axis permutation[i]. Moving axes of size 1 moves no elements and becomes a reshape. */
export function transpose(e: Emitter, x: string, permutation: readonly number[]): string {
  const shape = e.shape(x);
  const long = permutation.filter((axis) => shape[axis] !== 1);
  if (long.every((axis, index) => index === 0 || axis > (long[index - 1] as number))) {
    return reshape(
      e,
      x,
      permutation.map((axis) => shape[axis] as number),
    );
  }
  return e.emit('Transpose', [x], { perm: ints(permutation) });
}

/** The last two axes swapped. */
export function transposeLast(e: Emitter, x: string): string {
  const rank = e.shape(x).length;
  return transpose(e, x, [...range(rank - 2), rank - 1, rank - 2]);
}

/** Values concatenated along an axis. */
export function concat(e: Emitter, parts: readonly string[], axis: number): string {
  return parts.length === 1 ? (parts[0] as string) : e.emit('Concat', parts, { axis: int(axis) });
}

/** Sum over axes. */
export function reduceSum(e: Emitter, x: string, axes: readonly number[], keepDimensions = true): string {
  return axes.length === 0 ? x : e.emit('ReduceSum', [x, e.int64s(axes)], { keepdims: int(keepDimensions ? 1 : 0) });
}

/** Mean over axes, which are kept with size 1. */
export function reduceMean(e: Emitter, x: string, axes: readonly number[]): string {
  return axes.length === 0 ? x : e.emit('ReduceMean', [x, e.int64s(axes)], { keepdims: int(1) });
}

/** The adjoint of broadcasting: x summed to a shape that broadcasts to x's shape. */
export function sumTo(e: Emitter, x: string, shape: readonly number[]): string {
  const from = e.shape(x);
  const lead = from.length - shape.length;
  const axes = range(from.length).filter((axis) => axis < lead || (shape[axis - lead] === 1 && from[axis] !== 1));
  const leadOnly = axes.every((axis) => axis < lead);
  return reshape(e, reduceSum(e, x, axes, !leadOnly), shape);
}

/** x broadcast to a shape. */
export function expand(e: Emitter, x: string, shape: readonly number[]): string {
  return sameShape(e.shape(x), shape) ? x : e.emit('Expand', [x, e.int64s(shape)]);
}

/** A tensor full of one value. */
export function full(e: Emitter, type: ElementType, shape: readonly number[], value = 0): string {
  return e.emit('ConstantOfShape', [e.int64s(shape)], { value: tensorAttribute(tensor(type, [1], [value])) });
}

/**
 * Elements start, start + step, … before end of one axis (a negative step goes backwards; end −∞ includes the first).
 */
export function slice(
  e: Emitter,
  x: string,
  axes: readonly number[],
  starts: readonly number[],
  ends: readonly number[],
  steps?: readonly number[],
): string {
  const shape = e.shape(x);
  const whole = axes.every(
    (axis, index) =>
      starts[index] === 0 && (ends[index] as number) >= (shape[axis] as number) && (steps?.[index] ?? 1) === 1,
  );
  if (whole) return x;
  const inputs = [
    x,
    e.int64s(starts),
    e.int64s(ends.map((end) => (end === Number.NEGATIVE_INFINITY ? -(2 ** 31) : end))),
    e.int64s(axes),
  ];
  return e.emit(
    'Slice',
    steps === undefined || steps.every((step) => step === 1) ? inputs : [...inputs, e.int64s(steps)],
  );
}

/** x with the order of these axes reversed. */
export function flip(e: Emitter, x: string, axes: readonly number[]): string {
  const shape = e.shape(x);
  const long = axes.filter((axis) => (shape[axis] as number) > 1);
  if (long.length === 0) return x;
  return slice(
    e,
    x,
    long,
    long.map((axis) => (shape[axis] as number) - 1),
    long.map(() => Number.NEGATIVE_INFINITY),
    long.map(() => -1),
  );
}

/** x padded with zeros before and after each axis; a negative count removes elements. */
export function padZeros(e: Emitter, x: string, before: readonly number[], after: readonly number[]): string {
  const shape = e.shape(x);
  const cropped = range(shape.length).filter((axis) => (before[axis] as number) < 0 || (after[axis] as number) < 0);
  const kept = slice(
    e,
    x,
    cropped,
    cropped.map((axis) => Math.max(0, -(before[axis] as number))),
    cropped.map((axis) => (shape[axis] as number) + Math.min(0, after[axis] as number)),
  );
  const pads = [...before, ...after].map((count) => Math.max(0, count));
  return pads.every((count) => count === 0) ? kept : e.emit('Pad', [kept, e.int64s(pads)]);
}

/** x with step − 1 zeros between neighbours on an axis: its length L becomes (L − 1)·step + 1. */
export function interleaveZeros(e: Emitter, x: string, axis: number, step: number): string {
  const shape = e.shape(x);
  const length = shape[axis] as number;
  if (step === 1 || length <= 1) return x;
  const columns = reshape(e, x, [...shape.slice(0, axis + 1), 1, ...shape.slice(axis + 1)]);
  const zeros = range(shape.length + 1).map(() => 0);
  const padded = padZeros(
    e,
    columns,
    zeros,
    zeros.map((_, index) => (index === axis + 1 ? step - 1 : 0)),
  );
  const flat = reshape(
    e,
    padded,
    shape.map((dimension, index) => (index === axis ? length * step : dimension)),
  );
  return slice(e, flat, [axis], [0], [(length - 1) * step + 1]);
}

/** [0, 1, …, count − 1] */
export function range(count: number): readonly number[] {
  return Array.from({ length: count }, (_, index) => index);
}

/** The product of some dimensions. */
export const product: (dimensions: readonly number[]) => number = elementCount;
