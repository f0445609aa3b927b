// Float32 tensors in fewer bits for their way over a link. float16: IEEE half precision after scaling by a power of
// two, so that a tensor's largest value uses the format's whole range and nothing overflows; relative error 2^-11 down
// to 2^-28 of the largest. int8: 127 steps up to the largest value, for what is summed round after round: the error of
// each element is kept (the residual) and added before the next rounding, so that no part of a gradient is lost, only
// late (Seide et al., 2014; Karimireddy et al., 2019). uint8, uint6, uint4, uint2: levels between two ends for each
// sample (levels.ts). Deterministic; what is not finite stays not finite.
//
// The tensors of a cut say themselves how they are encoded: each float32 one comes as float16, as the packed uint8 of
// its levels, or as it is, and the last tensor of the frame has their scales and ends in the tensors' order. A sender
// may thus change its encoding from one message to the next.

import { assert, defined, unreachable } from '../../assert.ts';
import { type ActivationEncoding, encodings, type SumEncoding } from '../../cluster/compression.ts';
import { ProtocolError } from '../../errors.ts';
import { elementCount, sameShape, type Tensor, type ValueType } from '../../graph/tensor.ts';
import { takeMemory } from '../../transport/tensor-memory.ts';
import { decodeLevels, encodeLevels, type LevelBits } from './levels.ts';

/**
 * Numbers in fewer bits: value = data · scale. The scale of a piece with something that is not finite in it may be NaN.
 */
export interface Encoded {
  readonly data: Uint16Array | Int8Array;
  readonly scale: number;
}

const infinityBits = 0x7f80_0000;
/** Below it a float32 is denormal, and counts as zero. */
const leastNormalBits = 0x0080_0000;
/** Bounds of n where values are multiplied by 2^n: what a float32's exponent leaves room for. */
const [leastShift, mostShift] = [-113, 100];

function bitsOf(values: Float32Array): Int32Array {
  return new Int32Array(values.buffer, values.byteOffset, values.length);
}

/** The bits of the largest magnitude: those of floats are in the floats' order. */
function largestBits(bits: Int32Array): number {
  let most = 0;
  for (let index = 0; index < bits.length; index++) {
    const magnitude = (bits[index] as number) & 0x7fff_ffff;
    if (magnitude > most) most = magnitude;
  }
  return most;
}

/**
 * Rounds to the nearest half, ties to even (IEEE 754). In integers: a power of two is added to a float's exponent,
 * which is also a half's but for the bias.
 */
export function encodeHalf(values: Float32Array): Encoded {
  const bits = bitsOf(values);
  const most = largestBits(bits);
  if (most >>> 23 >= 254) return encodeExtreme(values);
  const shift = most < leastNormalBits ? 0 : Math.min(mostShift, 14 - ((most >>> 23) - 127));
  const data = new Uint16Array(takeMemory(2 * values.length).buffer);
  const rebias = (shift - 112) << 23;
  /**
   * From the least normal float32 up: what is below a half's least normal number. One comparison, which zeros do not
   * pass.
   */
  const denormalRange = Math.max(0, -rebias);
  for (let index = 0; index < bits.length; index++) {
    const whole = bits[index] as number;
    const magnitude = whole & 0x7fff_ffff;
    const rebiased = magnitude + rebias;
    let half = (rebiased + 0xfff + ((magnitude >>> 13) & 1)) >> 13;
    // Without a branch for zeros, of which activations are full.
    half &= ~((magnitude - leastNormalBits) >> 31);
    if ((magnitude - leastNormalBits) >>> 0 < denormalRange)
      half = denormalHalf(Math.abs(values[index] as number), shift);
    data[index] = ((whole >>> 16) & 0x8000) | half;
  }
  return { data, scale: 2 ** -shift };
}

/** A multiple of a half's least step, rounded to even by adding 2^52, whose last bit is 1. */
function denormalHalf(magnitude: number, shift: number): number {
  return (magnitude * 2 ** (shift + 24) + 2 ** 52 - 2 ** 52) | 0;
}

/**
 * The scale for tensors in which something is not finite, or as large as finite numbers get: masks in front of a
 * softmax.
 */
function encodeExtreme(values: Float32Array): Encoded {
  let most = 0;
  for (const value of values) if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
  const shift = most === 0 ? 0 : Math.max(leastShift, Math.min(mostShift, 14 - Math.floor(Math.log2(most))));
  const data = Uint16Array.from(values, (value) => {
    const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
    if (Number.isNaN(value)) return 0x7e00;
    if (!Number.isFinite(value)) return sign | 0x7c00;
    const scaled = Math.abs(value) * 2 ** shift;
    if (scaled < 2 ** -14) return sign | denormalHalf(Math.abs(value), shift);
    const exponent = Math.floor(Math.log2(scaled));
    const half = ((exponent + 15) << 10) + (scaled * 2 ** (10 - exponent) + 2 ** 52 - 2 ** 52 - 1024);
    return sign | Math.min(half, shift === leastShift ? 0x77ff : 0x7bff);
  });
  return { data, scale: 2 ** -shift };
}

