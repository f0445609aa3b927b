import assert from 'node:assert/strict';
import { test } from 'node:test';
import { tensor, toNumbers } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import { batchOf } from './batch.ts';
import { createDataset } from './dataset.ts';
import { groupedByLength, paddedLengths } from './lengths.ts';
import { batchIndices, roundLength, roundsPerEpoch } from './order.ts';

test('lengths: few, multiples of 8, and one more only where it spares a twentieth', () => {
  // 320 tokens with one length, 128 with 16 and 64, 104 with 8, too; nothing is gained by a fourth.
  assert.deepEqual(paddedLengths(Uint32Array.of(3, 5, 7, 9, 60), 64), [8, 16, 64]);
  assert.deepEqual(paddedLengths(Uint32Array.of(61, 62, 63), 64), [64]);
  assert.deepEqual(paddedLengths(Uint32Array.of(1, 90), 20), [8, 20]); // cut at 20, which is no multiple
});

test('lengths: the best of all choices of up to four', () => {
  for (let seed = 0; seed < 20; seed++) {
    const random = createRandom(seed);
    const longest = 48;
    const tokens = Uint32Array.from({ length: 40 }, () => 1 + random.integer(longest));
    const cost = (lengths: readonly number[]): number =>
      tokens.reduce((sum, count) => sum + (lengths.find((length) => length >= count) as number), 0);
    const shorter = [8, 16, 24, 32, 40];
    const choices = Array.from({ length: 2 ** shorter.length }, (_, bits) =>
      shorter.filter((_, index) => (bits >> index) % 2 === 1),
    );
    const least = Math.min(...choices.filter((set) => set.length <= 3).map((set) => cost([...set, longest])));
    const found = paddedLengths(tokens, longest);
    assert.ok(found.length <= 4 && cost(found) <= least / 0.95 ** 3, `${cost(found)} instead of ${least}`);
    assert.ok(found.length < 4 || cost(found) === least, `${cost(found)} instead of ${least}`);
  }
});

test('batches are of samples of like length, in a random order, and what fills none stays at the end', () => {
  const tokens = Uint32Array.of(5, 1, 4, 2, 3, 9, 8);
  const order = groupedByLength(Uint32Array.of(6, 5, 4, 3, 2, 1, 0), tokens, { batchSize: 2, random: createRandom(1) });
  // By length: 1, 3, 4, 2 (that are 1, 2, 3, 4 tokens), 6 and 5; sample 0 came last.
  const pairs = [0, 2, 4].map((start) => [...order.subarray(start, start + 2)].join());
  assert.deepEqual(pairs.sort(), ['1,3', '4,2', '6,5']);
  assert.deepEqual([...order].sort(), [0, 1, 2, 3, 4, 5, 6]);
  assert.equal(order.at(-1), 0);
});

test('an epoch has every sample once; rounds are padded to their longest sample, the last to the longest', () => {
  const random = createRandom(3);
  const tokens = Uint32Array.from({ length: 103 }, () => 1 + random.integer(32));
  const lengths = { tokens, padded: [8, 16, 24, 32] };
  const order = { sampleCount: 103, batchSize: 8, restSize: 7, seed: 4, shuffle: true, lengths };
  const rounds = roundsPerEpoch(order);
  for (const epoch of [0, 1]) {
    const all = Array.from({ length: rounds }, (_, place) => batchIndices(order, epoch * rounds + place));
    assert.deepEqual(
      all.flatMap((batch) => [...batch]).sort((a, b) => a - b),
      [...Array(103).keys()],
    );
    const padded = all.map((_, place) => roundLength(order, epoch * rounds + place) ?? 32);
    for (const [place, batch] of all.entries()) {
      const longest = Math.max(...Array.from(batch, (sample) => tokens[sample] as number));
      const least = batch.length < 8 ? 32 : Math.ceil(longest / 8) * 8;
      assert.equal(padded[place], least);
    }
    assert.ok(new Set(padded).size > 2 && padded.join() !== padded.toSorted((a, b) => a - b).join(), `${padded}`);
  }
  assert.notDeepEqual(batchIndices(order, 0), batchIndices(order, rounds));
  assert.deepEqual(batchIndices(order, 2), batchIndices({ ...order }, 2));
});

test('a batch of a length has the first tokens of each sample', async () => {
  const values = tensor('int32', [2, 4], [1, 2, 3, 0, 4, 5, 0, 0]);
  const field = { name: 'input_ids', values, type: 'int64', divisor: 1, source: 'x' } as const;
  const labels = { ...field, name: 'labels', values: tensor('int32', [2], [0, 1]) };
  const dataset = createDataset('x', [field], labels);
  const { inputs } = await batchOf(dataset, Uint32Array.of(1, 0), { round: 0, epoch: 0, length: 3 });
  assert.deepEqual(inputs[0]?.shape, [2, 3]);
  assert.deepEqual(toNumbers(inputs[0] ?? values), [4, 5, 0, 1, 2, 3]);
});
