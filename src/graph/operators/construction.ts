// Operators that create values from attributes, shapes and scalars.

import { intAttribute, type Node } from '../graph.ts';
import { allocate, elementCount, int64s, scalar, type Tensor, tensor, type ValueType } from '../tensor.ts';
import { elementTypeAttribute } from './data-types.ts';
import {
  check,
  constantIntegers,
  define,
  fail,
  type Inputs,
  int64Only,
  knownInput,
  required,
  shapeText,
  typeText,
} from './define.ts';
import type { OperatorDefinition } from './definition.ts';
import { zeros } from './indexing.ts';
import { literal, numbers, scratch, store } from './numbers.ts';

type ConstructionName = 'Constant' | 'ConstantOfShape' | 'EyeLike' | 'Range' | 'Shape' | 'Size';

export const construction: Readonly<Record<ConstructionName, OperatorDefinition>> = {
  Constant: define({
    inputs: [0, 0],
    attributes: { value: 'tensor', value_float: 'float', value_floats: 'floats', value_int: 'int', value_ints: 'ints' },
    infer(node) {
      const { type, shape } = constantOf(node);
      return [{ type, shape }];
    },
    evaluate: (node) => [constantOf(node)],
  }),
  ConstantOfShape: define({
    inputs: [1, 1],
    types: [int64Only],
    attributes: { value: 'tensor' },
    constantInputs: [0],
    infer(node, inputs, constants) {
      const shape = constantIntegers(node, inputs, constants, 0) ?? [];
      check(
        shape.every((dimension) => dimension >= 0),
        node,
        () => `is given ${shapeText(shape)}, which has a negative dimension`,
      );
      return [{ type: fillOf(node).type, shape }];
    },
    evaluate(node, _inputs, [result]) {
      const { type, shape } = result as ValueType;
      const data = allocate(type, elementCount(shape)) as Float64Array;
      return [{ type, shape, data: data.fill(fillOf(node).data[0] as number) }];
    },
  }),
  EyeLike: define({
    inputs: [1, 1],
    attributes: { dtype: 'int', k: 'int' },
    infer(node, inputs) {
      const { type, shape } = required(inputs, 0);
      check(shape.length === 2, node, () => `wants a matrix, not ${shapeText(shape)}`);
      return [
        {
          type: node.attributes['dtype'] ? elementTypeAttribute(node, 'dtype', intAttribute(node, 'dtype', 0)) : type,
          shape,
        },
      ];
    },
    evaluate(node, _inputs, [result]) {
      const { type, shape } = result as ValueType;
      const [rows, columns] = shape as [number, number];
      const k = intAttribute(node, 'k', 0);
      const values = scratch(type, rows * columns);
      for (let row = Math.max(0, -k); row < rows && row + k < columns; row++)
        values[row * columns + row + k] = literal(type, 1);
      return [store(type, shape, values)];
    },
  }),
  Range: define({
    inputs: [3, 3],
    types: [['float32', 'float64', 'int16', 'int32', 'int64']],
    sameType: 'all',
    constantInputs: [0, 1, 2],
    infer(node, inputs, constants) {
      const [start, limit, delta] = [0, 1, 2].map((index) => scalarConstant(node, inputs, constants, index)) as [
        number,
        number,
        number,
      ];
      check(delta !== 0, node, () => 'has delta 0');
      return [{ type: required(inputs, 0).type, shape: [Math.max(0, Math.ceil((limit - start) / delta))] }];
    },
    evaluate(_node, inputs, [result]) {
      const { type, shape } = result as ValueType;
      const [start, delta] = [numbers(required(inputs, 0))[0] as number, numbers(required(inputs, 2))[0] as number];
      return [
        store(
          type,
          shape,
          scratch(type, elementCount(shape)).map((_, index) => start + literal(type, index) * delta),
        ),
      ];
    },
  }),
  Shape: define({
    inputs: [1, 1],
    attributes: { start: 'int', end: 'int' },
    infer: (node, inputs) => [{ type: 'int64', shape: [shapeSlice(node, required(inputs, 0)).length] }],
    evaluate: (node, inputs) => [int64s(shapeSlice(node, required(inputs, 0)))],
  }),
  Size: define({
    inputs: [1, 1],
    infer: () => [{ type: 'int64', shape: [] }],
    evaluate: (_node, inputs) => [scalar('int64', required(inputs, 0).data.length)],
  }),
};

/** The value of a Constant, from whichever attribute holds it. */
function constantOf(node: Node): Tensor {
  const given = Object.values(node.attributes);
  const [attribute] = given;
  check(given.length === 1 && attribute, node, () => `has ${given.length} values; it needs exactly one`);
  switch (attribute.type) {
    case 'tensor':
      return attribute.value;
    case 'float':
      return scalar('float32', attribute.value);
    case 'floats':
      return tensor('float32', [attribute.value.length], attribute.value);
    case 'int':
      return scalar('int64', attribute.value);
    case 'ints':
      return int64s(attribute.value);
    default:
      return fail(node, `has a value of type ${attribute.type}, which is not supported`);
  }
}

/** The element that ConstantOfShape fills with; default a float32 zero. */
function fillOf(node: Node): Tensor {
  const attribute = node.attributes['value'];
  const fill = attribute?.type === 'tensor' ? attribute.value : zeros('float32', [1]);
  check(fill.data.length === 1, node, () => `wants one element to fill with, not ${typeText(fill)}`);
  return fill;
}

function scalarConstant(node: Node, inputs: Inputs<ValueType>, constants: Inputs<Tensor>, index: number): number {
  const type = required(inputs, index);
  check(
    elementCount(type.shape) === 1,
    node,
    () => `wants a scalar in input "${node.inputs[index]}", not ${typeText(type)}`,
  );
  return Number(knownInput(node, constants, index).data[0]);
}

/** The dimensions from `start` up to `end`, both clamped. */
function shapeSlice(node: Node, { shape }: ValueType): readonly number[] {
  return shape.slice(intAttribute(node, 'start', 0), intAttribute(node, 'end', shape.length));
}
