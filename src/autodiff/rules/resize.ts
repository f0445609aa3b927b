// The gradient of Resize. Along each axis y = M·x with a constant matrix M, so dx = Mᵀ·g.

import type { Emitter } from '../../graph/emitter.ts';
import { type ResampledAxis, resampledAxes } from '../../graph/operators/resize.ts';
import { tensor } from '../../graph/tensor.ts';
import { product, reduceSum, reshape } from '../expressions.ts';
import { gradientOf, inputShape, type RuleContext } from '../rule.ts';
import { matrixProduct } from './products.ts';

export function resize(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const constants = node.inputs.map((name, index) => (index === 0 ? undefined : e.constantValue(name)));
  let g = gradientOf(context);
  // The last axis first: its products then have the fewest rows.
  for (const axis of [...resampledAxes(node, inputShape(context), constants)].reverse())
    g = repeatsOf(axis) === undefined ? spread(e, g, axis) : regroup(e, g, axis, repeatsOf(axis) as number);
  return [g];
}

/** If every old element appears `count` times in a row, in order: that count. */
function repeatsOf({ input, output, taps }: ResampledAxis): number | undefined {
  const count = output / input;
  const repeats =
    Number.isInteger(count) &&
    taps.every((list, place) => list?.length === 1 && list[0]?.index === Math.floor(place / count));
  return repeats ? count : undefined;
}

/** The sum over each element's copies. */
function regroup(e: Emitter, g: string, { axis, input }: ResampledAxis, count: number): string {
  const shape = e.shape(g);
  const copies = reshape(e, g, [...shape.slice(0, axis), input, count, ...shape.slice(axis + 1)]);
  return reduceSum(e, copies, [axis + 1], false);
}

/** Mᵀ·g along the axis. */
function spread(e: Emitter, g: string, { axis, input, output, taps }: ResampledAxis): string {
  const { type, shape } = e.type(g);
  const matrix = new Float64Array(output * input);
  taps.forEach((list, place) => {
    for (const { index, weight } of list ?? []) matrix[place * input + index] = weight;
  });
  const [outer, inner] = [product(shape.slice(0, axis)), product(shape.slice(axis + 1))];
  const result = shape.with(axis, input);
  if (inner === 1)
    return reshape(
      e,
      matrixProduct(e, reshape(e, g, [outer, output]), e.constant(tensor(type, [output, input], matrix))),
      result,
    );
  const transposed = Float64Array.from(
    { length: matrix.length },
    (_, place) => matrix[(place % output) * input + Math.floor(place / output)] as number,
  );
  const left = e.constant(tensor(type, [input, output], transposed));
  return reshape(e, e.emit('MatMul', [left, reshape(e, g, [outer, output, inner])]), result);
}
