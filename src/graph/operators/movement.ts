// Operators that move elements without looking at them, under shapes that are known before running: reshaping, transposing,
// joining, cutting, repeating, padding.

import { type Node, intAttribute, intsAttribute, stringAttribute } from '../graph.ts';
import { type Tensor, type ValueType, allocate, elementCount } from '../tensor.ts';
import {
  type Inputs,
  boolOnly,
  check,
  constantIntegers,
  define,
  fail,
  indexTypes,
  int64Only,
  normalizeAxes,
  normalizeAxis,
  numericTypes,
  required,
  shapeText,
  typeText,
} from './define.ts';
import type { OperatorDefinition } from './definition.ts';
import { broadcastOffsets, broadcastShapes, gather, mappedOffsets, offsets, reshaped, scatter, span, stridesOf, zeros } from './indexing.ts';
import type { ShapeName } from './names.ts';

type MovementName = 'Concat' | 'DepthToSpace' | 'Expand' | 'Flatten' | 'Pad' | 'Reshape' | 'Slice' | 'SpaceToDepth' | 'Split' | 'Squeeze' | 'Tile' | 'Transpose' | 'Trilu' | 'Unsqueeze';

const anyType = [...numericTypes, ...boolOnly];

export const movement: Readonly<Record<MovementName & ShapeName, OperatorDefinition>> = {
  Concat: define({
    inputs: [1, Number.POSITIVE_INFINITY],
    sameType: 'all',
    attributes: { axis: 'int' },
    infer: (node, inputs) => [concatenated(node, inputs)],
    evaluate(node, inputs, [result]) {
      const { type, shape } = result as ValueType;
      const axis = normalizeAxis(node, intAttribute(node, 'axis', 0), shape.length);
      const output = zeros(type, shape);
      const strides = stridesOf(shape);
      let start = 0;
      for (const input of inputs) {
        if (input === undefined) continue;
        scatter(input, output.data, offsets(input.shape, strides, start * (strides[axis] as number)));
        start += input.shape[axis] as number;
      }
      return [output];
    },
  }),
  DepthToSpace: define({
    inputs: [1, 1],
    attributes: { blocksize: 'int', mode: 'string' },
    infer(node, inputs) {
      const [n, c, h, w, block] = blockShape(node, required(inputs, 0));
      check(c % (block * block) === 0, node, () => `has ${c} channels, which blocksize ${block} squared does not divide`);
      return [{ type: required(inputs, 0).type, shape: [n, c / (block * block), h * block, w * block] }];
    },
    evaluate(node, inputs, [result]) {
      const [n, c, h, w, block] = blockShape(node, required(inputs, 0));
      const mode = stringAttribute(node, 'mode', 'DCR');
      check(mode === 'DCR' || mode === 'CRD', node, () => `has mode "${mode}"; it may be "DCR" or "CRD"`);
      const channels = c / (block * block);
      // The result in axes (N, C, H, block, W, block); the names of the input's axes are in the order of the mode.
      const inner = mode === 'DCR' ? [n, block, block, channels, h, w] : [n, channels, block, block, h, w];
      const order = mode === 'DCR' ? [0, 3, 4, 1, 5, 2] : [0, 1, 4, 2, 5, 3];
      return [permuted(reshaped(required(inputs, 0), inner), order, (result as ValueType).shape)];
    },
  }),
  Expand: define({
    inputs: [2, 2],
    types: [anyType, int64Only],
    constantInputs: [1],
    infer(node, inputs, constants) {
      const { type, shape } = required(inputs, 0);
      return [{ type, shape: broadcastShapes(node, [shape, dimensions(node, constantIntegers(node, inputs, constants, 1) ?? [])]) }];
    },
    evaluate(_node, inputs, [result]) {
      const x = required(inputs, 0);
      const { shape } = result as ValueType;
      return [gather(x, shape, broadcastOffsets(x.shape, shape))];
    },
  }),
  Flatten: define({
    inputs: [1, 1],
    attributes: { axis: 'int' },
    infer(node, inputs) {
      const { type, shape } = required(inputs, 0);
      const axis = intAttribute(node, 'axis', 1);
      check(axis >= -shape.length && axis <= shape.length, node, () => `has axis ${axis}, which ${shapeText(shape)} does not have`);
      const cut = axis < 0 ? axis + shape.length : axis;
      return [{ type, shape: [span(shape, 0, cut), span(shape, cut)] }];
    },
    evaluate: (_node, inputs, [result]) => [reshaped(required(inputs, 0), (result as ValueType).shape)],
  }),
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
      check(padded.every((dimension) => dimension >= 0), node, () => `cuts more than there is from ${shapeText(shape)} with pads ${shapeText(begins)} and ${shapeText(ends)}`);
      check(!inputs[2] || elementCount(inputs[2].shape) === 1, node, () => `wants a scalar to pad with, not ${inputs[2] && typeText(inputs[2])}`);
      checkPadMode(node, shape, begins, ends);
      return [{ type, shape: padded }];
    },
    evaluate(node, inputs, [result]) {
      const [begins] = paddings(node, inputs, inputs);
      return [pad(required(inputs, 0), begins, (result as ValueType).shape, stringAttribute(node, 'mode', 'constant'), inputs[2])];
    },
  }),
  Reshape: define({
    inputs: [2, 2],
    types: [anyType, int64Only],
    attributes: { allowzero: 'int' },
    constantInputs: [1],
    infer(node, inputs, constants) {
      const { type, shape } = required(inputs, 0);
      return [{ type, shape: reshapeTarget(node, shape, constantIntegers(node, inputs, constants, 1) ?? []) }];
    },
    evaluate: (_node, inputs, [result]) => [reshaped(required(inputs, 0), (result as ValueType).shape)],
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
  SpaceToDepth: define({
    inputs: [1, 1],
    attributes: { blocksize: 'int' },
    infer(node, inputs) {
      const [n, c, h, w, block] = blockShape(node, required(inputs, 0));
      check(h % block === 0 && w % block === 0, node, () => `has an image of ${h}x${w}, which blocksize ${block} does not divide`);
      return [{ type: required(inputs, 0).type, shape: [n, c * block * block, h / block, w / block] }];
    },
    evaluate(node, inputs, [result]) {
      const [n, c, h, w, block] = blockShape(node, required(inputs, 0));
      const split = reshaped(required(inputs, 0), [n, c, h / block, block, w / block, block]);
      return [permuted(split, [0, 3, 5, 1, 2, 4], (result as ValueType).shape)];
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
      return splitSizes(node, shape[axis] as number, inputs, constants).map((size) => ({ type, shape: shape.with(axis, size) }));
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
  Squeeze: define({
    inputs: [1, 2],
    types: [anyType, int64Only],
    constantInputs: [1],
    infer(node, inputs, constants) {
      const { type, shape } = required(inputs, 0);
      const given = constantIntegers(node, inputs, constants, 1);
      if (given === undefined) return [{ type, shape: shape.filter((dimension) => dimension !== 1) }];
      const axes = normalizeAxes(node, given, shape.length);
      for (const axis of axes) check(shape[axis] === 1, node, () => `squeezes axis ${axis} of ${shapeText(shape)}, which is not 1`);
      return [{ type, shape: shape.filter((_, axis) => !axes.includes(axis)) }];
    },
    evaluate: (_node, inputs, [result]) => [reshaped(required(inputs, 0), (result as ValueType).shape)],
  }),
  Tile: define({
    inputs: [2, 2],
    types: [anyType, int64Only],
    constantInputs: [1],
    infer(node, inputs, constants) {
      const { type, shape } = required(inputs, 0);
      const repeats = dimensions(node, constantIntegers(node, inputs, constants, 1) ?? []);
      check(repeats.length === shape.length, node, () => `has ${repeats.length} repeats for an input of shape ${shapeText(shape)}`);
      return [{ type, shape: shape.map((dimension, axis) => dimension * (repeats[axis] as number)) }];
    },
    evaluate(_node, inputs, [result]) {
      const x = required(inputs, 0);
      const { shape } = result as ValueType;
      const strides = stridesOf(x.shape);
      const maps = shape.map((dimension, axis) => Int32Array.from({ length: dimension }, (_, index) => (index % (x.shape[axis] as number)) * (strides[axis] as number)));
      return [gather(x, shape, mappedOffsets(maps))];
    },
  }),
  Transpose: define({
    inputs: [1, 1],
    attributes: { perm: 'ints' },
    infer(node, inputs) {
      const { type, shape } = required(inputs, 0);
      return [{ type, shape: permutationOf(node, shape).map((axis) => shape[axis] as number) }];
    },
    evaluate: (node, inputs, [result]) => {
      const x = required(inputs, 0);
      return [permuted(x, permutationOf(node, x.shape), (result as ValueType).shape)];
    },
  }),
  Trilu: define({
    inputs: [1, 2],
    types: [anyType, int64Only],
    attributes: { upper: 'int' },
    infer(node, inputs) {
      const { type, shape } = required(inputs, 0);
      check(shape.length >= 2, node, () => `wants matrices, not ${shapeText(shape)}`);
      check(!inputs[1] || elementCount(inputs[1].shape) === 1, node, () => `wants a scalar k, not ${inputs[1] && typeText(inputs[1])}`);
      return [{ type, shape }];
    },
    evaluate(node, inputs) {
      const x = required(inputs, 0);
      return [triangle(x, Number(inputs[1]?.data[0] ?? 0), intAttribute(node, 'upper', 1) !== 0)];
    },
  }),
  Unsqueeze: define({
    inputs: [2, 2],
    types: [anyType, int64Only],
    constantInputs: [1],
    infer(node, inputs, constants) {
      const { type, shape } = required(inputs, 0);
      const given = constantIntegers(node, inputs, constants, 1) ?? [];
      const rank = shape.length + given.length;
      const axes = normalizeAxes(node, given, rank);
      const rest = shape.values();
      return [{ type, shape: Array.from({ length: rank }, (_, axis) => (axes.includes(axis) ? 1 : (rest.next().value as number))) }];
    },
    evaluate: (_node, inputs, [result]) => [reshaped(required(inputs, 0), (result as ValueType).shape)],
  }),
};

/** The tensor with its axes in another order. */
function permuted(x: Tensor, order: readonly number[], resultShape: readonly number[]): Tensor {
  const strides = stridesOf(x.shape);
  const table = offsets(order.map((axis) => x.shape[axis] as number), order.map((axis) => strides[axis] as number));
  return gather(x, resultShape, table);
}

function permutationOf(node: Node, shape: readonly number[]): readonly number[] {
  const order = intsAttribute(node, 'perm') ?? shape.map((_, axis) => shape.length - 1 - axis);
  const valid = order.length === shape.length && shape.every((_, axis) => order.includes(axis));
  check(valid, node, () => `has perm ${shapeText(order)}, which is no order of the axes of ${shapeText(shape)}`);
  return order;
}

/** A list of dimensions from the model: no negative ones. */
function dimensions(node: Node, list: readonly number[]): readonly number[] {
  check(list.every((dimension) => dimension >= 0), node, () => `is given ${shapeText(list)}, which has a negative dimension`);
  return list;
}

function concatenated(node: Node, inputs: Inputs<ValueType>): ValueType {
  check(node.attributes['axis'], node, () => 'lacks its attribute "axis"');
  const { type, shape } = required(inputs, 0);
  const axis = normalizeAxis(node, intAttribute(node, 'axis', 0), shape.length);
  let length = 0;
  for (const input of inputs) {
    check(input, node, () => 'lacks one of its inputs');
    const fits = input.shape.length === shape.length && input.shape.every((dimension, other) => other === axis || dimension === shape[other]);
    check(fits, node, () => `joins ${shapeText(shape)} and ${shapeText(input.shape)} along axis ${axis}; all other dimensions must be equal`);
    length += input.shape[axis] as number;
  }
  return { type, shape: shape.with(axis, length) };
}

function blockShape(node: Node, { shape }: ValueType): readonly [number, number, number, number, number] {
  check(shape.length === 4, node, () => `wants an input [N, C, H, W], not ${shapeText(shape)}`);
  const block = intAttribute(node, 'blocksize', 0);
  check(block > 0, node, () => 'needs a positive attribute "blocksize"');
  return [...(shape as [number, number, number, number]), block];
}

/** Reshape's target: 0 copies the input's dimension (unless `allowzero`), one −1 takes what is left. */
function reshapeTarget(node: Node, shape: readonly number[], target: readonly number[]): readonly number[] {
  const allowZero = intAttribute(node, 'allowzero', 0) !== 0;
  const problem = (): never => fail(node, `cannot reshape ${shapeText(shape)} to ${shapeText(target)}`);
  const result = target.map((dimension, axis) => {
    if (dimension < -1) return problem();
    return dimension === 0 && !allowZero ? (shape[axis] ?? problem()) : dimension;
  });
  const free = result.indexOf(-1);
  if (free >= 0) {
    const others = result.reduce((product, dimension, axis) => (axis === free ? product : product * dimension), 1);
    if (others === 0 || others < 0 || elementCount(shape) % others !== 0) problem();
    result[free] = elementCount(shape) / others;
  }
  return elementCount(result) === elementCount(shape) ? result : problem();
}

interface Range {
  readonly start: number;
  readonly step: number;
  readonly count: number;
}

/** What Slice takes of each axis, with starts and ends clamped as numpy clamps them. */
function sliceRanges(node: Node, shape: readonly number[], inputs: Inputs<ValueType>, constants: Inputs<Tensor>): readonly Range[] {
  const starts = constantIntegers(node, inputs, constants, 1) ?? [];
  const ends = constantIntegers(node, inputs, constants, 2) ?? [];
  const axes = normalizeAxes(node, constantIntegers(node, inputs, constants, 3) ?? starts.map((_, axis) => axis), shape.length);
  const steps = constantIntegers(node, inputs, constants, 4) ?? starts.map(() => 1);
  const agree = starts.length === ends.length && starts.length === axes.length && starts.length === steps.length;
  check(agree, node, () => `has ${starts.length} starts, ${ends.length} ends, ${axes.length} axes and ${steps.length} steps; they must be as many`);
  return shape.map((dimension, axis) => {
    const position = axes.indexOf(axis);
    if (position < 0) return { start: 0, step: 1, count: dimension };
    const step = steps[position] as number;
    check(step !== 0, node, () => `has step 0 on axis ${axis}`);
    const clamp = (index: number): number => {
      const absolute = index < 0 ? index + dimension : index;
      return step > 0 ? Math.min(Math.max(absolute, 0), dimension) : Math.min(Math.max(absolute, -1), dimension - 1);
    };
    const start = clamp(starts[position] as number);
    const count = Math.max(0, Math.ceil((clamp(ends[position] as number) - start) / step));
    return { start, step, count };
  });
}

function splitSizes(node: Node, length: number, inputs: Inputs<ValueType>, constants: Inputs<Tensor>): readonly number[] {
  const given = constantIntegers(node, inputs, constants, 1);
  const parts = node.outputs.length;
  const stated = node.attributes['num_outputs'] !== undefined;
  check(!given || !stated, node, () => 'has both an input "split" and an attribute "num_outputs"; keep one');
  if (given) {
    const fits = given.length === parts && given.every((size) => size >= 0) && given.reduce((sum, size) => sum + size, 0) === length;
    check(fits, node, () => `splits ${length} elements into ${parts} outputs of sizes ${shapeText(given)}, which does not add up`);
    return given;
  }
  check(!stated || intAttribute(node, 'num_outputs', 0) === parts, node, () => `has ${parts} outputs and num_outputs = ${intAttribute(node, 'num_outputs', 0)}`);
  // Equal parts, the last one smaller where they do not come out even.
  const size = Math.ceil(length / parts);
  const last = length - size * (parts - 1);
  check(last >= 0, node, () => `cannot split ${length} elements into ${parts} parts`);
  return Array.from({ length: parts }, (_, part) => (part === parts - 1 ? last : size));
}

/** Elements added before and after each axis (removed where negative). */
function paddings(node: Node, inputs: Inputs<ValueType>, constants: Inputs<Tensor>): readonly [readonly number[], readonly number[]] {
  const { shape } = required(inputs, 0);
  const pads = constantIntegers(node, inputs, constants, 1) ?? [];
  const axes = normalizeAxes(node, constantIntegers(node, inputs, constants, 3) ?? shape.map((_, axis) => axis), shape.length);
  check(pads.length === 2 * axes.length, node, () => `has ${pads.length} pads for ${axes.length} axes; it needs two for each`);
  const pick = (offset: number): readonly number[] => shape.map((_, axis) => (axes.includes(axis) ? (pads[axes.indexOf(axis) + offset] as number) : 0));
  return [pick(0), pick(axes.length)];
}

function checkPadMode(node: Node, shape: readonly number[], begins: readonly number[], ends: readonly number[]): void {
  const mode = stringAttribute(node, 'mode', 'constant');
  check(['constant', 'reflect', 'edge', 'wrap'].includes(mode), node, () => `has mode "${mode}"; it may be "constant", "reflect", "edge" or "wrap"`);
  if (mode === 'constant') return;
  shape.forEach((dimension, axis) => {
    const most = Math.max(begins[axis] as number, ends[axis] as number);
    check(most <= 0 || dimension > 0, node, () => `pads an empty axis ${axis} in mode "${mode}"`);
    check(mode !== 'reflect' || most < Math.max(dimension, 1), node, () => `reflects ${most} elements on axis ${axis}, which has only ${dimension}; pad fewer than there are`);
  });
}

/** Pads by reading: each axis has a map from the result's index to the input's; −1 where the constant stands. */
function pad(x: Tensor, begins: readonly number[], shape: readonly number[], mode: string, value: Tensor | undefined): Tensor {
  const strides = stridesOf(x.shape);
  if (mode === 'constant') {
    const data = allocate(x.type, elementCount(shape)) as Float64Array;
    if (value) data.fill(value.data[0] as number);
    // The box of the input that the result still shows, as offsets in both.
    const first = begins.map((begin) => Math.max(0, -begin));
    const box = x.shape.map((dimension, axis) => Math.max(0, Math.min(dimension, (shape[axis] as number) - (begins[axis] as number)) - (first[axis] as number)));
    const resultStrides = stridesOf(shape);
    const from = offsets(box, strides, dot(first, strides));
    const to = offsets(box, resultStrides, dot(begins.map((begin) => Math.max(0, begin)), resultStrides));
    for (let index = 0; index < to.length; index++) data[to[index] as number] = x.data[from[index] as number] as number;
    return { type: x.type, shape, data };
  }
  const maps = shape.map((dimension, axis) => {
    const length = x.shape[axis] as number;
    return Int32Array.from({ length: dimension }, (_, index) => padSource(index - (begins[axis] as number), length, mode) * (strides[axis] as number));
  });
  return gather(x, shape, mappedOffsets(maps));
}

/** The index that a padded position shows. */
function padSource(index: number, length: number, mode: string): number {
  if (mode === 'edge') return Math.min(Math.max(index, 0), length - 1);
  if (mode === 'wrap') return ((index % length) + length) % length;
  const period = Math.max(1, 2 * (length - 1));
  const phase = ((index % period) + period) % period;
  return Math.min(phase, period - phase);
}

/** The part of each matrix on and above (below) its k-th diagonal; zeros elsewhere. */
function triangle(x: Tensor, k: number, upper: boolean): Tensor {
  const [rows, columns] = [x.shape.at(-2) as number, x.shape.at(-1) as number];
  const output = zeros(x.type, x.shape);
  for (let index = 0; index < x.data.length; index++) {
    const column = index % columns;
    const row = Math.floor(index / columns) % rows;
    if (upper ? column - row >= k : column - row <= k) (output.data as Float64Array)[index] = x.data[index] as number;
  }
  return output;
}

function dot(a: readonly number[], b: readonly number[]): number {
  return a.reduce((sum, value, index) => sum + value * (b[index] as number), 0);
}

