// Operators that read or write elements at indices given by an input: the Gather and Scatter families, OneHot. Indices
// are data, so a wrong one is found only at run time; it is an InputError then.

import { intAttribute, type Node, stringAttribute } from '../graph.ts';
import { type ElementType, elementCount, isFloat, sameShape, type Tensor, tensor, type ValueType } from '../tensor.ts';
import {
  anyType,
  check,
  constantIntegers,
  define,
  indexTypes,
  int64Only,
  normalizeAxis,
  numericTypes,
  required,
  shapeText,
  typeText,
} from './define.ts';
import type { OperatorDefinition } from './definition.ts';
import { gather, offsets, span, stridesOf } from './indexing.ts';
import { type Numbers, numbers, plainNumbers, scratch, store } from './numbers.ts';

type IndexedName = 'Gather' | 'GatherElements' | 'GatherND' | 'NonZero' | 'OneHot' | 'ScatterElements' | 'ScatterND';

export const indexed: Readonly<Record<IndexedName, OperatorDefinition>> = {
  Gather: define({
    inputs: [2, 2],
    types: [anyType, indexTypes],
    attributes: { axis: 'int' },
    infer(node, inputs) {
      const [data, indices] = [required(inputs, 0), required(inputs, 1)];
      const axis = axisOf(node, data.shape.length);
      return [
        { type: data.type, shape: [...data.shape.slice(0, axis), ...indices.shape, ...data.shape.slice(axis + 1)] },
      ];
    },
    evaluate(node, inputs, [result]) {
      const [data, indices] = [required(inputs, 0), required(inputs, 1)];
      const axis = axisOf(node, data.shape.length);
      const length = data.shape[axis] as number;
      const [outer, inner] = [span(data.shape, 0, axis), span(data.shape, axis + 1)];
      const places = normalizedIndices(node, indices, () => length);
      const table = new Int32Array(outer * places.length * inner);
      let write = 0;
      for (let block = 0; block < outer; block++) {
        for (const place of places)
          for (let index = 0; index < inner; index++) table[write++] = (block * length + place) * inner + index;
      }
      return [gather(data, (result as ValueType).shape, table)];
    },
  }),
  GatherElements: define({
    inputs: [2, 2],
    types: [anyType, indexTypes],
    attributes: { axis: 'int' },
    infer(node, inputs) {
      const [data, indices] = [required(inputs, 0), required(inputs, 1)];
      checkElementIndices(node, data.shape, indices.shape);
      return [{ type: data.type, shape: indices.shape }];
    },
    evaluate(node, inputs) {
      const [data, indices] = [required(inputs, 0), required(inputs, 1)];
      return [gather(data, indices.shape, elementTable(node, data.shape, indices))];
    },
  }),
  GatherND: define({
    inputs: [2, 2],
    types: [anyType, int64Only],
    attributes: { batch_dims: 'int' },
    infer(node, inputs) {
      const { type } = required(inputs, 0);
      const [data, indices] = [required(inputs, 0).shape, required(inputs, 1).shape];
      const batch = intAttribute(node, 'batch_dims', 0);
      const depth = indices.at(-1) ?? 0;
      const fits =
        indices.length >= 1 &&
        batch >= 0 &&
        batch < indices.length &&
        sameShape(data.slice(0, batch), indices.slice(0, batch)) &&
        batch + depth <= data.length;
      check(
        fits,
        node,
        () => `cannot take indices ${shapeText(indices)} from ${shapeText(data)} with batch_dims ${batch}`,
      );
      return [{ type, shape: [...indices.slice(0, -1), ...data.slice(batch + depth)] }];
    },
    evaluate(node, inputs, [result]) {
      const [data, indices] = [required(inputs, 0), required(inputs, 1)];
      const batch = intAttribute(node, 'batch_dims', 0);
      const starts = tupleOffsets(node, data.shape, indices, batch);
      const size = span(data.shape, batch + (indices.shape.at(-1) as number));
      const table = new Int32Array(starts.length * size);
      starts.forEach((start, tuple) => {
        for (let index = 0; index < size; index++) table[tuple * size + index] = start + index;
      });
      return [gather(data, (result as ValueType).shape, table)];
    },
  }),
  // The coordinates of the nonzero elements, one column each. Their number determines the result's shape, so the input
  // must be constant.
  NonZero: define({
    inputs: [1, 1],
    constantInputs: [0],
    infer(node, inputs, constants) {
      const x = required(inputs, 0);
      const known = constants[0];
      check(
        known,
        node,
        () =>
          `needs the value of its input "${node.inputs[0]}" before running, because the size of its result ` +
          'depends on it',
      );
      return [{ type: 'int64', shape: [Math.max(1, x.shape.length), nonZeroPlaces(known).length] }];
    },
    evaluate(_node, inputs, [result]) {
      const x = required(inputs, 0);
      const { shape } = result as ValueType;
      const places = nonZeroPlaces(x);
      const strides = x.shape.length === 0 ? [1] : stridesOf(x.shape);
      const sizes = x.shape.length === 0 ? [1] : x.shape;
      const coordinates = strides.flatMap((stride, axis) =>
        places.map((place) => Math.floor(place / stride) % (sizes[axis] as number)),
      );
      return [tensor('int64', shape, coordinates)];
    },
  }),
  OneHot: define({
    inputs: [3, 3],
    types: [numericTypes, numericTypes, anyType],
    attributes: { axis: 'int' },
    constantInputs: [1],
    infer(node, inputs, constants) {
      const [indices, depth, values] = [required(inputs, 0), required(inputs, 1), required(inputs, 2)];
      check(elementCount(depth.shape) === 1, node, () => `wants a scalar depth, not ${typeText(depth)}`);
      check(indices.shape.length >= 1, node, () => `wants indices of rank 1 or more, not ${typeText(indices)}`);
      check(sameShape(values.shape, [2]), node, () => `wants the values [off, on], not ${typeText(values)}`);
      const length = Math.trunc(constantIntegers(node, inputs, constants, 1)?.[0] ?? 0);
      check(length > 0, node, () => `has depth ${length}; it must be positive`);
      const axis = normalizeAxis(node, intAttribute(node, 'axis', -1), indices.shape.length + 1);
      return [{ type: values.type, shape: indices.shape.toSpliced(axis, 0, length) }];
    },
    evaluate(node, inputs, [result]) {
      const { shape } = result as ValueType;
      const axis = normalizeAxis(node, intAttribute(node, 'axis', -1), shape.length);
      return [oneHot(required(inputs, 0), required(inputs, 2), shape, axis)];
    },
  }),
  ScatterElements: define({
    inputs: [3, 3],
    types: [anyType, indexTypes, anyType],
    sameType: [2],
    attributes: { axis: 'int', reduction: 'string' },
    infer(node, inputs) {
      const [data, indices, updates] = [required(inputs, 0), required(inputs, 1), required(inputs, 2)];
      checkElementIndices(node, data.shape, indices.shape);
      check(
        sameShape(indices.shape, updates.shape),
        node,
        () =>
          `has indices of shape ${shapeText(indices.shape)} and updates of ${shapeText(updates.shape)}; they ` +
          'must be equal',
      );
      reducer(node, data.type);
      return [{ type: data.type, shape: data.shape }];
    },
    evaluate(node, inputs) {
      const [data, indices, updates] = [required(inputs, 0), required(inputs, 1), required(inputs, 2)];
      const table = elementTable(node, data.shape, indices);
      const reduce = reducer(node, data.type);
      const values = copyOf(data);
      numbers(updates).forEach((update, index) => {
        const place = table[index] as number;
        values[place] = reduce(values[place] as number, update);
      });
      return [store(data.type, data.shape, values)];
    },
  }),
  ScatterND: define({
    inputs: [3, 3],
    types: [anyType, int64Only, anyType],
    sameType: [2],
    attributes: { reduction: 'string' },
    infer(node, inputs) {
      const { type } = required(inputs, 0);
      const [data, indices, updates] = [
        required(inputs, 0).shape,
        required(inputs, 1).shape,
        required(inputs, 2).shape,
      ];
      const depth = indices.at(-1) ?? 0;
      const fits =
        indices.length >= 1 &&
        depth <= data.length &&
        sameShape(updates, [...indices.slice(0, -1), ...data.slice(depth)]);
      check(
        fits,
        node,
        () => `cannot write updates ${shapeText(updates)} at indices ${shapeText(indices)} into ${shapeText(data)}`,
      );
      reducer(node, type);
      return [{ type, shape: data }];
    },
    evaluate(node, inputs) {
      const [data, indices, updates] = [required(inputs, 0), required(inputs, 1), required(inputs, 2)];
      const starts = tupleOffsets(node, data.shape, indices, 0);
      const size = span(data.shape, indices.shape.at(-1) as number);
      const reduce = reducer(node, data.type);
      const values = copyOf(data);
      numbers(updates).forEach((update, index) => {
        const place = (starts[Math.floor(index / size)] as number) + (index % size);
        values[place] = reduce(values[place] as number, update);
      });
      return [store(data.type, data.shape, values)];
    },
  }),
};

