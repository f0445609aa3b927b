// Sets samples apart for testing.

import { InputError } from '../../errors.ts';
import { createRandom, permutation } from '../../random.ts';
import { type Dataset, rowOf, subset } from './dataset.ts';

/**
 * Splits off `testFraction` of the samples (rounded, at least one) for testing, chosen by the seed alone; both parts
 * keep the file's order. Of samples that have one class each, every class gives its share, to the nearest sample.
 * Throws InputError if either part would be empty.
 */
export function split(
  dataset: Dataset,
  testFraction: number,
  seed: number,
): { readonly train: Dataset; readonly test: Dataset } {
  const { name, sampleCount } = dataset;
  if (!(testFraction > 0 && testFraction < 1))
    throw new InputError(`The test fraction is ${testFraction}; it must lie between 0 and 1.`);
  if (sampleCount < 2)
    throw new InputError(`${name} has only ${sampleCount} sample, which cannot be split into training and test data.`);
  const testCount = Math.min(sampleCount - 1, Math.max(1, Math.round(sampleCount * testFraction)));
  const order = permutation(sampleCount, createRandom(seed, 0x7e57));
  const isTest = chosen(dataset, order, testCount);
  return {
    train: subset(dataset, order.filter((sample) => isTest[sample] === 0).sort()),
    test: subset(dataset, order.filter((sample) => isTest[sample] === 1).sort()),
  };
}

/** 1 for each sample that is chosen. */
function chosen(dataset: Dataset, order: Uint32Array, testCount: number): Uint8Array {
  const isTest = new Uint8Array(order.length);
  const shares = sharesOf(dataset, testCount);
  let left = testCount;
  for (const sample of order) {
    if (left === 0) break;
    const label = shares === undefined ? 0 : labelOf(dataset, sample);
    const share = shares?.get(label) ?? (shares === undefined ? 1 : 0);
    if (share === 0) continue;
    shares?.set(label, share - 1);
    isTest[sample] = 1;
    left--;
  }
  return isTest;
}

/** How many samples each class gives, by largest remainders; undefined if samples have no single class. */
function sharesOf(dataset: Dataset, testCount: number): Map<number, number> | undefined {
  const { classCount, labels, sampleCount } = dataset;
  if (classCount === undefined || labels.values.shape.length !== 1) return undefined;
  const counts = new Map<number, number>();
  for (let sample = 0; sample < sampleCount; sample++) {
    const label = labelOf(dataset, sample);
    counts.set(label, (counts.get(label) ?? 0) + 1);
  }
  const exact = [...counts].map(([label, count]) => ({ label, count: (count * testCount) / sampleCount }));
  const shares = new Map(exact.map(({ label, count }) => [label, Math.floor(count)]));
  let left = testCount - [...shares.values()].reduce((sum, share) => sum + share, 0);
  const byRemainder = exact.sort((a, b) => (b.count % 1) - (a.count % 1) || a.label - b.label);
  for (const { label } of byRemainder) {
    if (left-- <= 0) break;
    shares.set(label, (shares.get(label) ?? 0) + 1);
  }
  return shares;
}

function labelOf(dataset: Dataset, sample: number): number {
  return Number(dataset.labels.values.data[rowOf(dataset, sample)]);
}
