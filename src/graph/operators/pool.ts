// Pooling: the maximum or the mean under a window, or over the whole image.

import { intAttribute, intsAttribute, type Node } from '../graph.ts';
import { elementCount, type Tensor, type ValueType } from '../tensor.ts';
import { check, define, floatTypes, required, shapeText } from './define.ts';
import type { OperatorDefinition } from './definition.ts';
import { span, stridesOf } from './indexing.ts';
import { lowest, numbers, scratch, store } from './numbers.ts';
import { explicitPads, type Window, windowAttributes, windowOf, windowTable } from './windows.ts';

export const pools: Readonly<
  Record<'AveragePool' | 'GlobalAveragePool' | 'GlobalMaxPool' | 'MaxPool', OperatorDefinition>
> = {
  AveragePool: define({
    inputs: [1, 1],
    types: [floatTypes],
    attributes: { ...windowAttributes, ceil_mode: 'int', count_include_pad: 'int' },
    infer: (node, inputs) => [pooled(node, required(inputs, 0))],
    evaluate(node, inputs, [result]) {
      const x = required(inputs, 0);
      return [
        averagePool(x, poolWindow(node, x), intAttribute(node, 'count_include_pad', 0) !== 0, result as ValueType),
      ];
    },
  }),
  GlobalAveragePool: globalPool((x, start, size) => {
    let sum = 0;
    for (let index = 0; index < size; index++) sum += x[start + index] as number;
    return sum / size;
  }),
  GlobalMaxPool: globalPool((x, start, size) => {
    let best = Number.NEGATIVE_INFINITY;
    for (let index = 0; index < size; index++) best = Math.max(best, x[start + index] as number);
    return best;
  }),
  MaxPool: define({
    inputs: [1, 1],
    outputs: [1, 2],
    types: [[...floatTypes, 'int8', 'uint8']],
    attributes: { ...windowAttributes, ceil_mode: 'int', storage_order: 'int' },
    infer(node, inputs) {
      const values = pooled(node, required(inputs, 0));
      return [values, { type: 'int64', shape: values.shape }];
    },
    evaluate(node, inputs, [result]) {
      const x = required(inputs, 0);
      return maxPool(x, poolWindow(node, x), intAttribute(node, 'storage_order', 0) !== 0, result as ValueType);
    },
  }),
};

function pooled(node: Node, x: ValueType): ValueType {
  return { type: x.type, shape: [...x.shape.slice(0, 2), ...poolWindow(node, x).output] };
}

function poolWindow(node: Node, x: ValueType): Window {
  check(x.shape.length >= 3, node, () => `wants an input [N, C, D1, ...], not ${shapeText(x.shape)}`);
  const kernel = intsAttribute(node, 'kernel_shape') ?? [];
  check(
    kernel.length === x.shape.length - 2,
    node,
    () => `has kernel_shape ${shapeText(kernel)} for an input ${shapeText(x.shape)}; it needs one entry a spatial axis`,
  );
  const [begin, end] = explicitPads(node, kernel.length);
  const smaller = kernel.every((size, axis) => (begin[axis] as number) < size && (end[axis] as number) < size);
  check(
    smaller,
    node,
    () =>
      `pads by ${shapeText([...begin, ...end])}, as much as its kernel ${shapeText(kernel)} or more; a window ` +
      'would see nothing but padding',
  );
  return windowOf(node, x.shape.slice(2), kernel, intAttribute(node, 'ceil_mode', 0) !== 0);
}

/**
 * The mean of each window's elements; with `countPadding` the padding counts as zeros (elements that ceil_mode adds
 * beyond it do not).
 */
