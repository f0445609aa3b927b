// Tensors as plain data: an element type, a shape, and a typed array in row-major order. No methods, no views with
// strides.

import { assert } from '../assert.ts';

/** The typed array behind each element type; ONNX's names, without strings and complex numbers. */
interface Arrays {
  readonly float32: Float32Array;
  readonly float64: Float64Array;
  /** Raw bits. */
  readonly float16: Uint16Array;
  readonly int8: Int8Array;
  readonly uint8: Uint8Array;
  readonly int16: Int16Array;
  readonly uint16: Uint16Array;
  readonly int32: Int32Array;
  readonly uint32: Uint32Array;
  readonly int64: BigInt64Array;
  readonly uint64: BigUint64Array;
  /** 0 or 1. */
  readonly bool: Uint8Array;
}

interface ArrayConstructor<A> {
  readonly BYTES_PER_ELEMENT: number;
  new (length: number): A;
  new (buffer: ArrayBuffer, byteOffset: number, length: number): A;
}

const arrays: { readonly [T in keyof Arrays]: ArrayConstructor<Arrays[T]> } = {
  float32: Float32Array,
  float64: Float64Array,
  float16: Uint16Array,
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
  bool: Uint8Array,
};

/** The element types that Asteroid's tensors may have. */
export type ElementType = keyof Arrays;
/** The typed array that holds elements of type `T`. */
export type ElementArray<T extends ElementType = ElementType> = Arrays[T];

/** All element types, to validate names from outside. */
export const elementTypes: readonly ElementType[] = Object.keys(arrays) as ElementType[];

/** A dense tensor, row-major. `data.length` is the product of `shape`. Treated as immutable. */
export interface Tensor {
  readonly type: ElementType;
  readonly shape: readonly number[];
  readonly data: ElementArray;
}

/** The type of a value whose shape is static. */
export interface ValueType {
  readonly type: ElementType;
  readonly shape: readonly number[];
}

/** The number of elements of a shape (1 for a scalar). */
export function elementCount(shape: readonly number[]): number {
  let count = 1;
  for (const dimension of shape) count *= dimension;
  return count;
}

/** Bytes of one element. */
export function elementBytes(type: ElementType): number {
  return arrays[type].BYTES_PER_ELEMENT;
}

/** Bytes of a value of this type. */
export function byteLength(value: ValueType): number {
  return elementCount(value.shape) * elementBytes(value.type);
}

/** True for the types that can carry gradients. */
export function isFloat(type: ElementType): boolean {
  return type === 'float32' || type === 'float64' || type === 'float16';
}

/** A new typed array of zeros. */
export function allocate<T extends ElementType>(type: T, count: number): ElementArray<T> {
  return new arrays[type](count) as ElementArray<T>;
}

/** The typed array of `type` over existing bytes; without a copy if `byteOffset` is aligned. */
export function viewBytes<T extends ElementType>(type: T, bytes: Uint8Array): ElementArray<T> {
  const array = arrays[type];
  const size = array.BYTES_PER_ELEMENT;
  assert(bytes.byteLength % size === 0, `${bytes.byteLength} bytes are not a whole number of ${type} elements`);
  // not slice(), which does not copy a Node Buffer
  const aligned = bytes.byteOffset % size === 0 ? bytes : new Uint8Array(bytes);
  return new array(aligned.buffer as ArrayBuffer, aligned.byteOffset, aligned.byteLength / size) as ElementArray<T>;
}

/** The raw bytes of a tensor: a view, not a copy. */
export function tensorBytes(tensor: Tensor): Uint8Array {
  return new Uint8Array(tensor.data.buffer as ArrayBuffer, tensor.data.byteOffset, tensor.data.byteLength);
}

