// Gradients of reading and writing through index tensors. Reading's adjoint is adding into zeros, so repeated indices add up.

import type { Emitter } from '../../graph/emitter.ts';
import { int, intAttribute, string, stringAttribute } from '../../graph/graph.ts';
import { fail } from '../../graph/operators/define.ts';
import { tensor } from '../../graph/tensor.ts';
import { cast, expand, full, padZeros, product, range, reshape, transpose } from '../expressions.ts';
import { gradientOf, inputOf, inputShape, type NodeContext, positiveAxis, type RuleContext, whereNeeded } from '../rule.ts';

/**
 * y[outer, i…, inner] = x[outer, indices[i…], inner]: dx = zeros, with the slices of g added at their indices.
 * The gathered axis goes to the front for ScatterND, and back.
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
  const outer = shape.slice(0, axis);
  const inner = shape.slice(axis + 1);
  const [outerCount, innerCount] = [product(outer), product(inner)];
  const rows = reshape(e, transpose(e, reshape(e, g, [outerCount, count, innerCount]), [1, 0, 2]), [count, outerCount * innerCount]);
  const zeros = full(e, type, [shape[axis] as number, outerCount * innerCount]);
  const added = e.emit('ScatterND', [zeros, reshape(e, indices64(e, indices), [count, 1]), rows], { reduction: string('add') });
  const back = transpose(e, reshape(e, added, [shape[axis] as number, outerCount, innerCount]), [1, 0, 2]);
  return [reshape(e, back, shape), undefined];
}

/** y[…] = x[… with indices[…] on the axis]: dx = zeros with g added at the same places */
export function gatherElements(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const { type, shape } = e.type(inputOf(context));
  const axis = intAttribute(node, 'axis', 0);
  const attributes = { axis: int(axis), reduction: string('add') };
  return [e.emit('ScatterElements', [full(e, type, shape), inputOf(context, 1), gradientOf(context)], attributes), undefined];
}

/** y[b…, i…] = x[b…, indices[b…, i…]]: dx = zeros with g added at (b…, indices) */
export function gatherND(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const { type, shape } = e.type(inputOf(context));
  const indices = withBatchCoordinates(e, inputOf(context, 1), intAttribute(node, 'batch_dims', 0));
  return [e.emit('ScatterND', [full(e, type, shape), indices, gradientOf(context)], { reduction: string('add') }), undefined];
}

/** Index tuples [b…, i…, k] with the batch coordinates b… put in front: [b…, i…, batchRank + k]. */
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
 * y = data with updates put (or added) at indices on an axis: dupdates = g read at the same places;
 * ddata = g with zeros at those places (put), or g (add).
 */
export function scatterElements(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  const adds = reductionAdds(context);
  const indices = inputOf(context, 1);
  const axis = { axis: int(intAttribute(node, 'axis', 0)) };
  return whereNeeded(
    context,
    () => (adds ? g : e.emit('ScatterElements', [g, indices, full(e, e.type(g).type, inputShape(context, 2))], axis)),
    () => undefined,
    () => e.emit('GatherElements', [g, indices], axis),
  );
}

/** As `scatterElements`, with index tuples. */
export function scatterND(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e } = context;
  const g = gradientOf(context);
  const adds = reductionAdds(context);
  const indices = inputOf(context, 1);
  return whereNeeded(
    context,
    () => (adds ? g : e.emit('ScatterND', [g, indices, full(e, e.type(g).type, inputShape(context, 2))])),
    () => undefined,
    () => e.emit('GatherND', [g, indices]),
  );
}

/** True for reduction "add", false for "none"; the others have no rule. */
export function reductionAdds(context: NodeContext): boolean {
  const reduction = stringAttribute(context.node, 'reduction', 'none');
  if (reduction !== 'none' && reduction !== 'add')
    fail(context.node, `has no gradient for reduction "${reduction}"; "none" and "add" have one`);
  return reduction === 'add';
}

/** ScatterND wants int64 where Gather takes int32 too. */
function indices64(e: Emitter, indices: string): string {
  return cast(e, indices, 'int64');
}
