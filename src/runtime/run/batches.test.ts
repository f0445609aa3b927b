import assert from 'node:assert/strict';
import { test } from 'node:test';
import { resolveSettings } from '../../cli/settings.ts';
import { tensor } from '../../graph/tensor.ts';
import { exactSequence } from '../../rehearsal/exact-model.ts';
import { createDataset, type Dataset, labelField } from '../../training/data/dataset.ts';
import { batchAt, scaleOf } from '../protocol/round-batch.ts';
import { batchesOf, batchOrder, comingRestSize, leftOut } from './batches.ts';

/** Five samples of two labels each, some of them left out. */
function data(ignored?: readonly number[]): Dataset {
  const values = [0, 1, 9, 1, 9, 9, 9, 9, 0, 9];
  const dataset = createDataset('data', [], labelField(tensor('int64', [5, 2], values), 'y.npy'));
  return ignored === undefined ? dataset : { ...dataset, labels: { ...dataset.labels, ignored } };
}

const order = { sampleCount: 5, batchSize: 2, restSize: 1, seed: 0, shuffle: false };

test('the factor makes the mean over the labels that count of sums for a mean over a whole batch', () => {
  const some = batchesOf(data([9]), order);
  // 4 labels a batch, of which 3, 0 and 1 count.
  assert.deepEqual(
    [0, 1, 2, 3].map((round) => some(round)),
    [
      { sampleCount: 2, factor: 4 / 3 },
      { sampleCount: 2, factor: 0 },
      { sampleCount: 1, factor: 4 },
      { sampleCount: 2, factor: 4 / 3 },
    ],
  );
  const all = batchesOf(data(), order);
  assert.deepEqual(
    [0, 2].map((round) => all(round)),
    [
      { sampleCount: 2, factor: 1 },
      { sampleCount: 1, factor: 2 },
    ],
  );
  assert.deepEqual(batchAt({ batchSize: 7 }, 3), { sampleCount: 7, factor: 1 });
});

test('batches are the same in any order of rounds, however long ago they were asked for', () => {
  const batches = batchesOf(data([9]), order);
  const forward = Array.from({ length: 30 }, (_, round) => batches(round));
  const backward = Array.from({ length: 30 }, (_, index) => batches(29 - index)).reverse();
  assert.deepEqual(backward, forward);
});

test('gradients are clipped by the norm of the mean’s gradient', () => {
  const clip = (squaredNorm: number): number => Math.min(1, 6 / Math.sqrt(squaredNorm));
  // A gradient of norm 3 is one of norm 12 for the mean, which is clipped to 6.
  assert.equal(scaleOf({ factor: 4 }, 9, clip), 2);
  assert.equal(scaleOf({ factor: 1 }, 9, clip), 1);
  assert.equal(
    scaleOf({ factor: 0 }, 0, () => 1),
    0,
  );
});

test('a model of a fixed batch size takes multiples of it, and a note says what is left', () => {
  const settings = resolveSettings({ model: 'm', data: 'd', batch: '8' }, {}, '');
  const fixed = { ...exactSequence(1), fixedBatch: 2 };
  const some = { ...data(), sampleCount: 21 };
  const made = batchOrder(some, settings, fixed);
  assert.deepEqual(made, { sampleCount: 21, batchSize: 8, restSize: 4, seed: 0, shuffle: true });
  assert.deepEqual(leftOut(made, settings, fixed), [
    '1 of 21 samples is left out of each epoch, other ones each time if they are shuffled: the model was exported ' +
      'for batches of exactly 2.',
  ]);
  const dropping = { ...settings, dropLast: true };
  assert.equal(batchOrder(some, dropping, fixed).restSize, 0);
  assert.deepEqual(leftOut(batchOrder(some, dropping, fixed), dropping, fixed), []);
  assert.deepEqual(leftOut(batchOrder(some, settings, exactSequence(1)), settings, exactSequence(1)), []);
});

test('devices get ready for a smaller batch that the run comes to', () => {
  assert.equal(comingRestSize(order, {}), 1);
  assert.equal(comingRestSize(order, { steps: 3 }), 1);
  assert.equal(comingRestSize(order, { steps: 2 }), 0);
  assert.equal(comingRestSize({ ...order, restSize: 0 }, {}), 0);
});
