// The gradient of MaxPool: each g goes to the first element of its window that equals the maximum, in row-major order,
// as in runtimes and PyTorch. Runtimes compute maxima many times faster than their indices, so the indices are not
// used: a maximum over a window is a maximum over its columns of maxima over its rows, and along one axis the taps of
// the window are slices to compare with.

import type { Emitter } from '../../graph/emitter.ts';
import { intAttribute, ints, intsAttribute } from '../../graph/graph.ts';
import { windowOf } from '../../graph/operators/windows.ts';
import { cast, concat, full, mul, padZeros, range, reshape, slice, sub, sum } from '../expressions.ts';
import { gradientOf, inputOf, inputShape, outputOf, type RuleContext } from '../rule.ts';

/** A window along one axis: place o reads the elements o·stride − begin + tap·dilation. */
interface AxisWindow {
  /** The axis of the value, counted from 0. */
  readonly axis: number;
  readonly input: number;
  readonly output: number;
  readonly kernel: number;
  readonly stride: number;
  readonly dilation: number;
  readonly begin: number;
}

/**
 * Axis by axis from the first (whose order decides first) to the last; the maxima over the later axes are recomputed.
 */
export function maxPool(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const shape = inputShape(context);
  const window = windowOf(
    node,
    shape.slice(2),
    intsAttribute(node, 'kernel_shape') ?? [],
    intAttribute(node, 'ceil_mode', 0) !== 0,
  );
  const axes = window.kernel.map(
    (kernel, index): AxisWindow => ({
      axis: index + 2,
      input: window.input[index] as number,
      output: window.output[index] as number,
      kernel,
      stride: window.strides[index] as number,
      dilation: window.dilations[index] as number,
      begin: window.padsBegin[index] as number,
    }),
  );
  const active = axes.filter(({ kernel, stride, input, output }) => kernel > 1 || stride > 1 || input !== output);
  // maxima[j]: over the axes from the j-th on; maxima[0] is y, and the last entry is x.
  const maxima = [inputOf(context)];
  for (const one of active.slice(1).reverse()) maxima.unshift(maximaAlong(e, maxima[0] as string, one));
  let [g, y] = [gradientOf(context), outputOf(context)];
  active.forEach((one, index) => {
    const x = maxima[index] as string;
    g = place(e, shares(e, { g, x, y }, one), e.shape(x), one);
    y = x;
  });
  return [g];
}

/** The maxima along one axis. */
function maximaAlong(
  e: Emitter,
  x: string,
  { axis, input, output, kernel, stride, dilation, begin }: AxisWindow,
): string {
  const spatial = range(e.shape(x).length - 2);
  const own = (value: number, other: number): readonly number[] =>
    spatial.map((index) => (index + 2 === axis ? value : other));
  const end = Math.max(0, (output - 1) * stride + (kernel - 1) * dilation + 1 - input - begin);
  const attributes = {
    kernel_shape: ints(own(kernel, 1)),
    strides: ints(own(stride, 1)),
    dilations: ints(own(dilation, 1)),
  };
  // Runtimes reject padding as wide as the kernel, which dilation may require.
  if (begin >= kernel || end >= kernel) return e.emit('MaxPool', [padLowest(e, x, axis, begin, end)], attributes);
  return e.emit('MaxPool', [x], { ...attributes, pads: ints([...own(begin, 0), ...own(end, 0)]) });
}

/** The value padded with −∞ before and after an axis. */
function padLowest(e: Emitter, x: string, axis: number, before: number, after: number): string {
  if (before === 0 && after === 0) return x;
  const own = (value: number): readonly number[] => e.shape(x).map((_, index) => (index === axis ? value : 0));
  return e.emit('Pad', [x, e.int64s([...own(before), ...own(after)]), e.scalarLike(x, Number.NEGATIVE_INFINITY)]);
}

/** By tap: g where its element is the first that equals y, 0 elsewhere; undefined for taps that read only padding. */
function shares(
  e: Emitter,
  { g, x, y }: { readonly g: string; readonly x: string; readonly y: string },
  { axis, input, output, kernel, stride, dilation, begin }: AxisWindow,
): readonly (string | undefined)[] {
  const seen = range(kernel).map((tap) => {
    const start = tap * dilation - begin;
    const first = Math.max(0, Math.ceil(-start / stride));
    const end = Math.min(output, Math.ceil((input - start) / stride));
    return { start, first, end };
  });
  const last = seen.findLastIndex(({ first, end }) => first < end);
  let rest = g;
  return seen.map(({ start, first, end }, tap) => {
    if (first >= end) return undefined;
    if (tap === last) return rest; // what no other tap took
    const elements = slice(e, x, [axis], [first * stride + start], [(end - 1) * stride + start + 1], [stride]);
    const isFirst = e.emit('Equal', [padLowest(e, elements, axis, first, output - end), y]);
    const share = mul(e, rest, cast(e, isFirst, e.type(g).type));
    rest = sub(e, rest, share);
    return share;
  });
}

/** The taps' shares added up at their elements: first the elements u·stride + v for each v, then these interleaved. */
function place(
  e: Emitter,
  parts: readonly (string | undefined)[],
  shape: readonly number[],
  { axis, input, output, stride, dilation, begin }: AxisWindow,
): string {
  const count = Math.ceil(input / stride);
  const columns = range(stride).map((v) => {
    const terms = parts.flatMap((part, tap) => {
      const shift = tap * dilation - begin - v;
      return part === undefined || shift % stride !== 0
        ? []
        : [shifted(e, part, axis, shift / stride, count - shift / stride - output)];
    });
    return terms.length === 0
      ? full(e, e.type(parts.find((part) => part !== undefined) as string).type, shape.with(axis, count))
      : sum(e, terms);
  });
  if (stride === 1) return columns[0] as string;
  const column = shape.with(axis, count).toSpliced(axis + 1, 0, 1);
  const joined = concat(
    e,
    columns.map((one) => reshape(e, one, column)),
    axis + 1,
  );
  return slice(e, reshape(e, joined, shape.with(axis, count * stride)), [axis], [0], [input]);
}

/** The value padded with zeros before and after an axis; negative counts remove elements. */
function shifted(e: Emitter, x: string, axis: number, before: number, after: number): string {
  const own = (value: number): readonly number[] => e.shape(x).map((_, index) => (index === axis ? value : 0));
  return padZeros(e, x, own(before), own(after));
}
