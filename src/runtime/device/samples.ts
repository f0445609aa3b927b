// Cutting and joining tensors along their batch axis: what a device's neighbours own of a micro-batch.

import { assert, defined } from '../../assert.ts';
import { allocate, type ElementArray, elementCount, type Tensor } from '../../graph/tensor.ts';

/** Samples [first, end) of a tensor. Along axis 0 a view without a copy, else a copy. */
export function sliceSamples(value: Tensor, axis: number, first: number, end: number): Tensor {
  const count = defined(value.shape[axis], 'the batch axis');
  assert(first >= 0 && first <= end && end <= count, `samples ${first}…${end} of ${count}`);
  if (first === 0 && end === count) return value;
  const shape = value.shape.map((dimension, index) => (index === axis ? end - first : dimension));
  const inner = elementCount(value.shape.slice(axis + 1));
  if (elementCount(value.shape.slice(0, axis)) === 1) {
    return { type: value.type, shape, data: value.data.subarray(first * inner, end * inner) as ElementArray };
  }
  const result = allocate(value.type, elementCount(shape));
  const outer = elementCount(value.shape.slice(0, axis));
  for (let row = 0; row < outer; row++) {
    copy(result, row * (end - first) * inner, value.data, (row * count + first) * inner, (end - first) * inner);
  }
  return { type: value.type, shape, data: result };
}

/** Joins pieces in the order of their samples. A single piece is returned as it is. */
export function joinSamples(pieces: readonly Tensor[], axis: number): Tensor {
  const head = defined(pieces[0], 'a piece');
  if (pieces.length === 1) return head;
  const count = pieces.reduce((sum, piece) => sum + defined(piece.shape[axis], 'the batch axis'), 0);
  const shape = head.shape.map((dimension, index) => (index === axis ? count : dimension));
  const inner = elementCount(head.shape.slice(axis + 1));
  const outer = elementCount(head.shape.slice(0, axis));
  const result = allocate(head.type, elementCount(shape));
  let first = 0;
  for (const piece of pieces) {
    const length = defined(piece.shape[axis], 'the batch axis') * inner;
    for (let row = 0; row < outer; row++) copy(result, row * count * inner + first, piece.data, row * length, length);
    first += length;
  }
  return { type: head.type, shape, data: result };
}

/** A copy with a buffer of its own, which an engine may take. */
export function ownCopy(value: Tensor): Tensor {
  return { ...value, data: value.data.slice() as ElementArray };
}

/**
 * The tensor itself where it fills its buffer, else a copy: what may be handed to an engine without taking others'
 * bytes along.
 */
export function owned(value: Tensor): Tensor {
  return value.data.byteLength === value.data.buffer.byteLength ? value : ownCopy(value);
}

function copy(
  target: ElementArray,
  targetIndex: number,
  source: ElementArray,
  sourceIndex: number,
  length: number,
): void {
  (target as Float32Array).set((source as Float32Array).subarray(sourceIndex, sourceIndex + length), targetIndex);
}
