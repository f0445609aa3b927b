import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Tensor, tensor, toNumbers } from '../../graph/tensor.ts';
import { createDataset, type Dataset, gather, inputField, labelField } from './dataset.ts';
import { mix } from './mix.ts';

/** Samples first … first + count − 1, whose one feature is their number. */
function numbered(first: number, count: number, classCount = 3): Dataset {
  const values = Array.from({ length: count }, (_, index) => first + index);
  const labels: Tensor = tensor(
    'int64',
    [count],
    values.map((value) => value % classCount),
  );
  const input = inputField('input', tensor('float32', [count, 1], values), 'x.npy');
  return createDataset(`from ${first}`, [input], labelField(labels, 'y.npy'), classCount);
}

const numbersOf = (dataset: Dataset): number[] =>
  toNumbers(
    gather(
      dataset,
      Uint32Array.from({ length: dataset.sampleCount }, (_, index) => index),
    ).inputs[0] as Tensor,
  );

test('a mix is its parts in order, of each its share, which the seed chooses', () => {
  const parts = [
    { data: { train: numbered(0, 4) }, share: 1, text: 'npz:new.npz' },
    { data: { train: numbered(100, 10, 5), test: numbered(500, 2) }, share: 0.3, text: 'npz:old.npz' },
  ];
  const { train, test: tested } = mix(parts, 7);
  const numbers = numbersOf(train);
  assert.deepEqual(numbers.slice(0, 4), [0, 1, 2, 3]);
  assert.equal(numbers.length, 7);
  assert.ok(numbers.slice(4).every((number, index, all) => number >= 100 && number > (all[index - 1] ?? 99)));
  assert.equal(train.classCount, 5);
  assert.deepEqual(tested && numbersOf(tested), [500, 501]);
  assert.deepEqual(numbersOf(mix(parts, 7).train), numbers);
  const others = [1, 2, 3, 4].map((seed) => numbersOf(mix(parts, seed).train).join());
  assert.ok(new Set(others).size > 1, 'other seeds choose other samples');
});

test('samples that are not alike are not mixed', () => {
  const wide = createDataset(
    'wide',
    [inputField('input', tensor('float32', [1, 2], [1, 2]), 'x.npy')],
    labelField(tensor('int64', [1], [0]), 'y.npy'),
  );
  const parts = [
    { data: { train: numbered(0, 4) }, share: 1, text: 'npz:a.npz' },
    { data: { train: wide }, share: 1, text: 'csv:b.csv' },
  ];
  assert.throws(() => mix(parts, 0), {
    message:
      'Samples of npz:a.npz (float32 1, int64) and of csv:b.csv (float32 2, int64) are not alike: ' +
      'mix data that are stored in one form.',
  });
});
