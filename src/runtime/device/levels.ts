// Float32 values as whole numbers of 2, 4, 6 or 8 bits: value = low + number · step, between two ends (clipping.ts) for
// each group of values. A group is one sample, so that what becomes of a sample depends on no other one, whatever
// micro-batch and whichever share it is in. Numbers are packed from a byte's low bits upwards; a group begins with a
// new byte. Loops over typed arrays; nothing is allocated for a tensor but its result, from used memory.

import { ProtocolError } from '../../errors.ts';
import { takeMemory } from '../../transport/tensor-memory.ts';
import { clippedEnds, type Ends } from './clipping.ts';

/** Where a group's values are and what they become. */
interface Group {
  readonly values: Float32Array;
  readonly first: number;
  readonly end: number;
  readonly low: number;
  /** 0: all values of the group are equal. */
  readonly step: number;
}

/** How numbers of some bits lie in bytes. */
interface Packing {
  /** Writes the numbers of a group's values from byte `at` on. */
  pack(group: Group, bytes: Uint8Array, at: number): void;
  /** Writes the values of a group's numbers. */
  unpack(group: Group, bytes: Uint8Array, at: number): void;
}

/** The number of the nearest level, 0 … last. */
function nearest(value: number, low: number, inverse: number, last: number): number {
  const at = (value - low) * inverse + 0.5;
  return at > last ? last : at > 0 ? at | 0 : 0;
}

function inverseOf(step: number): number {
  return step > 0 ? 1 / step : 0;
}

const eight: Packing = {
  pack({ values, first, end, low, step }, bytes, at) {
    const inverse = inverseOf(step);
    for (let index = first; index < end; index++)
      bytes[at + index - first] = nearest(values[index] as number, low, inverse, 255);
  },
  unpack({ values, first, end, low, step }, bytes, at) {
    for (let index = first; index < end; index++) values[index] = low + (bytes[at + index - first] as number) * step;
  },
};

/** Four numbers in three bytes; the numbers that a last, shorter group of four lacks are 0. */
const six: Packing = {
  pack({ values, first, end, low, step }, bytes, at) {
    const inverse = inverseOf(step);
    const whole = end - ((end - first) & 3);
    let to = at;
    for (let index = first; index < whole; index += 4, to += 3) {
      const a = nearest(values[index] as number, low, inverse, 63);
      const b = nearest(values[index + 1] as number, low, inverse, 63);
      const c = nearest(values[index + 2] as number, low, inverse, 63);
      const d = nearest(values[index + 3] as number, low, inverse, 63);
      bytes[to] = a | (b << 6);
      bytes[to + 1] = (b >> 2) | (c << 4);
      bytes[to + 2] = (c >> 4) | (d << 2);
    }
    let rest = 0;
    for (let index = whole; index < end; index++)
      rest |= nearest(values[index] as number, low, inverse, 63) << (6 * (index - whole));
    for (let left = packedLength(end - whole, 6); left > 0; left--, rest >>= 8) bytes[to++] = rest & 255;
  },
  unpack({ values, first, end, low, step }, bytes, at) {
    const whole = end - ((end - first) & 3);
    let from = at;
    for (let index = first; index < whole; index += 4, from += 3) {
      const a = bytes[from] as number;
      const b = bytes[from + 1] as number;
      const c = bytes[from + 2] as number;
      values[index] = low + (a & 63) * step;
      values[index + 1] = low + ((a >> 6) | ((b & 15) << 2)) * step;
      values[index + 2] = low + ((b >> 4) | ((c & 3) << 4)) * step;
      values[index + 3] = low + (c >> 2) * step;
    }
    const rest = (bytes[from] ?? 0) | ((bytes[from + 1] ?? 0) << 8) | ((bytes[from + 2] ?? 0) << 16);
    for (let index = whole; index < end; index++) values[index] = low + ((rest >> (6 * (index - whole))) & 63) * step;
  },
};

const four: Packing = {
  pack({ values, first, end, low, step }, bytes, at) {
    const inverse = inverseOf(step);
    const whole = end - ((end - first) & 1);
    let to = at;
    for (let index = first; index < whole; index += 2) {
      const a = nearest(values[index] as number, low, inverse, 15);
      bytes[to++] = a | (nearest(values[index + 1] as number, low, inverse, 15) << 4);
    }
    if (whole < end) bytes[to] = nearest(values[whole] as number, low, inverse, 15);
  },
  unpack({ values, first, end, low, step }, bytes, at) {
    const whole = end - ((end - first) & 1);
    let from = at;
    for (let index = first; index < whole; index += 2) {
      const byte = bytes[from++] as number;
      values[index] = low + (byte & 15) * step;
      values[index + 1] = low + (byte >> 4) * step;
    }
    if (whole < end) values[whole] = low + ((bytes[from] as number) & 15) * step;
  },
};

