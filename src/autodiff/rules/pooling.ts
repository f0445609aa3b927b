// Gradients of pooling. x [N, C, input…], y and g [N, C, output…].

import type { Emitter } from '../../graph/emitter.ts';
import { int, intAttribute, ints, intsAttribute } from '../../graph/graph.ts';
import { type Window, windowOf } from '../../graph/operators/windows.ts';
import { tensor } from '../../graph/tensor.ts';
import { cast, div, expand, mul, padZeros, product, range, reduceSum, reshape, scale } from '../expressions.ts';
import type { Sliding } from '../forms.ts';
import { gradientOf, inputOf, inputShape, outputOf, type RuleContext } from '../rule.ts';
import { inputGradient } from './convolution-forms.ts';

/** dx[i] = Σ over the windows that contain i of g / (the window's number of elements) */
export function averagePool(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const shape = inputShape(context);
  const window = windowOf(
    node,
    shape.slice(2),
    intsAttribute(node, 'kernel_shape') ?? [],
    intAttribute(node, 'ceil_mode', 0) !== 0,
  );
  const counts = windowCounts(window, intAttribute(node, 'count_include_pad', 0) !== 0);
  const g = gradientOf(context);
  const same = counts.every((count) => count === counts[0]);
  const shares = same
    ? scale(e, g, 1 / (counts[0] as number))
    : mul(
        e,
        g,
        e.constant(
          tensor(
            e.type(g).type,
            window.output,
            counts.map((count) => 1 / count),
          ),
        ),
      );
  return [spreadWindows(e, shares, shape, window)];
}

/** For each place of the window, the number of elements it averages: those in the input, or in the padded input. */
function windowCounts(
  { input, kernel, strides, dilations, padsBegin, padsEnd, output }: Window,
  includePadding: boolean,
): readonly number[] {
  const perAxis = input.map((size, axis) => {
    const begin = padsBegin[axis] as number;
    const [first, end] = includePadding ? [-begin, size + (padsEnd[axis] as number)] : [0, size];
    return range(output[axis] as number).map(
      (place) =>
        range(kernel[axis] as number).filter((tap) => {
          const position = place * (strides[axis] as number) - begin + tap * (dilations[axis] as number);
          return position >= first && position < end;
        }).length,
    );
  });
  return perAxis.reduce<readonly number[]>(
    (counts, axis) => counts.flatMap((count) => axis.map((other) => count * other)),
    [1],
  );
}

/**
 * The adjoint of summing windows. Forms: repeat (adjacent windows), pool (stride 1), transposed convolution with ones.
 */
function spreadWindows(e: Emitter, g: string, shape: readonly number[], window: Window): string {
  const { input, kernel, strides, dilations, padsBegin, output } = window;
  const [samples = 1, channels = 1] = shape;
  const dense = dilations.every((dilation) => dilation === 1);
  if (dense && kernel.every((size, axis) => size === strides[axis])) {
    const blocks = reshape(e, g, [samples, channels, ...output.flatMap((size) => [size, 1])]);
    const repeated = expand(e, blocks, [
      samples,
      channels,
      ...output.flatMap((size, axis) => [size, kernel[axis] as number]),
    ]);
    const covered = output.map((size, axis) => size * (kernel[axis] as number));
    const before = padsBegin.map((pad) => -pad);
    const after = input.map((size, axis) => size + (padsBegin[axis] as number) - (covered[axis] as number));
    return padZeros(e, reshape(e, repeated, [samples, channels, ...covered]), [0, 0, ...before], [0, 0, ...after]);
  }
  // at stride 1 the adjoint of summing windows is summing windows of g, padded by what the window extends beyond the
  // old padding
  const begins = kernel.map((size, axis) => size - 1 - (padsBegin[axis] as number));
  const ends = kernel.map(
    (_, axis) => (input[axis] as number) - (output[axis] as number) + (padsBegin[axis] as number),
  );
  const fits = kernel.every(
    (size, axis) => (begins[axis] as number) >= 0 && (ends[axis] as number) >= 0 && (ends[axis] as number) < size,
  );
  if (dense && fits && strides.every((stride) => stride === 1)) {
    const mean = e.emit('AveragePool', [g], {
      kernel_shape: ints(kernel),
      pads: ints([...begins, ...ends]),
      count_include_pad: int(1),
    });
    return scale(e, mean, product(kernel));
  }
  const images = reshape(e, g, [samples * channels, 1, ...output]);
  const ones = e.constant(tensor(e.type(g).type, [1, 1, ...kernel], new Array<number>(product(kernel)).fill(1)));
  const sliding: Sliding = { input, output, kernel, strides, dilations, padsBegin, group: 1 };
  return reshape(e, inputGradient(e, { g: images, w: ones, sliding, form: 'transposed' }), shape);
}

/** g / (elements of an image), for all elements */
export function globalAveragePool(context: RuleContext): readonly (string | undefined)[] {
  const e = context.emitter;
  const shape = inputShape(context);
  return [expand(e, scale(e, gradientOf(context), 1 / product(shape.slice(2))), shape)];
}

/** g to the elements that equal y, shared evenly among ties */
export function globalMaxPool(context: RuleContext): readonly (string | undefined)[] {
  const e = context.emitter;
  const g = gradientOf(context);
  const x = inputOf(context);
  const hits = cast(e, e.emit('Equal', [x, outputOf(context)]), e.type(g).type);
  return [mul(e, hits, div(e, g, reduceSum(e, hits, range(e.shape(x).length).slice(2))))];
}
