// Gradients of the operators that move, repeat, slice and join elements. x the input, g the gradient of the output.
// Operators that read or write through index tensors are in indexing.ts.

import type { Emitter } from '../../graph/emitter.ts';
import { int, intAttribute, intsAttribute, string, stringAttribute } from '../../graph/graph.ts';
import type { ShapeName } from '../../graph/operators/names.ts';
import {
  flip,
  full,
  interleaveZeros,
  concat as join,
  padZeros,
  range,
  reduceSum,
  reshape,
  slice,
  sub,
  sum,
  sumTo,
  transpose,
} from '../expressions.ts';
import {
  constantInput,
  type GradientRule,
  gradientOf,
  inputOf,
  inputShape,
  optionalInput,
  positiveAxis,
  type RuleContext,
  type RuleEntry,
  whereNeeded,
} from '../rule.ts';
import { gather, gatherElements, gatherND, scatter } from './indexing.ts';

/** The gradient in x's shape: the adjoint of every operator that keeps the elements in order. */
const reshaped: GradientRule = (context) => [
  reshape(context.emitter, gradientOf(context), inputShape(context)),
  undefined,
];

export const shapeRules: Readonly<Record<ShapeName, RuleEntry>> = {
  Concat: concat,
  Constant: 'not-differentiable',
  ConstantOfShape: 'not-differentiable',
  DepthToSpace: depthToSpace,
  // Σ over the repeated axes
  Expand: (context) => [sumTo(context.emitter, gradientOf(context), inputShape(context)), undefined],
  EyeLike: 'not-differentiable',
  Flatten: reshaped,
  Gather: gather,
  GatherElements: gatherElements,
  GatherND: gatherND,
  NonZero: 'not-differentiable',
  OneHot: 'not-differentiable',
  Pad: pad,
  Range: 'not-differentiable',
  Reshape: reshaped,
  ScatterElements: scatter,
  ScatterND: scatter,
  Shape: 'not-differentiable',
  Size: 'not-differentiable',
  Slice: sliceGradient,
  // its inverse takes depth before the block's rows and columns, as DepthToSpace's mode DCR does
  SpaceToDepth: (context) => [
    context.emitter.emit('DepthToSpace', [gradientOf(context)], {
      blocksize: int(intAttribute(context.node, 'blocksize', 1)),
      mode: string('DCR'),
    }),
  ],
  Split: split,
  Squeeze: reshaped,
  Tile: tile,
  // the inverse permutation
  Transpose: (context) => {
    const rank = inputShape(context).length;
    const permutation = intsAttribute(context.node, 'perm') ?? [...range(rank)].reverse();
    return [
      transpose(
        context.emitter,
        gradientOf(context),
        range(rank).map((axis) => permutation.indexOf(axis)),
      ),
    ];
  },
  // the same triangle of g
  Trilu: (context) => [
    context.emitter.emit('Trilu', [gradientOf(context), ...context.node.inputs.slice(1)], {
      upper: int(intAttribute(context.node, 'upper', 1)),
    }),
    undefined,
  ],
  Unsqueeze: reshaped,
};

/** dx_i = the part of g that came from x_i */
function concat(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node, needs } = context;
  const g = gradientOf(context);
  const axis = positiveAxis(intAttribute(node, 'axis', 0), e.shape(g).length);
  const lengths = node.inputs.map((input) => e.shape(input)[axis] as number);
  if (lengths.length === 1) return [g];
  if (needs.every((need) => need))
    return e.emitAll('Split', [g, e.int64s(lengths)], lengths.length, { axis: int(axis) });
  let start = 0;
  return lengths.map((length, index) => {
    start += length;
    return needs[index] ? slice(e, g, [axis], [start - length], [start]) : undefined;
  });
}

/** dx = the parts' gradients concatenated, zeros for parts that are not read */
function split(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node, outputGradients } = context;
  const { type, shape } = e.type(inputOf(context));
  const axis = positiveAxis(intAttribute(node, 'axis', 0), shape.length);
  const parts = node.outputs.map((output, index) => outputGradients[index] ?? full(e, type, e.shape(output)));
  return [join(e, parts, axis), undefined];
}

/**
 * DCR: SpaceToDepth is the inverse. CRD: y[c, h·b+i, w·b+j] = x[(c·b + i)·b + j, h, w], inverted by moving the axes
 * back.
 */
function depthToSpace(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  const block = intAttribute(node, 'blocksize', 1);
  if (stringAttribute(node, 'mode', 'DCR') === 'DCR') return [e.emit('SpaceToDepth', [g], { blocksize: int(block) })];
  const shape = inputShape(context);
  const [n = 1, c = 1, h = 1, w = 1] = shape;
  const parts = reshape(e, g, [n, c / (block * block), h, block, w, block]);
  return [reshape(e, transpose(e, parts, [0, 1, 3, 5, 2, 4]), shape)];
}

/** dx: each axis that was repeated r times is summed over its r copies */
function tile(context: RuleContext): readonly (string | undefined)[] {
  const e = context.emitter;
  const shape = inputShape(context);
  const repeats = constantInput(context, 1) ?? [];
  const copies = reshape(
    e,
    gradientOf(context),
    shape.flatMap((dimension, axis) => [repeats[axis] as number, dimension]),
  );
  const repeated = range(shape.length).filter((axis) => repeats[axis] !== 1);
  return [
    reshape(
      e,
      reduceSum(
        e,
        copies,
        repeated.map((axis) => 2 * axis),
      ),
      shape,
    ),
    undefined,
  ];
}

