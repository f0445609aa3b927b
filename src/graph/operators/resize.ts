// Resize: every axis that changes is resampled by itself; each new element is a weighted sum of a few old ones. The
// table of weights (`resampledAxes`) defines it completely; the gradient applies the transposed table.

import { floatAttribute, intAttribute, intsAttribute, type Node, stringAttribute } from '../graph.ts';
import type { Tensor, ValueType } from '../tensor.ts';
import {
  check,
  constantIntegers,
  define,
  floatTypes,
  type Inputs,
  int64Only,
  normalizeAxes,
  numericTypes,
  required,
} from './define.ts';
import type { OperatorDefinition } from './definition.ts';
import { span } from './indexing.ts';
import { type Numbers, plainNumbers, storePlain } from './numbers.ts';

/** An old element and its weight in a new one. */
export interface Tap {
  readonly index: number;
  readonly weight: number;
}

/** How one axis is resampled. */
export interface ResampledAxis {
  readonly axis: number;
  readonly input: number;
  readonly output: number;
  /**
   * For each new element, the weighted old ones that it is the sum of; undefined if it lies outside the region
   * (extrapolation_value).
   */
  readonly taps: readonly (readonly Tap[] | undefined)[];
}

/** The attributes of Resize, with their types. */
export const resizeAttributes = {
  antialias: 'int',
  axes: 'ints',
  coordinate_transformation_mode: 'string',
  cubic_coeff_a: 'float',
  exclude_outside: 'int',
  extrapolation_value: 'float',
  keep_aspect_ratio_policy: 'string',
  mode: 'string',
  nearest_mode: 'string',
} as const;

export const resize: OperatorDefinition = define({
  inputs: [1, 4],
  types: [numericTypes, floatTypes, floatTypes, int64Only],
  attributes: resizeAttributes,
  constantInputs: [1, 2, 3],
  infer(node, inputs, constants) {
    const { type, shape } = required(inputs, 0);
    const lengths = [...shape];
    for (const { axis, output } of resampledAxes(node, shape, constants)) lengths[axis] = output;
    return [{ type, shape: lengths }];
  },
  evaluate(node, inputs, [result]) {
    const x = required(inputs, 0);
    const outside = floatAttribute(node, 'extrapolation_value', 0);
    let shape = x.shape;
    let values = plainNumbers(x);
    // Extrapolated elements last: a later axis must not mix them with others.
    const axes = resampledAxes(node, shape, inputs);
    for (const axis of axes) {
      values = resample(values, shape, axis);
      shape = shape.with(axis.axis, axis.output);
    }
    for (const { axis, output, taps } of axes) {
      const inner = span(shape, axis + 1);
      if (taps.some((tap) => tap === undefined))
        values = values.map((value, place) =>
          taps[Math.floor(place / inner) % output] === undefined ? outside : value,
        );
    }
    return [storePlain((result as ValueType).type, shape, values)];
  },
});

function resample(values: Numbers, shape: readonly number[], { axis, input, output, taps }: ResampledAxis): Numbers {
  const [outer, inner] = [span(shape, 0, axis), span(shape, axis + 1)];
  const results = new Float64Array(outer * output * inner);
  for (let block = 0; block < outer; block++) {
    taps.forEach((list, place) => {
      const to = (block * output + place) * inner;
      for (const { index, weight } of list ?? []) {
        const from = (block * input + index) * inner;
        for (let lane = 0; lane < inner; lane++)
          (results[to + lane] as number) += weight * (values[from + lane] as number);
      }
    });
  }
  return results;
}

/** The axes that change, with their weights. `constants`: the node's inputs; those after the first must be known. */
export function resampledAxes(
  node: Node,
  shape: readonly number[],
  constants: Inputs<Tensor>,
): readonly ResampledAxis[] {
  const axes = normalizeAxes(node, intsAttribute(node, 'axes') ?? shape.map((_, axis) => axis), shape.length);
  const roi = values(node, constants, 1);
  return sizesOf(node, axes, shape, constants).flatMap(({ axis, scale, output }, position) => {
    const input = shape[axis] as number;
    const crop = stringAttribute(node, 'coordinate_transformation_mode', 'half_pixel') === 'tf_crop_and_resize';
    check(!crop || roi?.length === 2 * axes.length, node, () => 'crops without a region (its input 1)');
    if (scale === 1 && output === input && !crop) return [];
    check(input > 0, node, () => `cannot resize an axis of ${input} elements`);
    const region = [roi?.[position] ?? 0, roi?.[position + axes.length] ?? 1] as const;
    const taps = Array.from({ length: output }, (_, place) => {
      const old = oldCoordinate(node, place, { input, output, scale, region });
      if (crop && (old < 0 || old > input - 1)) return undefined;
      return tapsAt(node, old, scale, input);
    });
    return [{ axis, input, output, taps }];
  });
}

function values(node: Node, constants: Inputs<Tensor>, index: number): readonly number[] | undefined {
  const known = constantIntegers(
    node,
    node.inputs.map((name) => (name === '' ? undefined : { type: 'int64', shape: [] })),
    constants,
    index,
  );
  return known === undefined || known.length === 0 ? undefined : known;
}

interface AxisSize {
  readonly axis: number;
  readonly scale: number;
  readonly output: number;
}

