// A seeded mutation fuzzer for parsers: valid bytes with a few things wrong. Used by tests only.

import assert from 'node:assert/strict';
import { InputError } from '../errors.ts';
import { createRandom, type Random } from '../random.ts';

/** Integers that break sizes and offsets. */
const nastyIntegers: readonly bigint[] = [
  0n,
  1n,
  0x7fn,
  0x80n,
  0xffn,
  0xffffn,
  0x7fffffffn,
  0x80000000n,
  0xffffffffn,
  0x7fffffffffffffffn,
  0xffffffffffffffffn,
];

/**
 * `original` with one to four changes: a flipped bit, a random or nasty number, a cut, a repeated, removed or moved
 * stretch.
 */
export function mutate(original: Uint8Array, random: Random): Uint8Array {
  let bytes = new Uint8Array(original);
  for (let change = random.integer(4); change >= 0; change--) bytes = mutateOnce(bytes, random);
  return bytes;
}

/**
 * Runs `parse` on `count` mutations of each original. It may succeed or throw InputError; anything else fails with the
 * seed.
 */
export function fuzz(
  originals: readonly Uint8Array[],
  count: number,
  parse: (bytes: Uint8Array) => unknown,
): { readonly refusedCount: number } {
  let refusedCount = 0;
  originals.forEach((original, which) => {
    for (let seed = 0; seed < count; seed++) {
      try {
        parse(mutate(original, createRandom(which, seed)));
      } catch (error) {
        if (!(error instanceof InputError))
          assert.fail(`mutation ${seed} of original ${which}: ${(error as Error).stack}`);
        refusedCount++;
      }
    }
  });
  return { refusedCount };
}

function mutateOnce(bytes: Uint8Array<ArrayBuffer>, random: Random): Uint8Array<ArrayBuffer> {
  if (bytes.length === 0) return Uint8Array.of(random.integer(256));
  const at = random.integer(bytes.length);
  const end = Math.min(bytes.length, at + 1 + random.integer(16));
  switch (random.integer(7)) {
    case 0:
      bytes[at] = (bytes[at] as number) ^ (1 << random.integer(8));
      return bytes;
    case 1:
      bytes[at] = random.integer(256);
      return bytes;
    case 2: {
      const width = [1, 2, 4, 8][random.integer(4)] as number;
      const value = nastyIntegers[random.integer(nastyIntegers.length)] as bigint;
      const bigEndian = random.integer(2) === 1;
      for (let index = 0; index < width && at + index < bytes.length; index++) {
        bytes[at + index] = Number((value >> BigInt(8 * (bigEndian ? width - 1 - index : index))) & 0xffn);
      }
      return bytes;
    }
    case 3:
      return bytes.slice(0, at);
    case 4:
      return joined(bytes.subarray(0, end), bytes.subarray(at));
    case 5:
      return joined(bytes.subarray(0, at), bytes.subarray(end));
    default:
      bytes.copyWithin(random.integer(bytes.length), at, end);
      return bytes;
  }
}

function joined(a: Uint8Array, b: Uint8Array): Uint8Array<ArrayBuffer> {
  const result = new Uint8Array(a.length + b.length);
  result.set(a);
  result.set(b, a.length);
  return result;
}
