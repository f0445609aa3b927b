// Operators that move elements without reading their values, with shapes known before running: reshaping, transposing,
// joining, repeating. Slicing and padding are in cutting.ts.

import { intAttribute, intsAttribute, type Node, stringAttribute } from '../graph.ts';
import { elementCount, type Tensor, type ValueType } from '../tensor.ts';
import {
  anyType,
  check,
  constantIntegers,
  define,
  fail,
  type Inputs,
  int64Only,
  normalizeAxes,
  normalizeAxis,
  required,
  shapeText,
  typeText,
} from './define.ts';
import type { OperatorDefinition } from './definition.ts';
import {
  broadcastOffsets,
  broadcastShapes,
  gather,
  mappedOffsets,
  offsets,
  reshaped,
  scatter,
  span,
  stridesOf,
  zeros,
} from './indexing.ts';
import type { ShapeName } from './names.ts';

type MovementName =
  | 'Concat'
  | 'DepthToSpace'
  | 'Expand'
  | 'Flatten'
  | 'Reshape'
  | 'SpaceToDepth'
  | 'Squeeze'
  | 'Tile'
  | 'Transpose'
  | 'Trilu'
  | 'Unsqueeze';

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
      const mode = stringAttribute(node, 'mode', 'DCR');
      check(mode === 'DCR' || mode === 'CRD', node, () => `has mode "${mode}"; it may be "DCR" or "CRD"`);
      check(
        c % (block * block) === 0,
        node,
        () => `has ${c} channels, which blocksize ${block} squared does not divide`,
      );
      return [{ type: required(inputs, 0).type, shape: [n, c / (block * block), h * block, w * block] }];
    },
    evaluate(node, inputs, [result]) {
      const [n, c, h, w, block] = blockShape(node, required(inputs, 0));
      const mode = stringAttribute(node, 'mode', 'DCR');
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
      return [
        {
          type,
          shape: broadcastShapes(node, [shape, dimensions(node, constantIntegers(node, inputs, constants, 1) ?? [])]),
        },
      ];
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
      check(
        axis >= -shape.length && axis <= shape.length,
        node,
        () => `has axis ${axis}, which ${shapeText(shape)} does not have`,
      );
      const cut = axis < 0 ? axis + shape.length : axis;
      return [{ type, shape: [span(shape, 0, cut), span(shape, cut)] }];
    },
    evaluate: (_node, inputs, [result]) => [reshaped(required(inputs, 0), (result as ValueType).shape)],
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
  SpaceToDepth: define({
    inputs: [1, 1],
    attributes: { blocksize: 'int' },
    infer(node, inputs) {
      const [n, c, h, w, block] = blockShape(node, required(inputs, 0));
      check(
        h % block === 0 && w % block === 0,
        node,
        () => `has an image of ${h}x${w}, which blocksize ${block} does not divide`,
      );
      return [{ type: required(inputs, 0).type, shape: [n, c * block * block, h / block, w / block] }];
    },
    evaluate(node, inputs, [result]) {
      const [n, c, h, w, block] = blockShape(node, required(inputs, 0));
      const split = reshaped(required(inputs, 0), [n, c, h / block, block, w / block, block]);
      return [permuted(split, [0, 3, 5, 1, 2, 4], (result as ValueType).shape)];
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
      check(
        given.length > 0,
        node,
        () => 'has an empty list of axes, which runtimes read differently; leave the input out to squeeze every 1',
      );
      const axes = normalizeAxes(node, given, shape.length);
      for (const axis of axes)
        check(shape[axis] === 1, node, () => `squeezes axis ${axis} of ${shapeText(shape)}, which is not 1`);
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
      check(
        repeats.length === shape.length,
        node,
        () => `has ${repeats.length} repeats for an input of shape ${shapeText(shape)}`,
      );
      return [{ type, shape: shape.map((dimension, axis) => dimension * (repeats[axis] as number)) }];
    },
    evaluate(_node, inputs, [result]) {
      const x = required(inputs, 0);
      const { shape } = result as ValueType;
      const strides = stridesOf(x.shape);
      const maps = shape.map((dimension, axis) =>
        Int32Array.from(
          { length: dimension },
          (_, index) => (index % (x.shape[axis] as number)) * (strides[axis] as number),
        ),
      );
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
      check(
        !inputs[1] || elementCount(inputs[1].shape) === 1,
        node,
        () => `wants a scalar k, not ${inputs[1] && typeText(inputs[1])}`,
      );
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
      return [
        {
          type,
          shape: Array.from({ length: rank }, (_, axis) => (axes.includes(axis) ? 1 : (rest.next().value as number))),
        },
      ];
    },
    evaluate: (_node, inputs, [result]) => [reshaped(required(inputs, 0), (result as ValueType).shape)],
  }),
};

/** The tensor with its axes in another order. */
function permuted(x: Tensor, order: readonly number[], resultShape: readonly number[]): Tensor {
  const strides = stridesOf(x.shape);
  const table = offsets(
    order.map((axis) => x.shape[axis] as number),
    order.map((axis) => strides[axis] as number),
  );
  return gather(x, resultShape, table);
}

function permutationOf(node: Node, shape: readonly number[]): readonly number[] {
  const order = intsAttribute(node, 'perm') ?? shape.map((_, axis) => shape.length - 1 - axis);
  const valid = order.length === shape.length && shape.every((_, axis) => order.includes(axis));
  check(
    valid,
    node,
    () => `has perm ${shapeText(order)}, which is not a permutation of the axes of ${shapeText(shape)}`,
  );
  return order;
}

/** A list of dimensions from the model, checked to be non-negative. */
function dimensions(node: Node, list: readonly number[]): readonly number[] {
  check(
    list.every((dimension) => dimension >= 0),
    node,
    () => `is given ${shapeText(list)}, which has a negative dimension`,
  );
  return list;
}

function concatenated(node: Node, inputs: Inputs<ValueType>): ValueType {
  check(node.attributes['axis'], node, () => 'lacks its attribute "axis"');
  const { type, shape } = required(inputs, 0);
  const axis = normalizeAxis(node, intAttribute(node, 'axis', 0), shape.length);
  let length = 0;
  for (const input of inputs) {
    check(input, node, () => 'lacks one of its inputs');
    const fits =
      input.shape.length === shape.length &&
      input.shape.every((dimension, other) => other === axis || dimension === shape[other]);
    check(
      fits,
      node,
      () =>
        `joins ${shapeText(shape)} and ${shapeText(input.shape)} along axis ${axis}; all other dimensions must ` +
        'be equal',
    );
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

/** Reshape's target shape: 0 copies the input's dimension (unless `allowzero`), one −1 takes the remaining size. */
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

/** The part of each matrix on and above (below) its k-th diagonal, with zeros elsewhere. */
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