/**
 * dx has g at the elements that were read and zeros elsewhere. Along an axis with step s, element k was read at start +
 * k·s: g flipped so that s > 0, s − 1 zeros between its elements, then zeros before and after.
 */
function sliceGradient(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e } = context;
  const shape = inputShape(context);
  const starts = constantInput(context, 1) ?? [];
  const axes = (constantInput(context, 3) ?? range(starts.length)).map((axis) => positiveAxis(axis, shape.length));
  const steps = constantInput(context, 4) ?? starts.map(() => 1);
  let dx = gradientOf(context);
  if (e.shape(dx).includes(0)) return [undefined];
  const kept = e.shape(dx);
  dx = flip(
    e,
    dx,
    axes.filter((_, index) => (steps[index] as number) < 0),
  );
  const before = shape.map(() => 0);
  axes.forEach((axis, index) => {
    const step = steps[index] as number;
    const first = clampStart(starts[index] as number, shape[axis] as number, step);
    before[axis] = step > 0 ? first : first + ((kept[axis] as number) - 1) * step;
    dx = interleaveZeros(e, dx, axis, Math.abs(step));
  });
  const covered = e.shape(dx);
  return [
    padZeros(
      e,
      dx,
      before,
      shape.map((dimension, axis) => dimension - (before[axis] as number) - (covered[axis] as number)),
    ),
  ];
}

/** The first index that a slice reads; `start` may count from the end or exceed the length. */
function clampStart(start: number, length: number, step: number): number {
  const from = start < 0 ? start + length : start;
  return Math.max(0, Math.min(step > 0 ? length : length - 1, from));
}

/** Constant: dx = the middle of g, dvalue = Σ of the rest. Reflect, edge, wrap: see `selection`, axis by axis. */
function pad(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  const shape = inputShape(context);
  const mode = stringAttribute(node, 'mode', 'constant');
  const { before, after } = padCounts(context);
  const middle = (): string =>
    padZeros(
      e,
      g,
      before.map((count) => -count),
      after.map((count) => -count),
    );
  if (mode === 'constant') {
    const total = (x: string): string => reduceSum(e, x, range(shape.length), false);
    const value = (): string =>
      reshape(e, sub(e, total(g), total(middle())), e.shape(optionalInput(context, 2) as string));
    return whereNeeded(context, middle, () => undefined, value);
  }
  let dx = g;
  shape.forEach((length, axis) => {
    const sources = range(length + (before[axis] as number) + (after[axis] as number)).map((index) =>
      paddedSource(index - (before[axis] as number), length, mode),
    );
    dx = selection(e, dx, axis, sources, length);
  });
  return [dx];
}

/** Elements added before and after each axis (negative: removed). */
function padCounts(context: RuleContext): { readonly before: readonly number[]; readonly after: readonly number[] } {
  const rank = inputShape(context).length;
  const pads = constantInput(context, 1) ?? [];
  const axes = (constantInput(context, 3) ?? range(rank)).map((axis) => positiveAxis(axis, rank));
  const [before, after] = [new Array<number>(rank).fill(0), new Array<number>(rank).fill(0)];
  axes.forEach((axis, index) => {
    before[axis] = pads[index] as number;
    after[axis] = pads[index + axes.length] as number;
  });
  return { before, after };
}

/** The index on an axis that padding reads for an index outside it. */
function paddedSource(index: number, length: number, mode: string): number {
  if (mode === 'edge') return Math.max(0, Math.min(length - 1, index));
  if (mode === 'wrap') return ((index % length) + length) % length;
  if (length === 1) return 0;
  const period = 2 * (length - 1); // reflect: … 2 1 | 0 1 2 … n−1 | n−2 …
  const phase = ((index % period) + period) % period;
  return phase < length ? phase : period - phase;
}

/**
 * The adjoint of y[k] = x[sources[k]] along one axis: Σ over the maximal runs of sources that increase by one, decrease
 * by one or stay; each is a slice of g (as it is, flipped, or summed) placed among zeros.
 */
function selection(e: Emitter, g: string, axis: number, sources: readonly number[], length: number): string {
  if (sources.length === length && sources.every((source, index) => source === index)) return g;
  const shape = e.shape(g);
  const terms: string[] = [];
  for (let start = 0; start < sources.length; ) {
    const step = (sources[start + 1] ?? Number.NaN) - (sources[start] as number);
    let end = start + 1;
    if (Math.abs(step) <= 1)
      while (end < sources.length && (sources[end] as number) - (sources[end - 1] as number) === step) end++;
    const part = slice(e, g, [axis], [start], [end]);
    const placed =
      end - start === 1 || step === 1 ? part : step === 0 ? reduceSum(e, part, [axis]) : flip(e, part, [axis]);
    const first = Math.min(sources[start] as number, sources[end - 1] as number);
    const before = shape.map((_, index) => (index === axis ? first : 0));
    const after = shape.map((_, index) => (index === axis ? length - first - (e.shape(placed)[axis] as number) : 0));
    terms.push(padZeros(e, placed, before, after));
    start = end;
  }
  return sum(e, terms);
}