/** A tensor from numbers (converted for bigint types). Throws if shape and count disagree. */
export function tensor(type: ElementType, shape: readonly number[], values: ArrayLike<number>): Tensor {
  const count = elementCount(shape);
  assert(
    count === values.length,
    `a tensor of shape [${shape.join(', ')}] needs ${count} values, not ${values.length}`,
  );
  const data = allocate(type, count);
  if (data instanceof BigInt64Array || data instanceof BigUint64Array) {
    for (let index = 0; index < count; index++) data[index] = BigInt(values[index] as number);
  } else {
    for (let index = 0; index < count; index++) data[index] = values[index] as number;
  }
  return { type, shape: [...shape], data };
}

/** A tensor around an existing typed array, without a copy. */
export function wrap<T extends ElementType>(type: T, shape: readonly number[], data: ElementArray<T>): Tensor {
  assert(elementCount(shape) === data.length, `shape [${shape.join(', ')}] does not hold ${data.length} elements`);
  return { type, shape: [...shape], data };
}

/** Tensors whose elements are not at hand: of {@link lazyTensor} until they are read, {@link rereadTensor} always. */
const unread = new WeakSet<Tensor>();

/**
 * A tensor whose elements are computed when first read, and kept: for weights of which a plan needs only the sizes.
 * `make` must return as many elements as the shape has.
 */
export function lazyTensor<T extends ElementType>(
  type: T,
  shape: readonly number[],
  make: () => ElementArray<T>,
): Tensor {
  let data: ElementArray<T> | undefined;
  const lazy: Tensor = {
    type,
    shape: [...shape],
    get data(): ElementArray<T> {
      if (data === undefined) {
        data = make();
        assert(
          elementCount(shape) === data.length,
          `shape [${shape.join(', ')}] does not hold ${data.length} elements`,
        );
        unread.delete(lazy);
      }
      return data;
    },
  };
  unread.add(lazy);
  return lazy;
}

/** Where the elements of a tensor lie as they are in memory. */
export interface FilePlace {
  readonly folder: string;
  /** In the folder. */
  readonly file: string;
  readonly offset: number;
}

const places = new WeakMap<Tensor, FilePlace>();

/** Where a tensor of {@link rereadTensor} lies; undefined for others, and where only its reader knows. */
export function filePlace(value: Tensor): FilePlace | undefined {
  return places.get(value);
}

/**
 * A tensor whose elements are read from elsewhere whenever they are wanted and nobody has them any more: for weights of
 * files, which a process need not hold. `read` must return the same elements each time, as many as the shape has.
 * `place`: a file that has them, which others may read without us.
 */
export function rereadTensor<T extends ElementType>(
  type: T,
  shape: readonly number[],
  read: () => ElementArray<T>,
  place?: FilePlace,
): Tensor {
  let held: WeakRef<ElementArray<T>> | undefined;
  const reread: Tensor = {
    type,
    shape: [...shape],
    get data(): ElementArray<T> {
      const found = held?.deref();
      if (found !== undefined) return found;
      const data = read();
      assert(elementCount(shape) === data.length, `shape [${shape.join(', ')}] does not hold ${data.length} elements`);
      held = new WeakRef(data);
      return data;
    },
  };
  unread.add(reread);
  if (place !== undefined) places.set(reread, place);
  return reread;
}

/** True for a tensor whose elements are not at hand. */
export function isUnread(value: Tensor): boolean {
  return unread.has(value);
}

/** A scalar (shape []) of the given type. */
export function scalar(type: ElementType, value: number): Tensor {
  return tensor(type, [], [value]);
}

/** An int64 vector, the form of ONNX's shapes and axes. */
export function int64s(values: readonly number[]): Tensor {
  return tensor('int64', [values.length], values);
}

/** The elements as numbers (exact for integers below 2^53). */
export function toNumbers(value: Tensor): number[] {
  return Array.from(value.data as ArrayLike<number | bigint>, Number);
}

/** True when two shapes are the same. */
export function sameShape(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((dimension, index) => dimension === b[index]);
}
