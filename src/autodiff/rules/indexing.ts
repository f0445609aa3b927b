// Gradients of reading and writing through index tensors. The adjoint of reading adds into zeros, so repeated indices
// add up.

import type { Emitter } from '../../graph/emitter.ts';
import { int, intAttribute, string, stringAttribute } from '../../graph/graph.ts';
import { tensor } from '../../graph/tensor.ts';
import {
  cast,
  compare,
  div,
  expand,
  full,
  masked,
  mul,
  padZeros,
  product,
  range,
  reshape,
  select,
  transpose,
} from '../expressions.ts';
import {
  gradientOf,
  inputOf,
  inputShape,
  type NodeContext,
  outputOf,
  positiveAxis,
  type RuleContext,
  whereNeeded,
} from '../rule.ts';

/**
 * y[outer, i…, inner] = x[outer, indices[i…], inner]: dx = zeros, with the slices of g added at their indices. The
 * gathered axis moves to the front for ScatterND, and back.
 */
export function gather(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  const { type, shape } = e.type(inputOf(context));
  const axis = positiveAxis(intAttribute(node, 'axis', 0), shape.length);
  const indices = inputOf(context, 1);
  const known = e.constantValue(indices);
  if (known?.data.length === 1) {
    const index = positiveAxis(Number(known.data[0]), shape[axis] as number);
    const kept = reshape(
      e,
      g,
      shape.map((dimension, position) => (position === axis ? 1 : dimension)),
    );
    return [
      padZeros(
        e,
        kept,
        shape.map((_, position) => (position === axis ? index : 0)),
        shape.map((dimension, position) => (position === axis ? dimension - 1 - index : 0)),
      ),
      undefined,
    ];
  }
  const count = product(e.shape(indices));
  const places = reshape(e, indices64(e, indices), [count, 1]);
  const adding = { reduction: string('add') };
  if (axis === 0)
    return [
      e.emit('ScatterND', [full(e, type, shape), places, reshape(e, g, [count, ...shape.slice(1)])], adding),
      undefined,
    ];
  const outer = shape.slice(0, axis);
  const inner = shape.slice(axis + 1);
  const [outerCount, innerCount] = [product(outer), product(inner)];
  const rows = reshape(e, transpose(e, reshape(e, g, [outerCount, count, innerCount]), [1, 0, 2]), [
    count,
    outerCount * innerCount,
  ]);
  const zeros = full(e, type, [shape[axis] as number, outerCount * innerCount]);
  const added = e.emit('ScatterND', [zeros, places, rows], adding);
  const back = transpose(e, reshape(e, added, [shape[axis] as number, outerCount, innerCount]), [1, 0, 2]);
  return [reshape(e, back, shape), undefined];
}

/** y[…] = x[… with indices[…] on the axis]: dx = zeros with g added at the same places */
export function gatherElements(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const { type, shape } = e.type(inputOf(context));
  const axis = intAttribute(node, 'axis', 0);
  const attributes = { axis: int(axis), reduction: string('add') };
  return [
    e.emit('ScatterElements', [full(e, type, shape), inputOf(context, 1), gradientOf(context)], attributes),
    undefined,
  ];
}

/** y[b…, i…] = x[b…, indices[b…, i…]]: dx = zeros with g added at (b…, indices) */
export function gatherND(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const { type, shape } = e.type(inputOf(context));
  const indices = withBatchCoordinates(e, inputOf(context, 1), intAttribute(node, 'batch_dims', 0));
  return [
    e.emit('ScatterND', [full(e, type, shape), indices, gradientOf(context)], { reduction: string('add') }),
    undefined,
  ];
}

/** Index tuples [b…, i…, k] with the batch coordinates b… prepended: [b…, i…, batchRank + k]. */
function withBatchCoordinates(e: Emitter, indices: string, batchRank: number): string {
  if (batchRank === 0) return indices;
  const shape = e.shape(indices);
  const places = [...shape.slice(0, -1), 1];
  const coordinates = range(batchRank).map((axis) => {
    const length = shape[axis] as number;
    const own = places.map((_, position) => (position === axis ? length : 1));
    return expand(e, e.constant(tensor('int64', own, range(length))), places);
  });
  return e.emit('Concat', [...coordinates, indices], { axis: int(shape.length - 1) });
}

