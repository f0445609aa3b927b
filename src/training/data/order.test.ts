import assert from 'node:assert/strict';
import test from 'node:test';
import fc from 'fast-check';
import { InputError } from '../../errors.ts';
import { type BatchOrder, batchIndices, epochOf, restSizeOf, roundsPerEpoch } from './order.ts';

const order = (sampleCount: number, batchSize: number, more: Partial<BatchOrder> = {}): BatchOrder => ({
  sampleCount,
  batchSize,
  seed: 7,
  shuffle: true,
  ...more,
});

test('without shuffling, rounds follow the file and restart after each epoch', () => {
  const plain = order(7, 3, { shuffle: false });
  assert.deepEqual(
    [0, 1, 2, 3].map((round) => [...batchIndices(plain, round)]),
    [
      [0, 1, 2],
      [3, 4, 5],
      [0, 1, 2],
      [3, 4, 5],
    ],
  );
  assert.deepEqual(
    [0, 1, 2, 3].map((round) => epochOf(plain, round)),
    [0, 0, 1, 1],
  );
});

test('what does not fill a last batch makes a smaller one, if it may', () => {
  assert.deepEqual([restSizeOf(order(7, 3)), restSizeOf(order(6, 3)), restSizeOf(order(15, 8), 4)], [1, 0, 4]);
  const plain = order(7, 3, { shuffle: false, restSize: 1 });
  assert.equal(roundsPerEpoch(plain), 3);
  assert.deepEqual(
    [0, 1, 2, 3].map((round) => [...batchIndices(plain, round)]),
    [[0, 1, 2], [3, 4, 5], [6], [0, 1, 2]],
  );
  assert.deepEqual(
    [1, 2, 3, 5, 6].map((round) => epochOf(plain, round)),
    [0, 0, 1, 1, 2],
  );
  const shuffled = order(7, 3, { restSize: 1 });
  for (const epoch of [0, 1]) {
    const seen = [0, 1, 2].flatMap((round) => [...batchIndices(shuffled, 3 * epoch + round)]);
    assert.deepEqual(seen.sort(), [0, 1, 2, 3, 4, 5, 6]);
  }
});

test('the order of a seed never changes', () => {
  assert.deepEqual(
    [0, 1, 2].map((round) => [...batchIndices(order(8, 4), round)]),
    [
      [7, 6, 1, 3],
      [4, 0, 5, 2],
      [1, 4, 5, 3],
    ],
  );
});

test('in each epoch each sample occurs at most once, and all but those of the incomplete batch do', () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 50 }),
      fc.integer({ min: 1, max: 50 }),
      fc.integer(),
      fc.boolean(),
      (sampleCount, batchSize, seed, shuffle) => {
        fc.pre(batchSize <= sampleCount);
        const batches = order(sampleCount, batchSize, { seed, shuffle });
        const rounds = roundsPerEpoch(batches);
        assert.equal(rounds, Math.floor(sampleCount / batchSize));
        for (const epoch of [0, 1, 5]) {
          const seen = new Set<number>();
          for (let round = epoch * rounds; round < (epoch + 1) * rounds; round++) {
            const indices = batchIndices(batches, round);
            assert.equal(indices.length, batchSize);
            for (const index of indices) {
              assert.ok(index < sampleCount && !seen.has(index));
              seen.add(index);
            }
          }
          assert.equal(seen.size, rounds * batchSize);
        }
      },
    ),
    { seed: 2, numRuns: 200 },
  );
});

test('a round is a pure function of seed, epoch and index, in any order of calls, whatever a caller writes', () => {
  const batches = order(20, 4);
  const forward = Array.from({ length: 15 }, (_, round) => [...batchIndices(batches, round)]);
  batchIndices(batches, 7).fill(0);
  batchIndices(order(20, 4, { seed: 8 }), 7);
  batchIndices(order(24, 4), 7);
  const backward = Array.from({ length: 15 }, (_, index) => [...batchIndices(batches, 14 - index)]).reverse();
  assert.deepEqual(backward, forward);
});

test('epochs and seeds have orders of their own', () => {
  const first = (seed: number, epoch: number): string => batchIndices(order(50, 50, { seed }), epoch).join();
  assert.equal(new Set([first(1, 0), first(1, 1), first(2, 0), first(2, 1)]).size, 4);
});

test('a sample is equally likely anywhere in the epoch', () => {
  const counts = new Array<number>(10).fill(0);
  for (let epoch = 0; epoch < 5000; epoch++) {
    const position = batchIndices(order(10, 10), epoch).indexOf(3);
    counts[position] = (counts[position] ?? 0) + 1;
  }
  // 500 expected each; standard deviation 21.
  for (const count of counts) assert.ok(Math.abs(count - 500) < 110, counts.join());
});

test('a batch larger than the data, or empty, is a user error', () => {
  assert.throws(
    () => batchIndices(order(10, 11), 0),
    new InputError('The batch size 11 is larger than the data (10 samples); choose --batch 10 or less.'),
  );
  assert.throws(
    () => batchIndices(order(10, 0), 0),
    new InputError('The batch size is 0; it must be an integer of at least 1.'),
  );
  assert.throws(() => batchIndices(order(10, 2.5), 0), InputError);
});
