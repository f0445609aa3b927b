// The forms of elementwise operators: with one input, with two broadcast inputs, with any number.

import type { Node } from '../graph.ts';
import { type ElementType, elementCount, sameShape, type Tensor, type ValueType } from '../tensor.ts';
import { check, define, floatTypes, type Inputs, numericTypes, required, type Specification } from './define.ts';
import type { OperatorDefinition } from './definition.ts';
import { broadcastOffsets, broadcastShapes } from './indexing.ts';
import { isBig, mapNumbers, numbers, plainNumbers, scratch, store, storePlain } from './numbers.ts';

export type Unary = (x: number) => number;
export type Binary = (a: number, b: number) => number;

interface UnaryOptions extends Pick<Specification, 'types' | 'attributes'> {
  /** The function on 64-bit integers; if absent, they are converted to doubles. */
  readonly big?: (x: bigint) => bigint;
  /** The result's element type if it is not the input's. */
  readonly result?: ElementType;
}

/** An operator y = f(x); `choose` reads the attributes. Takes floats unless `types` says otherwise. */
export function unary(
  choose: (node: Node) => Unary,
  { types = [floatTypes], attributes = {}, big, result }: UnaryOptions = {},
): OperatorDefinition {
  return define({
    inputs: [1, 1],
    types,
    attributes,
    infer(node, inputs) {
      choose(node);
      const { type, shape } = required(inputs, 0);
      return [{ type: result ?? type, shape }];
    },
    evaluate(node, inputs) {
      const x = required(inputs, 0);
      const type = result ?? x.type;
      if (big && isBig(x.type)) return [{ type, shape: x.shape, data: (x.data as BigInt64Array).map(big) }];
      return [storePlain(type, x.shape, mapNumbers(plainNumbers(x), choose(node)))];
    },
  });
}

interface BinaryOptions extends Pick<Specification, 'types' | 'attributes'> {
  readonly result?: ElementType;
}

/**
 * An operator c = f(a, b) with broadcasting, on two values of one type. Takes all numeric types unless `types` says
 * otherwise.
 */
export function binary(
  choose: (node: Node, type: ElementType) => Binary,
  { types = [numericTypes], attributes = {}, result }: BinaryOptions = {},
): OperatorDefinition {
  return define({
    inputs: [2, 2],
    types,
    sameType: 'all',
    attributes,
    infer(node, inputs) {
      const { type } = required(inputs, 0);
      choose(node, type);
      return [{ type: result ?? type, shape: broadcastShapes(node, shapesOf(inputs)) }];
    },
    evaluate: (node, inputs, [type]) => [zip(inputs, type as ValueType, choose(node, required(inputs, 0).type))],
  });
}

/**
 * An operator that folds `combine` over any number of inputs of one type, with broadcasting, and then applies a final
 * function to each element.
 */
export function variadic(
  types: readonly ElementType[],
  choose: (type: ElementType) => Binary,
  finish?: (total: number, count: number) => number,
): OperatorDefinition {
  return define({
    inputs: [1, Number.POSITIVE_INFINITY],
    types: [types],
    sameType: 'all',
    infer(node, inputs) {
      node.inputs.forEach((name) => check(name !== '', node, () => 'lacks one of its inputs'));
      return [{ type: required(inputs, 0).type, shape: broadcastShapes(node, shapesOf(inputs)) }];
    },
    evaluate(_node, inputs, [result]) {
      const { type, shape } = result as ValueType;
      const combine = choose(type);
      const total = scratch(type, elementCount(shape));
      inputs.forEach((input, position) => {
        const values = numbers(input as Tensor);
        const table = broadcastOffsets((input as Tensor).shape, shape);
        for (let index = 0; index < total.length; index++) {
          const value = values[table[index] as number] as number;
          total[index] = position === 0 ? value : combine(total[index] as number, value);
        }
      });
      if (finish)
        total.forEach((value, index) => {
          total[index] = finish(value, inputs.length);
        });
      return [store(type, shape, total)];
    },
  });
}

/** f applied to two inputs, broadcast to the result's shape. */
export function zip(inputs: Inputs<Tensor>, { type, shape }: ValueType, f: Binary): Tensor {
  const [left, right] = [required(inputs, 0), required(inputs, 1)];
  const [a, b] = [numbers(left), numbers(right)];
  const values = scratch(type, elementCount(shape));
  if (sameShape(left.shape, right.shape)) {
    for (let index = 0; index < values.length; index++) values[index] = f(a[index] as number, b[index] as number);
  } else {
    const [first, second] = [broadcastOffsets(left.shape, shape), broadcastOffsets(right.shape, shape)];
    for (let index = 0; index < values.length; index++)
      values[index] = f(a[first[index] as number] as number, b[second[index] as number] as number);
  }
  return store(type, shape, values);
}

/** The shapes of the present inputs. */
export function shapesOf(inputs: Inputs<ValueType>): readonly (readonly number[])[] {
  return inputs.flatMap((input) => (input ? [input.shape] : []));
}
