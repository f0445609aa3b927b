// Elements as JavaScript numbers: how kernels read and write tensors. Arithmetic is in double precision and is rounded
// once, when the result is stored in its element type.
//
// 64-bit integers stay bigints. JavaScript's + - * and < work on numbers and on bigints (not on a mixture), so kernels
// that use only these are written once, over `Numbers`, and bigint arrays are passed under that type; `literal` gives
// constants of the matching kind.

import { allocate, type ElementType, elementCount, type Tensor } from '../tensor.ts';

/** A typed array of numbers, or one of bigints passed under this type (see the head of this file). */
export type Numbers = Float64Array;

/** True for the types whose elements are bigints. */
export function isBig(type: ElementType): boolean {
  return type === 'int64' || type === 'uint64';
}

/** True for integer types (bool is not one). */
export function isInteger(type: ElementType): boolean {
  return type.startsWith('int') || type.startsWith('uint');
}

/** The elements of a tensor, read-only: float16 decoded, 64-bit integers as bigints under the type Numbers. */
export function numbers(tensor: Tensor): Numbers {
  return tensor.type === 'float16'
    ? Float64Array.from(tensor.data as Uint16Array, halfToNumber)
    : (tensor.data as unknown as Numbers);
}

/** The elements of a tensor as actual numbers, also for 64-bit integers (exact below 2^53). */
export function plainNumbers(tensor: Tensor): Numbers {
  return isBig(tensor.type) ? Float64Array.from(tensor.data as unknown as ArrayLike<bigint>, Number) : numbers(tensor);
}

/** f applied to each element, in doubles. */
export function mapNumbers(values: Numbers, f: (value: number) => number): Numbers {
  const results = new Float64Array(values.length);
  for (let index = 0; index < results.length; index++) results[index] = f(values[index] as number);
  return results;
}

/** Zeroed working memory: doubles, or 64-bit integers for the 64-bit integer types. */
export function scratch(type: ElementType, count: number): Numbers {
  return isBig(type) ? (allocate(type, count) as unknown as Numbers) : new Float64Array(count);
}

/** A literal that can be combined with the elements of `type`. */
export function literal(type: ElementType, value: number): number {
  return isBig(type) ? (BigInt(value) as unknown as number) : value;
}

/**
 * The tensor of `type` with these values, each rounded to the type: floats to the nearest, integers modulo 2^bits, bool
 * to 0 or 1.
 */
export function store(type: ElementType, shape: readonly number[], values: Numbers): Tensor {
  if (isBig(type)) return { type, shape, data: values };
  // `values` may be another tensor's own elements.
  if (type === 'float64')
    return { type, shape, data: values instanceof Float64Array ? values : Float64Array.from(values) };
  const data = allocate(type, values.length) as Uint8Array;
  if (type === 'float16')
    for (let index = 0; index < data.length; index++) data[index] = numberToHalf(values[index] as number);
  else data.set(values);
  return { type, shape, data };
}

/**
 * A tensor of `type`, which may be a 64-bit integer type, from actual numbers; fractions are truncated, NaN and
 * infinities become 0.
 */
export function storePlain(type: ElementType, shape: readonly number[], values: Numbers): Tensor {
  if (!isBig(type)) return store(type, shape, values);
  const data = allocate(type, elementCount(shape)) as BigInt64Array;
  for (let index = 0; index < data.length; index++) data[index] = toBig(values[index] as number);
  return { type, shape, data };
}

/** The integer part as a bigint; 0 for NaN and infinities, whose conversion ONNX leaves undefined. */
export function toBig(value: number): bigint {
  return Number.isFinite(value) ? BigInt(Math.trunc(value)) : 0n;
}

/** The least value of a type: −Infinity for floats. A bigint for 64-bit integers. */
export function lowest(type: ElementType): number {
  if (type === 'int64') return -(2n ** 63n) as unknown as number;
  if (isInteger(type)) return type.startsWith('u') ? literal(type, 0) : -(2 ** (Number(type.slice(3)) - 1));
  return type === 'bool' ? 0 : Number.NEGATIVE_INFINITY;
}

/** The greatest value of a type: Infinity for floats. A bigint for 64-bit integers. */
export function highest(type: ElementType): number {
  if (isBig(type)) return (type === 'int64' ? 2n ** 63n - 1n : 2n ** 64n - 1n) as unknown as number;
  if (isInteger(type))
    return type.startsWith('u') ? 2 ** Number(type.slice(4)) - 1 : 2 ** (Number(type.slice(3)) - 1) - 1;
  return type === 'bool' ? 1 : Number.POSITIVE_INFINITY;
}

/** The value of an IEEE 754 half, given as its 16 bits. */
export function halfToNumber(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0x1f) return fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1024 + fraction) * 2 ** (exponent - 25);
}

/** The 16 bits of the nearest half, ties to even, rounded once from double precision. */
export function numberToHalf(value: number): number {
  if (Number.isNaN(value)) return 0x7e00;
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const magnitude = Math.abs(value);
  if (magnitude >= 65520) return sign | 0x7c00;
  // The unit in the last place: 2^-24 for subnormals, 2^(exponent-10) for normals. Dividing by a power of two is exact.
  let exponent = Math.max(-14, Math.floor(Math.log2(magnitude)));
  if (exponent > -14 && 2 ** exponent > magnitude) exponent--; // log2 was rounded up to the next integer
  let units = roundHalfToEven(magnitude / 2 ** (exponent - 10));
  let biased = exponent + 15;
  if (units < 1024) return sign | units; // subnormal or zero: only possible at exponent −14
  if (units >= 2048) {
    units = 1024;
    biased++;
  }
  return sign | (biased << 10) | (units - 1024);
}

/** Rounds to the nearest integer, halves to the even one. */
export function roundHalfToEven(value: number): number {
  const down = Math.floor(value);
  const rest = value - down;
  if (rest !== 0.5) return Math.round(value);
  const even = down % 2 === 0 ? down : down + 1;
  return even === 0 && value < 0 ? -0 : even;
}