/** The float32 values of halves, exactly. */
export function decodeHalf(data: Uint16Array, scale: number): Float32Array {
  const values = new Float32Array(takeMemory(4 * data.length).buffer);
  const bits = bitsOf(values);
  const rebias = (112 + Math.round(Math.log2(scale))) << 23;
  for (let index = 0; index < data.length; index++) {
    const half = data[index] as number;
    const magnitude = half & 0x7fff;
    const sign = (half & 0x8000) << 16;
    bits[index] = sign | (((magnitude << 13) + rebias) & ~((magnitude - 0x400) >> 31));
    if (magnitude >= 0x7c00)
      values[index] = magnitude > 0x7c00 ? Number.NaN : sign < 0 ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
    else if ((magnitude - 1) >>> 0 < 0x3ff) values[index] = (sign < 0 ? -magnitude : magnitude) * 2 ** -24 * scale;
  }
  return values;
}

/** Rounds values and their residuals to 8 bits; the residuals become what was lost. */
export function encodeByte(values: Float32Array, residual: Float32Array): Encoded {
  assert(values.length === residual.length, 'a residual for each value');
  for (let index = 0; index < values.length; index++)
    residual[index] = (residual[index] as number) + (values[index] as number);
  const most = largestBits(bitsOf(residual));
  const data = new Int8Array(values.length);
  if (most >= infinityBits) return { data, scale: Number.NaN }; // the round is refused, and nothing of it is kept
  const scale = Math.fround(floatOf(most) / 127);
  if (scale === 0) return { data, scale };
  const inverse = 1 / scale;
  for (let index = 0; index < values.length; index++) {
    const sum = residual[index] as number;
    // To the nearest, halves up: by cutting a positive number off. The largest is 127 and a rounding.
    const step = Math.trunc(sum * inverse + 128.5) - 128;
    data[index] = step;
    residual[index] = sum - step * scale;
  }
  return { data, scale };
}

function floatOf(bits: number): number {
  return new Float32Array(Int32Array.of(bits).buffer)[0] as number;
}

/** The values of 8-bit steps. */
export function decodeByte(data: Int8Array, scale: number): Float32Array {
  const values = new Float32Array(data.length);
  for (let index = 0; index < data.length; index++) values[index] = (data[index] as number) * scale;
  return values;
}

/** Fewer elements a sample than this travel as halves: ends for each would weigh as much as what they save. */
const leastLevelled = 64;

/**
 * The tensors with every float32 one in the encoding, and, if there are any, a last one with their scales and ends.
 * `batchAxes`: where the samples lie in each tensor; default 0. A tensor whose samples do not lie one after the other
 * has ends for all together. Values that levels cannot hold (not finite, or beyond 2^126) make their tensor halves.
 */
export function encodeTensors(
  tensors: readonly Tensor[],
  encoding: ActivationEncoding = 'float16',
  batchAxes: readonly number[] = [],
): readonly Tensor[] {
  const { codec, bits } = encodings[encoding];
  const tail: number[] = [];
  const encoded = tensors.map((tensor, index): Tensor => {
    if (tensor.type !== 'float32') return tensor;
    const values = tensor.data as Float32Array;
    const sampleCount = (batchAxes[index] ?? 0) === 0 ? (tensor.shape[0] ?? 1) : 1;
    if (codec === 'levels' && values.length >= leastLevelled * Math.max(1, sampleCount)) {
      const found = encodeLevels(values, sampleCount, bits as LevelBits);
      if (found !== undefined) {
        for (const number of found.meaning) tail.push(number);
        return { type: 'uint8', shape: [found.bytes.length], data: found.bytes };
      }
    }
    const { data, scale } = encodeHalf(values);
    tail.push(scale);
    return { type: 'float16', shape: tensor.shape, data: data as Uint16Array };
  });
  return tail.length === 0 ? encoded : [...encoded, scalesTensor(tail)];
}

/**
 * The tensors of these types and shapes that encodeTensors was given. Throws ProtocolError where they are others, or
 * scales and ends are missing or make no sense.
 */
export function decodeTensors(tensors: readonly Tensor[], expected: readonly ValueType[]): readonly Tensor[] {
  const isPlain = (value: ValueType, index: number): boolean => value.type === tensors[index]?.type;
  const tail = expected.every(isPlain) ? undefined : tensors[expected.length];
  const tailData = tail?.type === 'float32' ? (tail.data as Float32Array) : new Float32Array(0);
  if (tensors.length !== expected.length + (tail === undefined ? 0 : 1))
    throw new ProtocolError(`A compressed frame should hold ${expected.length} tensors, not ${tensors.length}.`);
  let next = 0;
  const decoded = expected.map((value, index): Tensor => {
    const found = defined(tensors[index], 'a tensor');
    if (value.type === 'float32' && found.type === 'uint8') {
      const shape = { count: elementCount(value.shape), sampleCount: value.shape[0] ?? 1 };
      const levels = decodeLevels(found.data as Uint8Array, tailData, next, shape);
      next = levels.next;
      return { ...value, data: levels.values };
    }
    const isHalf = value.type === 'float32' && found.type === 'float16';
    if ((!isHalf && found.type !== value.type) || !sameShape(found.shape, value.shape))
      throw new ProtocolError(
        `A compressed frame should hold ${value.type}[${value.shape}], not ${found.type}[${found.shape}].`,
      );
    if (!isHalf) return found;
    return { ...value, data: decodeHalf(found.data as Uint16Array, checkedScale(tailData[next++], isHalfScale)) };
  });
  if (next !== tailData.length)
    throw new ProtocolError(`A compressed frame should end with ${next} scales and ends, not ${tailData.length}.`);
  return decoded;
}

