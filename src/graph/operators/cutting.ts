// Operators that slice values along axes, and that pad them.

import { intAttribute, type Node, stringAttribute } from '../graph.ts';
import { allocate, elementCount, type Tensor, type ValueType } from '../tensor.ts';
import {
  anyType,
  check,
  constantIntegers,
  define,
  type Inputs,
  indexTypes,
  int64Only,
  normalizeAxes,
  normalizeAxis,
  required,
  shapeText,
  typeText,
} from './define.ts';
import type { OperatorDefinition } from './definition.ts';
import { gather, mappedOffsets, offsets, stridesOf } from './indexing.ts';

export const cutting: Readonly<Record<'Pad' | 'Slice' | 'Split', OperatorDefinition>> = {
  Pad: define({
    inputs: [2, 4],
    types: [anyType, int64Only, anyType, indexTypes],
    sameType: [2],
    attributes: { mode: 'string' },
    constantInputs: [1, 3],
    infer(node, inputs, constants) {
      const { type, shape } = required(inputs, 0);
      const [begins, ends] = paddings(node, inputs, constants);
      const padded = shape.map((dimension, axis) => dimension + (begins[axis] as number) + (ends[axis] as number));
      check(
        padded.every((dimension) => dimension >= 0),
        node,
        () => `cuts more than there is from ${shapeText(shape)} with pads ${shapeText(begins)} and ${shapeText(ends)}`,
      );
      check(
        !inputs[2] || elementCount(inputs[2].shape) === 1,
        node,
        () => `wants a scalar to pad with, not ${inputs[2] && typeText(inputs[2])}`,
      );
      checkPadMode(node, shape, begins, ends);
      return [{ type, shape: padded }];
    },
    evaluate(node, inputs, [result]) {
      const [begins] = paddings(node, inputs, inputs);
      return [
        pad(
          required(inputs, 0),
          begins,
          (result as ValueType).shape,
          stringAttribute(node, 'mode', 'constant'),
          inputs[2],
        ),
      ];
    },
  }),
  Slice: define({
    inputs: [3, 5],
    types: [anyType, indexTypes],
    constantInputs: [1, 2, 3, 4],
    infer(node, inputs, constants) {
      const { type, shape } = required(inputs, 0);
      return [{ type, shape: sliceRanges(node, shape, inputs, constants).map(({ count }) => count) }];
    },
    evaluate(node, inputs, [result]) {
      const x = required(inputs, 0);
      const strides = stridesOf(x.shape);
      const ranges = sliceRanges(node, x.shape, inputs, inputs);
      const start = ranges.reduce((sum, range, axis) => sum + range.start * (strides[axis] as number), 0);
      const steps = ranges.map((range, axis) => range.step * (strides[axis] as number));
      const { shape } = result as ValueType;
      return [gather(x, shape, offsets(shape, steps, start))];
    },
  }),
  Split: define({
    inputs: [1, 2],
    outputs: [1, Number.POSITIVE_INFINITY],
    types: [anyType, int64Only],
    attributes: { axis: 'int', num_outputs: 'int' },
    constantInputs: [1],
    infer(node, inputs, constants) {
      const { type, shape } = required(inputs, 0);
      const axis = normalizeAxis(node, intAttribute(node, 'axis', 0), shape.length);
      return splitSizes(node, shape[axis] as number, inputs, constants).map((size) => ({
        type,
        shape: shape.with(axis, size),
      }));
    },
    evaluate(node, inputs, types) {
      const x = required(inputs, 0);
      const axis = normalizeAxis(node, intAttribute(node, 'axis', 0), x.shape.length);
      const strides = stridesOf(x.shape);
      let start = 0;
      return types.map(({ shape }) => {
        const part = gather(x, shape, offsets(shape, strides, start * (strides[axis] as number)));
        start += shape[axis] as number;
        return part;
      });
    },
  }),
};

interface Range {
  readonly start: number;
  readonly step: number;
  readonly count: number;
}

/**
 * The range that Slice takes of each axis, with starts and ends clamped by ONNX's rule: a start before the first
 * element becomes the first, also for negative steps (unlike numpy).
 */
function sliceRanges(
  node: Node,
  shape: readonly number[],
  inputs: Inputs<ValueType>,
  constants: Inputs<Tensor>,
): readonly Range[] {
  const starts = constantIntegers(node, inputs, constants, 1) ?? [];
  const ends = constantIntegers(node, inputs, constants, 2) ?? [];
  const axes = normalizeAxes(
    node,
    constantIntegers(node, inputs, constants, 3) ?? starts.map((_, axis) => axis),
    shape.length,
  );
  const steps = constantIntegers(node, inputs, constants, 4) ?? starts.map(() => 1);
  const agree = starts.length === ends.length && starts.length === axes.length && starts.length === steps.length;
  check(
    agree,
    node,
    () =>
      `has ${starts.length} starts, ${ends.length} ends, ${axes.length} axes and ${steps.length} steps; they ` +
      'must be as many',
  );
  return shape.map((dimension, axis) => {
    const position = axes.indexOf(axis);
    if (position < 0) return { start: 0, step: 1, count: dimension };
    const step = steps[position] as number;
    check(step !== 0, node, () => `has step 0 on axis ${axis}`);
    const fromStart = (index: number): number => (index < 0 ? index + dimension : index);
    const clamp = (index: number, low: number, high: number): number => Math.max(low, Math.min(index, high));
    const start = clamp(fromStart(starts[position] as number), 0, step > 0 ? dimension : Math.max(0, dimension - 1));
    const end = clamp(fromStart(ends[position] as number), step > 0 ? 0 : -1, step > 0 ? dimension : dimension - 1);
    const count = dimension === 0 ? 0 : Math.max(0, Math.ceil((end - start) / step));
    return { start, step, count };
  });
}