/** The positions of the nonzero elements, in row-major order. */
function nonZeroPlaces(x: Tensor): readonly number[] {
  return Array.from(plainNumbers(x)).flatMap((value, place) => (value === 0 ? [] : [place]));
}

function axisOf(node: Node, rank: number): number {
  return normalizeAxis(node, intAttribute(node, 'axis', 0), rank);
}

/** Indices counted from the start; the i-th must lie in [−limit(i), limit(i)). */
function normalizedIndices(node: Node, indices: Tensor, limit: (position: number) => number): Int32Array {
  return Int32Array.from(plainNumbers(indices), (index, position) => {
    const most = limit(position);
    check(index >= -most && index < most, node, () => `reads index ${index} where there are ${most} elements`);
    return index < 0 ? index + most : index;
  });
}

/**
 * Checks GatherElements and ScatterElements: indices have data's rank and do not exceed data's size except on the axis.
 */
function checkElementIndices(node: Node, data: readonly number[], indices: readonly number[]): void {
  const axis = axisOf(node, data.length);
  const fits =
    indices.length === data.length &&
    indices.every((dimension, other) => other === axis || dimension <= (data[other] as number));
  check(
    fits,
    node,
    () =>
      `has indices of shape ${shapeText(indices)} for data of ${shapeText(data)}; off axis ${axis} they must ` +
      'not be larger',
  );
}