/** Scales and lengths of the axes, from input 2 (scales) or 3 (sizes). */
function sizesOf(
  node: Node,
  axes: readonly number[],
  shape: readonly number[],
  constants: Inputs<Tensor>,
): readonly AxisSize[] {
  const [scales, sizes] = [values(node, constants, 2), values(node, constants, 3)];
  const given = scales ?? sizes;
  check(given && !(scales && sizes), node, () => 'needs either scales (input 2) or sizes (input 3)');
  check(given.length === axes.length, node, () => `has ${given.length} scales or sizes for ${axes.length} axes`);
  check(
    given.every((value) => value > 0),
    node,
    () => `has scales or sizes ${given.join(', ')}; they must be positive`,
  );
  const lengths = axes.map((axis) => shape[axis] as number);
  if (scales)
    return axes.map((axis, index) => ({
      axis,
      scale: scales[index] as number,
      output: Math.floor((lengths[index] as number) * (scales[index] as number)),
    }));
  const policy = stringAttribute(node, 'keep_aspect_ratio_policy', 'stretch');
  const ratios = given.map((size, index) => size / (lengths[index] as number));
  if (policy === 'stretch')
    return axes.map((axis, index) => ({ axis, scale: ratios[index] as number, output: given[index] as number }));
  check(
    policy === 'not_larger' || policy === 'not_smaller',
    node,
    () => `has keep_aspect_ratio_policy "${policy}", which ONNX does not know`,
  );
  const scale = policy === 'not_larger' ? Math.min(...ratios) : Math.max(...ratios);
  return axes.map((axis, index) => ({ axis, scale, output: Math.floor(scale * (lengths[index] as number) + 0.5) }));
}

/** The coordinate of a new element among the old ones. */
function oldCoordinate(
  node: Node,
  place: number,
  {
    input,
    output,
    scale,
    region: [start, end],
  }: { input: number; output: number; scale: number; region: readonly [number, number] },
): number {
  const mode = stringAttribute(node, 'coordinate_transformation_mode', 'half_pixel');
  switch (mode) {
    case 'half_pixel':
      return (place + 0.5) / scale - 0.5;
    case 'half_pixel_symmetric':
      return (input / 2) * (1 - output / (scale * input)) + (place + 0.5) / scale - 0.5;
    case 'pytorch_half_pixel':
      return output > 1 ? (place + 0.5) / scale - 0.5 : 0;
    case 'align_corners':
      return output > 1 ? (place * (input - 1)) / (output - 1) : 0;
    case 'asymmetric':
      return place / scale;
    case 'tf_half_pixel_for_nn':
      return (place + 0.5) / scale;
    case 'tf_crop_and_resize':
      return output > 1
        ? start * (input - 1) + (place * (end - start) * (input - 1)) / (output - 1)
        : ((start + end) * (input - 1)) / 2;
    default:
      return check(
        false,
        node,
        () => `has coordinate_transformation_mode "${mode}", which ONNX does not know`,
      ) as never;
  }
}

/** The old elements and weights of a new one at `old`; beyond the ends the outermost element is repeated. */
function tapsAt(node: Node, old: number, scale: number, length: number): readonly Tap[] {
  const mode = stringAttribute(node, 'mode', 'nearest');
  if (mode === 'nearest') return [{ index: clamp(nearest(node, old), length), weight: 1 }];
  check(
    mode === 'linear' || mode === 'cubic',
    node,
    () => `has mode "${mode}"; it may be "nearest", "linear" or "cubic"`,
  );
  const a = floatAttribute(node, 'cubic_coeff_a', -0.75);
  const kernel =
    mode === 'linear' ? (distance: number) => Math.max(0, 1 - distance) : (distance: number) => cubic(distance, a);
  const antialias = intAttribute(node, 'antialias', 0) !== 0;
  const stretch = antialias ? Math.min(1, scale) : 1;
  const reach = (mode === 'linear' ? 1 : 2) / stretch;
  const inside = intAttribute(node, 'exclude_outside', 0) !== 0;
  const shares = new Map<number, number>();
  for (let index = Math.floor(old - reach) + 1; index <= Math.ceil(old + reach) - 1 || shares.size === 0; index++) {
    if (inside && (index < 0 || index >= length)) continue;
    const target = clamp(index, length);
    shares.set(target, (shares.get(target) ?? 0) + kernel(Math.abs(index - old) * stretch));
  }
  const total = [...shares.values()].reduce((sum, share) => sum + share, 0);
  return [...shares].flatMap(([index, share]) => (share === 0 ? [] : [{ index, weight: share / total }]));
}

function clamp(index: number, length: number): number {
  return Math.max(0, Math.min(length - 1, index));
}

function nearest(node: Node, old: number): number {
  const mode = stringAttribute(node, 'nearest_mode', 'round_prefer_floor');
  switch (mode) {
    case 'round_prefer_floor':
      return Math.ceil(old - 0.5);
    case 'round_prefer_ceil':
      return Math.floor(old + 0.5);
    case 'floor':
      return Math.floor(old);
    case 'ceil':
      return Math.ceil(old);
    default:
      return check(false, node, () => `has nearest_mode "${mode}", which ONNX does not know`) as never;
  }
}

/** Keys' kernel: 1 at 0, 0 at 1 and from 2 on. */
function cubic(x: number, a: number): number {
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}
