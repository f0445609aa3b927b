// Index arithmetic: strides, broadcasting, and tables of offsets. With a table, kernels that move elements are plain
// loops: `offsets(shape, strides)` gives, for each element of `shape` in row-major order, its position in an array with
// those strides.

import type { Node } from '../graph.ts';
import { allocate, type ElementType, elementCount, sameShape, type Tensor } from '../tensor.ts';
import { fail, shapeText } from './define.ts';

/** Row-major strides, in elements. */
export function stridesOf(shape: readonly number[]): readonly number[] {
  const strides = new Array<number>(shape.length);
  let stride = 1;
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    strides[axis] = stride;
    stride *= shape[axis] as number;
  }
  return strides;
}

/** offset[i] = start + Σ coordinate[axis]·strides[axis], for the i-th element of `shape` in row-major order. */
export function offsets(shape: readonly number[], strides: readonly number[], start = 0): Int32Array {
  let table = Int32Array.of(start);
  shape.forEach((dimension, axis) => {
    const stride = strides[axis] as number;
    const next = new Int32Array(table.length * dimension);
    let write = 0;
    for (const base of table) for (let index = 0; index < dimension; index++) next[write++] = base + index * stride;
    table = next;
  });
  return table;
}

/** `offsets` for maps that are not multiples: offset[i] = Σ maps[axis][coordinate[axis]]. */
export function mappedOffsets(maps: readonly ArrayLike<number>[]): Int32Array {
  let table = Int32Array.of(0);
  for (const map of maps) {
    const next = new Int32Array(table.length * map.length);
    let write = 0;
    for (const base of table)
      for (let index = 0; index < map.length; index++) next[write++] = base + (map[index] as number);
    table = next;
  }
  return table;
}

/** The shape to which all shapes broadcast (numpy's rule), or undefined if they do not. */
export function broadcast(shapes: readonly (readonly number[])[]): readonly number[] | undefined {
  const rank = Math.max(0, ...shapes.map((shape) => shape.length));
  const result = new Array<number>(rank).fill(1);
  for (const shape of shapes) {
    const lead = rank - shape.length;
    for (let axis = 0; axis < shape.length; axis++) {
      const dimension = shape[axis] as number;
      if (dimension === 1 || dimension === result[lead + axis]) continue;
      if (result[lead + axis] !== 1) return undefined;
      result[lead + axis] = dimension;
    }
  }
  return result;
}

/** `broadcast`; throws the node's InputError if the shapes do not broadcast. */
export function broadcastShapes(node: Node, shapes: readonly (readonly number[])[]): readonly number[] {
  return (
    broadcast(shapes) ??
    fail(node, `has inputs of shapes ${shapes.map(shapeText).join(' and ')}, which do not broadcast to one shape`)
  );
}

/** True if `shape` broadcasts to `target` without enlarging it. */
export function broadcastsTo(shape: readonly number[], target: readonly number[]): boolean {
  const result = broadcast([shape, target]);
  return result !== undefined && sameShape(result, target);
}

/**
 * For each element of `target`, the offset of the element of `shape` that is broadcast to it; the rank may be smaller
 * than target's.
 */
export function broadcastOffsets(shape: readonly number[], target: readonly number[]): Int32Array {
  const own = stridesOf(shape);
  const lead = target.length - shape.length;
  const strides = target.map((_, axis) => (axis < lead || shape[axis - lead] === 1 ? 0 : (own[axis - lead] as number)));
  return offsets(target, strides);
}

/** The tensor of `shape` whose i-th element is `source`'s element at table[i], of any element type. */
export function gather(source: Tensor, shape: readonly number[], table: Int32Array): Tensor {
  const from = source.data as Float64Array;
  const to = allocate(source.type, table.length) as Float64Array;
  for (let index = 0; index < to.length; index++) to[index] = from[table[index] as number] as number;
  return { type: source.type, shape, data: to };
}

/** Writes the i-th element of `source` to `target[table[i]]`. */
export function scatter(source: Tensor, target: Tensor['data'], table: Int32Array): void {
  const from = source.data as Float64Array;
  const to = target as Float64Array;
  for (let index = 0; index < table.length; index++) to[table[index] as number] = from[index] as number;
}

/** The same elements with another shape. */
export function reshaped(source: Tensor, shape: readonly number[]): Tensor {
  return { type: source.type, shape, data: source.data };
}

/** A tensor of zeros. */
export function zeros(type: ElementType, shape: readonly number[]): Tensor {
  return { type, shape, data: allocate(type, elementCount(shape)) };
}

/** The product of the dimensions from `first` up to, not including, `end`. */
export function span(shape: readonly number[], first: number, end: number = shape.length): number {
  return elementCount(shape.slice(first, end));
}