/** The offset in data of each element of `indices`: its own coordinates, with the index on the axis. */
function elementTable(node: Node, shape: readonly number[], indices: Tensor): Int32Array {
  const axis = axisOf(node, shape.length);
  const strides = stridesOf(shape);
  const stride = strides[axis] as number;
  const table = offsets(indices.shape, strides.with(axis, 0));
  const places = normalizedIndices(node, indices, () => shape[axis] as number);
  return table.map((base, index) => base + (places[index] as number) * stride);
}

/** The offset in data of each index tuple (the last axis of `indices`), after `batch` leading axes that both share. */
function tupleOffsets(node: Node, shape: readonly number[], indices: Tensor, batch: number): Int32Array {
  const depth = indices.shape.at(-1) as number;
  const strides = stridesOf(shape);
  const places = normalizedIndices(node, indices, (position) => shape[batch + (position % depth)] as number);
  const tuplesPerBatch = span(indices.shape, batch, indices.shape.length - 1);
  const batchSize = span(shape, batch);
  return Int32Array.from({ length: span(indices.shape, 0, indices.shape.length - 1) }, (_, tuple) => {
    let offset = Math.floor(tuple / tuplesPerBatch) * batchSize;
    for (let level = 0; level < depth; level++)
      offset += (places[tuple * depth + level] as number) * (strides[batch + level] as number);
    return offset;
  });
}

/** A mutable copy of data's elements. */
function copyOf(data: Tensor): Numbers {
  const values = scratch(data.type, data.data.length);
  values.set(numbers(data));
  return values;
}

/** How a Scatter combines an element with an update. */
function reducer(node: Node, type: ElementType): (old: number, update: number) => number {
  const reduction = stringAttribute(node, 'reduction', 'none');
  check(reduction === 'none' || type !== 'bool', node, () => `cannot reduce bool values with "${reduction}"`);
  switch (reduction) {
    case 'none':
      return (_old, update) => update;
    case 'add':
      return (old, update) => old + update;
    case 'mul':
      return (old, update) => old * update;
    case 'max':
      return isFloat(type) ? Math.max : (old, update) => (update > old ? update : old);
    case 'min':
      return isFloat(type) ? Math.min : (old, update) => (update < old ? update : old);
    default:
      return check(
        false,
        node,
        () => `has reduction "${reduction}"; it may be "none", "add", "mul", "max" or "min"`,
      ) as never;
  }
}

/**
 * values[1] where the coordinate along `axis` is the index, values[0] elsewhere; indices out of range are "off"
 * everywhere.
 */
function oneHot(indices: Tensor, values: Tensor, shape: readonly number[], axis: number): Tensor {
  const depth = shape[axis] as number;
  const inner = span(shape, axis + 1);
  const places = plainNumbers(indices);
  const table = new Int32Array(elementCount(shape));
  for (let index = 0; index < table.length; index++) {
    const lane = Math.floor(index / (depth * inner)) * inner + (index % inner);
    const place = Math.trunc(places[lane] as number);
    table[index] = Number((place < 0 ? place + depth : place) === Math.floor(index / inner) % depth);
  }
  return gather(values, shape, table);
}