/**
 * What 8 bits have not sent yet, by part of the gradients. They go on from one round to the next; where a round is
 * repeated or left out, after a recovery, they begin at zero on all devices.
 */
export class Residuals {
  readonly #parts = new Map<string, { round: number; readonly values: Float32Array }>();

  /** The residuals of a part with `length` elements, for a round. */
  of(part: string, round: number, length: number): Float32Array {
    let found = this.#parts.get(part);
    if (found?.values.length !== length) {
      found = { round, values: new Float32Array(length) };
      this.#parts.set(part, found);
    } else if (found.round !== round - 1) found.values.fill(0);
    found.round = round;
    return found.values;
  }
}

/** A piece of a vector on its way round a ring. */
export interface PieceCodec {
  /** `first` is the piece's place in the vector. */
  encode(values: Float32Array, first: number): readonly Tensor[];
  /** Throws ProtocolError for anything but a piece of `length` elements. */
  decode(tensors: readonly Tensor[] | undefined, length: number): Float32Array;
}

/**
 * A codec for one vector's pieces; int8 alone needs the vector's residuals: it asks for them once, and changes them.
 */
export function pieceCodec(encoding: SumEncoding | undefined, residual?: () => Float32Array): PieceCodec {
  switch (encoding) {
    case undefined:
      return {
        encode: (data) => [{ type: 'float32', shape: [data.length], data }],
        decode: (tensors, length) => pieceTensor(tensors, 'float32', length, 1)[0].data as Float32Array,
      };
    case 'float16':
      return {
        encode: (values) => encodeTensors([{ type: 'float32', shape: [values.length], data: values }]),
        decode: (tensors, length) => {
          const [piece, scales] = pieceTensor(tensors, 'float16', length, 2);
          return decodeHalf(piece.data as Uint16Array, defined(scalesOf(scales, 1, isHalfScale)[0], 'a scale'));
        },
      };
    case 'int8': {
      let residuals: Float32Array | undefined;
      return {
        encode: (values, first) => {
          residuals ??= defined(residual, 'residuals')();
          const { data, scale } = encodeByte(values, residuals.subarray(first, first + values.length));
          return [{ type: 'int8', shape: [data.length], data: data as Int8Array }, scalesTensor([scale])];
        },
        decode: (tensors, length) => {
          const [piece, scales] = pieceTensor(tensors, 'int8', length, 2);
          return decodeByte(piece.data as Int8Array, defined(scalesOf(scales, 1, isByteScale)[0], 'a scale'));
        },
      };
    }
    default:
      return unreachable(encoding);
  }
}

function pieceTensor(
  tensors: readonly Tensor[] | undefined,
  type: Tensor['type'],
  length: number,
  count: number,
): readonly [Tensor, Tensor | undefined] {
  const [piece, scales] = tensors ?? [];
  if (piece === undefined || piece.type !== type || piece.data.length !== length || tensors?.length !== count) {
    const found = piece === undefined ? 'none' : `${piece.data.length} of ${piece.type}`;
    throw new ProtocolError(`An all-reduce piece should hold ${length} ${type} elements, not ${found}.`);
  }
  return [piece, scales];
}

function scalesTensor(scales: readonly number[]): Tensor {
  return { type: 'float32', shape: [scales.length], data: Float32Array.from(scales) };
}

function scalesOf(tensor: Tensor | undefined, count: number, isScale: (scale: number) => boolean): Float32Array {
  if (tensor?.type !== 'float32' || tensor.data.length !== count)
    throw new ProtocolError(`A compressed frame should end with ${count} scales.`);
  const scales = tensor.data as Float32Array;
  for (const scale of scales) checkedScale(scale, isScale);
  return scales;
}

function checkedScale(scale: number | undefined, isScale: (scale: number) => boolean): number {
  if (scale === undefined) throw new ProtocolError('A compressed frame lacks a scale.');
  if (!isScale(scale)) throw new ProtocolError(`A compressed frame has a scale of ${scale}, which is out of range.`);
  return scale;
}

function isHalfScale(scale: number): boolean {
  const exponent = Math.log2(scale);
  return Number.isInteger(exponent) && -exponent >= leastShift && -exponent <= mostShift;
}

/** NaN says that the piece is not finite. */
function isByteScale(scale: number): boolean {
  return Number.isNaN(scale) || (scale >= 0 && scale < 2 ** 122);
}