/**
 * y = data with updates assigned (or added) at indices on an axis: dupdates = g read at the same places; ddata = g with
 * zeros at those places (assignment), or g (add). Other reductions: g times the weights of `scatterWeights`.
 */
export function scatter(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  const weights = scatterWeights(context);
  const puts = stringAttribute(node, 'reduction', 'none') === 'none';
  return whereNeeded(
    context,
    () => {
      if (weights !== undefined) return mul(e, g, weights.data());
      return puts ? scatterWith(context, g, full(e, e.type(g).type, inputShape(context, 2)), 'none') : g;
    },
    () => undefined,
    () => (weights === undefined ? readAt(context, g) : mul(e, readAt(context, g), weights.updates())),
  );
}

/** The value with updates assigned, added, … at the node's indices. */
function scatterWith({ node, emitter: e }: NodeContext, data: string, updates: string, reduction: string): string {
  return e.emit(node.operator, [data, node.inputs[1] as string, updates], {
    ...node.attributes,
    reduction: string(reduction),
  });
}

/** The updates added at the node's indices, into zeros of y's shape. */
export function scatteredAdd(context: NodeContext, updates: string): string {
  const { type, shape } = context.emitter.type(inputOf(context));
  return scatterWith(context, full(context.emitter, type, shape), updates, 'add');
}

/** The elements of a value of y's shape at the node's indices. */
function readAt({ node, emitter: e }: NodeContext, value: string): string {
  const indices = node.inputs[1] as string;
  return node.operator === 'ScatterND'
    ? e.emit('GatherND', [value, indices])
    : e.emit('GatherElements', [value, indices], { axis: int(intAttribute(node, 'axis', 0)) });
}

/** dy/ddata and dy/dupdates (each update affects one element of y), written on demand. */
interface ScatterWeights {
  readonly data: () => string;
  readonly updates: () => string;
}

/**
 * max, min: 1 for elements that equal y, shared evenly among ties. mul: the product of the other factors. With p the
 * product of an element's nonzero factors and n the number of its zeros: p/x if n = 0; p at the zero if n = 1; else 0.
 * Undefined for assignment and add.
 */
export function scatterWeights(context: NodeContext): ScatterWeights | undefined {
  const { emitter: e, node } = context;
  const [data, updates] = [inputOf(context, 0), inputOf(context, 2)];
  const { type, shape } = e.type(data);
  const reduction = stringAttribute(node, 'reduction', 'none');
  if (reduction === 'none' || reduction === 'add') return undefined;
  if (reduction !== 'mul') {
    const y = outputOf(context);
    const hits = cast(e, e.emit('Equal', [data, y]), type);
    const updateHits = cast(e, e.emit('Equal', [updates, readAt(context, y)]), type);
    const counts = scatterWith(context, hits, updateHits, 'add');
    return { data: () => div(e, hits, counts), updates: () => div(e, updateHits, readAt(context, counts)) };
  }
  const nonZero = (x: string): string => select(e, compare(e, 'Equal', x, 0), e.scalarLike(x, 1), x);
  const isZero = (x: string): string => cast(e, compare(e, 'Equal', x, 0), type);
  const products = scatterWith(context, nonZero(data), nonZero(updates), 'mul');
  const zeros = scatterWith(context, isZero(data), isZero(updates), 'add');
  /** Zeros among the other factors of x make the weight 0. */
  const others = (x: string, product: string, count: string): string =>
    masked(e, div(e, product, nonZero(x)), e.emit('Equal', [count, isZero(x)]));
  return {
    data: () => reshape(e, others(data, products, zeros), shape),
    updates: () => others(updates, readAt(context, products), readAt(context, zeros)),
  };
}

/** ScatterND requires int64, while Gather also takes int32. */
function indices64(e: Emitter, indices: string): string {
  return cast(e, indices, 'int64');
}
