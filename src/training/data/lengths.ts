// Batches of texts of like length, padded to one of a few lengths instead of the longest of all: how these lengths are
// chosen, and which samples are in a batch together, as transformers' `group_by_length` has it.

import { permutation, type Random } from '../../random.ts';

/** How long samples are, and what their batches are padded to. */
export interface SampleLengths {
  /** Tokens of each sample, padding left out. */
  readonly tokens: Uint32Array;
  /** Ascending; the last is that of all samples. */
  readonly padded: readonly number[];
}

/** Lengths are multiples of this: shapes of one kind are compiled once, and kernels like even sizes. */
export const lengthStep = 8;

/** Each length has graphs of its own on each device. */
const lengthLimit = 4;

/** One length more has to leave at most this part of the tokens. */
const worthwhile = 0.95;

/** Batches that are sorted together, as transformers does: more would be in the same company every epoch. */
const sortedBatchCount = 50;

/** At most four lengths, `longest` among them, to which samples are filled up with the fewest tokens in all. */
export function paddedLengths(tokens: Uint32Array, longest: number): readonly number[] {
  const counts = new Map<number, number>();
  for (const count of tokens) {
    const length = Math.min(longest, Math.max(1, Math.ceil(count / lengthStep)) * lengthStep);
    counts.set(length, (counts.get(length) ?? 0) + 1);
  }
  const lengths = [...new Set([...counts.keys(), longest])].sort((a, b) => a - b);
  let sum = 0;
  const upTo = lengths.map((length) => (sum += counts.get(length) ?? 0));
  const added = (before: number, end: number): number =>
    (lengths[end] as number) * ((upTo[end] as number) - (before < 0 ? 0 : (upTo[before] as number)));
  /** By the longest of the chosen lengths: the fewest tokens of samples up to it. */
  let best = lengths.map((length, end) => ({ tokens: added(-1, end), chosen: [length] }));
  for (let count = 2; count <= lengthLimit; count++) {
    const former = best;
    best = lengths.map((length, end) => {
      let least = former[end] as (typeof best)[number];
      for (const [before, { tokens: own, chosen }] of former.slice(0, end).entries())
        if (own + added(before, end) < least.tokens)
          least = { tokens: own + added(before, end), chosen: [...chosen, length] };
      return least;
    });
    if ((best.at(-1)?.tokens ?? 0) > worthwhile * (former.at(-1)?.tokens ?? 0)) return former.at(-1)?.chosen ?? [];
  }
  return best.at(-1)?.chosen ?? [];
}

/** What a batch of these samples is padded to; undefined: to the longest length. */
export function paddedLength({ tokens, padded }: SampleLengths, samples: Uint32Array): number | undefined {
  const most = samples.reduce((longest, sample) => Math.max(longest, tokens[sample] as number), 0);
  const length = padded.find((candidate) => candidate >= most);
  return length === padded.at(-1) ? undefined : length;
}

/**
 * Samples, which are in a random order, in another such order, in which the samples of each whole batch are of like
 * length. What fills no batch stays at the end.
 */
export function groupedByLength(
  samples: Uint32Array,
  tokens: Uint32Array,
  { batchSize, random }: { readonly batchSize: number; readonly random: Random },
): Uint32Array {
  const batchCount = Math.floor(samples.length / batchSize);
  const sorted = samples.slice();
  for (let first = 0; first < batchCount; first += sortedBatchCount) {
    const range = [first * batchSize, Math.min(batchCount, first + sortedBatchCount) * batchSize] as const;
    const block = Array.from(samples.subarray(...range));
    sorted.set(
      block.sort((a, b) => (tokens[a] as number) - (tokens[b] as number)),
      range[0],
    );
  }
  const result = sorted.slice();
  for (const [place, batch] of permutation(batchCount, random).entries())
    result.set(sorted.subarray(batch * batchSize, (batch + 1) * batchSize), place * batchSize);
  return result;
}
