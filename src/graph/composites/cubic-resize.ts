// Cubic Resize as one product with a constant matrix for each axis that changes: runtimes' own kernels for it are many
// times slower, and support images only. The other modes are operators of the table.

import { type Node, stringAttribute } from '../graph.ts';
import { type ResampledAxis, resampledAxes, resizeAttributes } from '../operators/resize.ts';
import { tensor } from '../tensor.ts';
import type { Composite } from './composite.ts';
import { product, type Writer } from './writer.ts';

export const cubicResize: Composite = {
  inputs: [1, 4],
  attributes: resizeAttributes,
  otherTypes: [1, 2, 3],
  constantInputs: [1, 2, 3],
  when: isCubic,
  write(w) {
    const constants = w.node.inputs.map((name, index) => (index === 0 ? undefined : w.emitter.constantValue(name)));
    let x = w.input(0);
    for (const axis of resampledAxes(w.node, w.shape(x), constants)) x = resampled(w, x, axis);
    return [x];
  },
};

/** Cubic, and without extrapolated elements, which are not sums of others. */
function isCubic(node: Node): boolean {
  return (
    stringAttribute(node, 'mode', 'nearest') === 'cubic' &&
    stringAttribute(node, 'coordinate_transformation_mode', 'half_pixel') !== 'tf_crop_and_resize'
  );
}

/** M·x along one axis. */
function resampled(w: Writer, x: string, { axis, input, output, taps }: ResampledAxis): string {
  const shape = w.shape(x);
  const [outer, inner] = [product(shape.slice(0, axis)), product(shape.slice(axis + 1))];
  const isLast = inner === 1;
  const matrix = new Float64Array(output * input);
  taps.forEach((list, place) => {
    for (const { index, weight } of list ?? [])
      matrix[isLast ? index * output + place : place * input + index] = weight;
  });
  const weights = w.constant(tensor(w.type(x), isLast ? [input, output] : [output, input], matrix));
  const joined = isLast
    ? w.op('MatMul', [w.reshape(x, [outer, input]), weights])
    : w.op('MatMul', [weights, w.reshape(x, [outer, input, inner])]);
  return w.reshape(joined, shape.with(axis, output));
}