const two: Packing = {
  pack({ values, first, end, low, step }, bytes, at) {
    const inverse = inverseOf(step);
    const whole = end - ((end - first) & 3);
    let to = at;
    for (let index = first; index < whole; index += 4) {
      const a = nearest(values[index] as number, low, inverse, 3);
      const b = nearest(values[index + 1] as number, low, inverse, 3);
      const c = nearest(values[index + 2] as number, low, inverse, 3);
      bytes[to++] = a | (b << 2) | (c << 4) | (nearest(values[index + 3] as number, low, inverse, 3) << 6);
    }
    if (whole === end) return;
    let rest = 0;
    for (let index = whole; index < end; index++)
      rest |= nearest(values[index] as number, low, inverse, 3) << (2 * (index - whole));
    bytes[to] = rest;
  },
  unpack({ values, first, end, low, step }, bytes, at) {
    const whole = end - ((end - first) & 3);
    let from = at;
    for (let index = first; index < whole; index += 4) {
      const byte = bytes[from++] as number;
      values[index] = low + (byte & 3) * step;
      values[index + 1] = low + ((byte >> 2) & 3) * step;
      values[index + 2] = low + ((byte >> 4) & 3) * step;
      values[index + 3] = low + (byte >> 6) * step;
    }
    for (let index = whole; index < end; index++)
      values[index] = low + (((bytes[from] as number) >> (2 * (index - whole))) & 3) * step;
  },
};

/** Bits of a number. */
export type LevelBits = 2 | 4 | 6 | 8;

const packings: Readonly<Record<LevelBits, Packing>> = { 2: two, 4: four, 6: six, 8: eight };

function isLevelBits(bits: number): bits is LevelBits {
  return Object.hasOwn(packings, bits);
}

/** Bytes of `count` numbers. */
export function packedLength(count: number, bits: LevelBits): number {
  return Math.ceil((count * bits) / 8);
}

/** Beyond it, in magnitude, differences and steps might leave float32. */
const mostMagnitude = 2 ** 126;

/** The ends of groups of values; undefined if some value is not finite, or too large for steps. */
function wholeEnds(values: Float32Array, groupCount: number): Ends[] | undefined {
  const length = values.length / groupCount;
  const found: Ends[] = [];
  for (let group = 0; group < groupCount; group++) {
    let low = Number.POSITIVE_INFINITY;
    let high = Number.NEGATIVE_INFINITY;
    let zero = 0;
    for (let index = group * length; index < (group + 1) * length; index++) {
      const value = values[index] as number;
      if (value < low) low = value;
      if (value > high) high = value;
      zero += value * 0;
    }
    if (zero !== 0 || low < -mostMagnitude || high > mostMagnitude) return undefined;
    found.push({ low, high });
  }
  return found;
}

/**
 * The numbers of values in groups of equal length, one after the other, and what they mean: [bits, groupCount, low,
 * step, low, step, …] as float32. undefined if some value is not finite or beyond 2^126. `groupCount` divides the
 * number of values, of which there is one at least.
 */
export function encodeLevels(
  values: Float32Array,
  groupCount: number,
  bits: LevelBits,
): { readonly bytes: Uint8Array; readonly meaning: readonly number[] } | undefined {
  const wholes = wholeEnds(values, groupCount);
  if (wholes === undefined) return undefined;
  const length = values.length / groupCount;
  const groupBytes = packedLength(length, bits);
  const bytes = takeMemory(groupCount * groupBytes);
  const meaning: number[] = [bits, groupCount];
  for (const [group, whole] of wholes.entries()) {
    const first = group * length;
    const { low: wanted, high } = clippedEnds(values, first, first + length, whole, bits);
    const low = Math.fround(wanted);
    const step = Math.fround((high - low) / (2 ** bits - 1));
    meaning.push(low, step);
    packings[bits].pack({ values, first, end: first + length, low, step }, bytes, group * groupBytes);
  }
  return { bytes, meaning };
}

/**
 * The values of encodeLevels' bytes, whose meaning begins at `at`, and where the meaning ends. There may be one group
 * or `sampleCount`. Throws ProtocolError for anything that encodeLevels would not make of `count` values.
 */
export function decodeLevels(
  bytes: Uint8Array,
  meaning: Float32Array,
  at: number,
  { count, sampleCount }: { readonly count: number; readonly sampleCount: number },
): { readonly values: Float32Array; readonly next: number } {
  const [bits = Number.NaN, groupCount = Number.NaN] = [meaning[at], meaning[at + 1]];
  if (!isLevelBits(bits)) throw new ProtocolError(`A compressed frame has ${bits} bits an element; use 2, 4, 6 or 8.`);
  if ((groupCount !== 1 && groupCount !== sampleCount) || count % groupCount !== 0)
    throw new ProtocolError(`A compressed frame has ${groupCount} groups of values for ${sampleCount} samples.`);
  const next = at + 2 + 2 * groupCount;
  const length = count / groupCount;
  const groupBytes = packedLength(length, bits);
  if (meaning.length < next || bytes.length !== groupCount * groupBytes)
    throw new ProtocolError(
      `A compressed frame has ${bytes.length} bytes for ${count} elements of ${bits} bits in ${groupCount} groups.`,
    );
  const values = new Float32Array(takeMemory(4 * count).buffer);
  for (let group = 0; group < groupCount; group++) {
    const [low, step] = [meaning[at + 2 + 2 * group] as number, meaning[at + 3 + 2 * group] as number];
    const isSound = Math.abs(low) <= 2 * mostMagnitude && step >= 0 && step * (2 ** bits - 1) <= 2 * mostMagnitude;
    if (!isSound)
      throw new ProtocolError(`A compressed frame has levels from ${low} in steps of ${step}, which is out of range.`);
    const first = group * length;
    packings[bits].unpack({ values, first, end: first + length, low, step }, bytes, group * groupBytes);
  }
  return { values, next };
}