function splitSizes(
  node: Node,
  length: number,
  inputs: Inputs<ValueType>,
  constants: Inputs<Tensor>,
): readonly number[] {
  const given = constantIntegers(node, inputs, constants, 1);
  const parts = node.outputs.length;
  const stated = node.attributes['num_outputs'] !== undefined;
  check(!given || !stated, node, () => 'has both an input "split" and an attribute "num_outputs"; keep one');
  if (given) {
    const fits =
      given.length === parts &&
      given.every((size) => size >= 0) &&
      given.reduce((sum, size) => sum + size, 0) === length;
    check(
      fits,
      node,
      () => `splits ${length} elements into ${parts} outputs of sizes ${shapeText(given)}, which does not add up`,
    );
    return given;
  }
  check(
    !stated || intAttribute(node, 'num_outputs', 0) === parts,
    node,
    () => `has ${parts} outputs and num_outputs = ${intAttribute(node, 'num_outputs', 0)}`,
  );
  // Equal parts; the last one is smaller if the length is not divisible.
  const size = Math.ceil(length / parts);
  const last = length - size * (parts - 1);
  check(last >= 0, node, () => `cannot split ${length} elements into ${parts} parts`);
  return Array.from({ length: parts }, (_, part) => (part === parts - 1 ? last : size));
}

/** Elements added before and after each axis (removed where negative). */
function paddings(
  node: Node,
  inputs: Inputs<ValueType>,
  constants: Inputs<Tensor>,
): readonly [readonly number[], readonly number[]] {
  const { shape } = required(inputs, 0);
  const pads = constantIntegers(node, inputs, constants, 1) ?? [];
  const axes = normalizeAxes(
    node,
    constantIntegers(node, inputs, constants, 3) ?? shape.map((_, axis) => axis),
    shape.length,
  );
  check(
    pads.length === 2 * axes.length,
    node,
    () => `has ${pads.length} pads for ${axes.length} axes; it needs two for each`,
  );
  const pick = (offset: number): readonly number[] =>
    shape.map((_, axis) => (axes.includes(axis) ? (pads[axes.indexOf(axis) + offset] as number) : 0));
  return [pick(0), pick(axes.length)];
}

function checkPadMode(node: Node, shape: readonly number[], begins: readonly number[], ends: readonly number[]): void {
  const mode = stringAttribute(node, 'mode', 'constant');
  check(
    ['constant', 'reflect', 'edge', 'wrap'].includes(mode),
    node,
    () => `has mode "${mode}"; it may be "constant", "reflect", "edge" or "wrap"`,
  );
  if (mode === 'constant') return;
  shape.forEach((dimension, axis) => {
    const most = Math.max(begins[axis] as number, ends[axis] as number);
    check(most <= 0 || dimension > 0, node, () => `pads an empty axis ${axis} in mode "${mode}"`);
    check(
      mode !== 'reflect' || most < Math.max(dimension, 1),
      node,
      () => `reflects ${most} elements on axis ${axis}, which has only ${dimension}; pad fewer than there are`,
    );
  });
}

/** Pads by reading: each axis has a map from the result's index to the input's; −1 for the constant. */
function pad(
  x: Tensor,
  begins: readonly number[],
  shape: readonly number[],
  mode: string,
  value: Tensor | undefined,
): Tensor {
  const strides = stridesOf(x.shape);
  if (mode === 'constant') {
    const data = allocate(x.type, elementCount(shape)) as Float64Array;
    if (value) data.fill(value.data[0] as number);
    // The box of the input that the result contains, as offsets in both.
    const first = begins.map((begin) => Math.max(0, -begin));
    const box = x.shape.map((dimension, axis) =>
      Math.max(0, Math.min(dimension, (shape[axis] as number) - (begins[axis] as number)) - (first[axis] as number)),
    );
    const resultStrides = stridesOf(shape);
    const from = offsets(box, strides, dot(first, strides));
    const to = offsets(
      box,
      resultStrides,
      dot(
        begins.map((begin) => Math.max(0, begin)),
        resultStrides,
      ),
    );
    for (let index = 0; index < to.length; index++) data[to[index] as number] = x.data[from[index] as number] as number;
    return { type: x.type, shape, data };
  }
  const maps = shape.map((dimension, axis) => {
    const length = x.shape[axis] as number;
    return Int32Array.from(
      { length: dimension },
      (_, index) => padSource(index - (begins[axis] as number), length, mode) * (strides[axis] as number),
    );
  });
  return gather(x, shape, mappedOffsets(maps));
}

/** The input index that a padded position reads. */
function padSource(index: number, length: number, mode: string): number {
  if (mode === 'edge') return Math.min(Math.max(index, 0), length - 1);
  if (mode === 'wrap') return ((index % length) + length) % length;
  const period = Math.max(1, 2 * (length - 1));
  const phase = ((index % period) + period) % period;
  return Math.min(phase, period - phase);
}

function dot(a: readonly number[], b: readonly number[]): number {
  return a.reduce((sum, value, index) => sum + value * (b[index] as number), 0);
}
