// Which samples a round trains on: a pure function of (seed, epoch, index), the same on every device, so a worker needs
// no list of samples. An epoch is floor(sampleCount / batchSize) whole batches and, where `restSize` says so, a smaller
// one; samples that are in none are left out until another epoch's order picks them.

import { assert } from '../../assert.ts';
import { InputError } from '../../errors.ts';
import { createRandom, permutation } from '../../random.ts';
import { groupedByLength, paddedLength, type SampleLengths } from './lengths.ts';

/** How batches are drawn. Plain data, sent with the program. */
export interface BatchOrder {
  readonly sampleCount: number;
  /** Samples of one round, over all micro-batches and devices. */
  readonly batchSize: number;
  /** Samples of an epoch's last batch, behind the whole ones (`restSizeOf`). Default 0: there is none. */
  readonly restSize?: number;
  readonly seed: number;
  /** True: a new order each epoch; false: the file's order. */
  readonly shuffle: boolean;
  /**
   * Samples are the steps of sequences of this length, one sequence after the other. A batch is of whole sequences, and
   * has the first step of each, then the second of each, and so on. `batchSize` is a multiple. Default 1.
   */
  readonly sequenceLength?: number;
  /** Whole batches are padded to their own length, and shuffled ones have samples of like length. Default: neither. */
  readonly lengths?: SampleLengths;
}

/**
 * Samples that the whole batches of an epoch leave, and that one more round can take: of a model that runs only with
 * batches of `fixedBatch` samples, a multiple of that. Throws InputError as `roundsPerEpoch` does.
 */
export function restSizeOf(order: Pick<BatchOrder, 'sampleCount' | 'batchSize'>, fixedBatch = 1): number {
  const left = order.sampleCount - wholeBatchCount(order) * order.batchSize;
  return left - (left % fixedBatch);
}

/** Rounds in one epoch, at least 1. Throws InputError if a batch is larger than the data. */
export function roundsPerEpoch(order: BatchOrder): number {
  return wholeBatchCount(order) + ((order.restSize ?? 0) > 0 ? 1 : 0);
}

function wholeBatchCount({ sampleCount, batchSize }: Pick<BatchOrder, 'sampleCount' | 'batchSize'>): number {
  if (!Number.isInteger(batchSize) || batchSize < 1)
    throw new InputError(`The batch size is ${batchSize}; it must be an integer of at least 1.`);
  if (batchSize > sampleCount) {
    throw new InputError(
      `The batch size ${batchSize} is larger than the data (${sampleCount} samples); choose --batch ` +
        `${sampleCount} or less.`,
    );
  }
  return Math.floor(sampleCount / batchSize);
}

/** The epoch (from 0) of a round (from 0). */
export function epochOf(order: BatchOrder, round: number): number {
  return Math.floor(round / roundsPerEpoch(order));
}

/**
 * The samples of round `round` (from 0): a new array of `batchSize` indices, or of `restSize` in an epoch's last round.
 * O(batch), after O(samples) once an epoch.
 */
export function batchIndices(order: BatchOrder, round: number): Uint32Array {
  assert(Number.isSafeInteger(round) && round >= 0, `round ${round} is not a valid round`);
  const { sequenceLength = 1, shuffle } = order;
  const rounds = roundsPerEpoch(order);
  const place = round % rounds;
  const size = place < wholeBatchCount(order) ? order.batchSize : (order.restSize ?? 0);
  const [start, count] = [(place * order.batchSize) / sequenceLength, size / sequenceLength];
  const sequences = shuffle
    ? epochOrder(order, Math.floor(round / rounds)).slice(start, start + count)
    : Uint32Array.from({ length: count }, (_, index) => start + index);
  return sequenceLength === 1 ? sequences : stepsOf(sequences, sequenceLength);
}

/** What the samples of a round are padded to; undefined: to what all samples are. */
export function roundLength(order: BatchOrder, round: number): number | undefined {
  if (order.lengths === undefined) return undefined;
  const indices = batchIndices(order, round);
  return indices.length < order.batchSize ? undefined : paddedLength(order.lengths, indices);
}

/** The steps of sequences: the first of each, then the second of each, and so on. */
export function stepsOf(sequences: Uint32Array, sequenceLength: number): Uint32Array {
  const count = sequences.length;
  return Uint32Array.from(
    { length: count * sequenceLength },
    (_, index) => (sequences[index % count] as number) * sequenceLength + Math.floor(index / count),
  );
}

/** The last epoch's order, which the next round usually needs again, and what it is made of. */
let kept: { readonly key: readonly unknown[]; readonly order: Uint32Array } | undefined;

function epochOrder(order: BatchOrder, epoch: number): Uint32Array {
  const { sampleCount, sequenceLength = 1, batchSize, seed, lengths } = order;
  const count = sampleCount / sequenceLength;
  const key = [count, seed, epoch, lengths, lengths === undefined ? undefined : batchSize];
  if (kept === undefined || key.some((part, index) => part !== kept?.key[index])) {
    const shuffled = permutation(count, createRandom(seed, epoch, 0xda7a));
    const random = createRandom(seed, epoch, 0x1e27);
    const own = lengths === undefined ? shuffled : groupedByLength(shuffled, lengths.tokens, { batchSize, random });
    kept = { key, order: own };
  }
  return kept.order;
}