function averagePool(source: Tensor, window: Window, countPadding: boolean, { type, shape }: ValueType): Tensor {
  const x = numbers(source);
  const table = windowTable(window);
  const sizes = countPadding ? paddedSizes(window) : undefined;
  const [images, size, places, taps] = [
    span(shape, 0, 2),
    elementCount(window.input),
    elementCount(window.output),
    elementCount(window.kernel),
  ];
  const y = new Float64Array(images * places);
  for (let image = 0; image < images; image++) {
    for (let place = 0; place < places; place++) {
      let sum = 0;
      let count = 0;
      for (let tap = 0; tap < taps; tap++) {
        const offset = table[place * taps + tap] as number;
        if (offset < 0) continue;
        sum += x[image * size + offset] as number;
        count++;
      }
      y[image * places + place] = sum / (sizes ? (sizes[place] as number) : count);
    }
  }
  return store(type, shape, y);
}

/** For each place of the window, the number of its elements inside the padded input. */
function paddedSizes(window: Window): Float64Array {
  const padded = window.input.map(
    (size, axis) => size + (window.padsBegin[axis] as number) + (window.padsEnd[axis] as number),
  );
  const table = windowTable({ ...window, input: padded, padsBegin: padded.map(() => 0) });
  const [places, taps] = [elementCount(window.output), elementCount(window.kernel)];
  const sizes = new Float64Array(places);
  table.forEach((offset, index) => {
    if (offset >= 0) (sizes[Math.floor(index / taps)] as number)++;
  });
  return sizes;
}

/** The maximum under each window (the first of equal ones; NaN if there is one), and its index in the whole tensor. */
function maxPool(source: Tensor, window: Window, columnMajor: boolean, { type, shape }: ValueType): readonly Tensor[] {
  const x = numbers(source);
  const table = windowTable(window);
  const [images, size, places, taps] = [
    span(shape, 0, 2),
    elementCount(window.input),
    elementCount(window.output),
    elementCount(window.kernel),
  ];
  const y = scratch(type, images * places);
  const indices = new BigInt64Array(images * places);
  const order = columnMajor ? columnMajorOffsets(window.input) : undefined;
  for (let image = 0; image < images; image++) {
    for (let place = 0; place < places; place++) {
      let best = -1;
      for (let tap = 0; tap < taps; tap++) {
        const offset = table[place * taps + tap] as number;
        if (offset < 0) continue;
        const value = x[image * size + offset] as number;
        if (best < 0 || value > (x[image * size + best] as number) || Number.isNaN(value)) best = offset;
      }
      y[image * places + place] = best < 0 ? lowest(type) : (x[image * size + best] as number);
      if (best >= 0) indices[image * places + place] = BigInt(image * size + (order ? (order[best] as number) : best));
    }
  }
  return [store(type, shape, y), { type: 'int64', shape, data: indices }];
}

/** For each row-major offset in an image, the offset in column-major order (MaxPool's storage_order 1). */
function columnMajorOffsets(shape: readonly number[]): Float64Array {
  const strides = stridesOf(shape);
  return Float64Array.from({ length: elementCount(shape) }, (_, offset) => {
    let result = 0;
    let step = 1;
    shape.forEach((dimension, axis) => {
      result += (Math.floor(offset / (strides[axis] as number)) % dimension) * step;
      step *= dimension;
    });
    return result;
  });
}

/** A pool over all spatial axes, each of which gets size 1. */
function globalPool(f: (x: Float64Array, start: number, size: number) => number): OperatorDefinition {
  return define({
    inputs: [1, 1],
    types: [floatTypes],
    infer(node, inputs) {
      const { type, shape } = required(inputs, 0);
      check(shape.length >= 3, node, () => `wants an input [N, C, D1, ...], not ${shapeText(shape)}`);
      return [{ type, shape: shape.map((dimension, axis) => (axis < 2 ? dimension : 1)) }];
    },
    evaluate(_node, inputs, [result]) {
      const source = required(inputs, 0);
      const { type, shape } = result as ValueType;
      const x = numbers(source);
      const size = span(source.shape, 2);
      return [
        store(
          type,
          shape,
          Float64Array.from({ length: elementCount(shape) }, (_, image) => f(x, image * size, size)),
        ),
      ];
    },
  });
}
