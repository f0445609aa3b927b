import assert from 'node:assert/strict';
import test from 'node:test';
import fc from 'fast-check';
import { InputError } from '../../errors.ts';
import { halfToNumber } from '../../graph/operators/numbers.ts';
import { tensor, toNumbers } from '../../graph/tensor.ts';
import { bindDataset } from './bind.ts';
import { createDataset, type Dataset, gather, inferClassCount, inputField, labelField, subset } from './dataset.ts';
import { checkLabels } from './labels.ts';
import { split } from './split.ts';

/** Sample i has the inputs [10i, 10i + 1] and the label i. */
function counting(sampleCount: number): Dataset {
  const values = Array.from({ length: sampleCount * 2 }, (_, index) => Math.floor(index / 2) * 10 + (index % 2));
  const labels = Array.from({ length: sampleCount }, (_, index) => index);
  return createDataset(
    'counting',
    [inputField('input', tensor('float32', [sampleCount, 2], values), 'x.npy')],
    labelField(tensor('int64', [sampleCount], labels), 'y.npy'),
  );
}

const labelsOf = (dataset: Dataset): number[] =>
  toNumbers(
    gather(
      dataset,
      Uint32Array.from({ length: dataset.sampleCount }, (_, index) => index),
    ).labels,
  );

test('gather copies the requested rows in order, with repeats', () => {
  const { inputs, labels } = gather(counting(5), Uint32Array.of(3, 0, 3));
  assert.deepEqual(inputs, [tensor('float32', [3, 2], [30, 31, 0, 1, 30, 31])]);
  assert.deepEqual(labels, tensor('int64', [3], [3, 0, 3]));
});

test('gathered tensors are the caller’s own', () => {
  const dataset = counting(2);
  const first = gather(dataset, Uint32Array.of(0)).inputs[0];
  first?.data.fill(9 as never);
  assert.deepEqual(toNumbers(gather(dataset, Uint32Array.of(0)).inputs[0] ?? tensor('int8', [0], [])), [0, 1]);
});

test('pixels stay bytes and are gathered as value / 255; labels as int64', () => {
  const images = tensor('uint8', [2, 1, 1, 2], [0, 255, 51, 1]);
  const dataset = createDataset(
    'images',
    [inputField('input', images, 'x')],
    labelField(tensor('uint8', [2], [7, 9]), 'y'),
  );
  assert.equal(dataset.inputs[0]?.values.data.BYTES_PER_ELEMENT, 1);
  const { inputs, labels } = gather(dataset, Uint32Array.of(0, 1));
  assert.deepEqual(inputs, [tensor('float32', [2, 1, 1, 2], [0, 1, 51 / 255, 1 / 255])]);
  assert.deepEqual(labels, tensor('int64', [2], [7, 9]));
});

test('float64 and float16 are gathered as float32, integers as int64', () => {
  const fields = [
    tensor('float64', [1, 1], [0.1]),
    tensor('float16', [1, 2], [0x3e00, 0xc000]),
    tensor('int32', [1, 1], [-5]),
    tensor('uint8', [1, 2], [1, 255]),
  ];
  const dataset = createDataset(
    'mixed',
    fields.map((field, index) => inputField(`${index}`, field, 'x')),
    labelField(tensor('float64', [1, 1], [0.5]), 'y'),
  );
  const { inputs, labels } = gather(dataset, Uint32Array.of(0));
  assert.deepEqual(inputs, [
    tensor('float32', [1, 1], [0.1]),
    tensor('float32', [1, 2], [1.5, -2]),
    tensor('int64', [1, 1], [-5]),
    tensor('int64', [1, 2], [1, 255]),
  ]);
  assert.deepEqual(labels, tensor('float32', [1, 1], [0.5]));
});

test('half-precision bits have their values', () => {
  assert.deepEqual([0x0000, 0x8000, 0x0001, 0x03ff, 0x0400, 0x3c00, 0xfbff, 0x7c00].map(halfToNumber), [
    0,
    -0,
    2 ** -24,
    1023 * 2 ** -24,
    2 ** -14,
    1,
    -65504,
    Number.POSITIVE_INFINITY,
  ]);
  assert.ok(Number.isNaN(halfToNumber(0x7e00)));
});

test('inputs and labels of different lengths, or none, are refused', () => {
  const input = inputField('input', tensor('float32', [3, 1], [1, 2, 3]), 'x.npy');
  assert.throws(
    () => createDataset('d', [input], labelField(tensor('int64', [2], [0, 1]), 'y.npy')),
    new InputError('x.npy has 3 samples, but y.npy has 2 labels; both need one row a sample.'),
  );
  assert.throws(
    () => createDataset('d', [], labelField(tensor('int64', [0], []), 'y.npy')),
    new InputError('y.npy holds no samples; at least one is needed.'),
  );
  assert.throws(
    () => createDataset('d', [], labelField(tensor('int64', [], [1]), 'y.npy')),
    new InputError('y.npy is a single number; an array with one row a sample is needed.'),
  );
});

test('rows without values are refused, however many', () => {
  const hollow = tensor('int64', [1e15, 0], []);
  assert.throws(
    () => createDataset('d', [], labelField(hollow, 'y.npy')),
    new InputError('y.npy has rows without values ([1000000000000000, 0]); each sample needs at least one.'),
  );
});

test('a split is a partition in the file’s order, the same for the same seed, different for another', () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 2, max: 60 }),
      fc.double({ min: 0.01, max: 0.99, noNaN: true }),
      fc.integer(),
      (sampleCount, fraction, seed) => {
        const { train, test: held } = split(counting(sampleCount), fraction, seed);
        const [a, b] = [labelsOf(train), labelsOf(held)];
        assert.deepEqual(
          [...a, ...b].sort((x, y) => x - y),
          Array.from({ length: sampleCount }, (_, index) => index),
        );
        assert.deepEqual([a, b], [[...a].sort((x, y) => x - y), [...b].sort((x, y) => x - y)]);
        assert.equal(b.length, Math.min(sampleCount - 1, Math.max(1, Math.round(sampleCount * fraction))));
        assert.deepEqual(labelsOf(split(counting(sampleCount), fraction, seed).test), b);
      },
    ),
    { seed: 1, numRuns: 100 },
  );
  const chosen = (seed: number): string => labelsOf(split(counting(100), 0.2, seed).test).join();
  assert.notEqual(chosen(1), chosen(2));
  assert.throws(
    () => split(counting(10), 1, 0),
    new InputError('The test fraction is 1; it must lie between 0 and 1.'),
  );
  assert.throws(() => split(counting(1), 0.5, 0), /only 1 sample/);
});

test('a subset of a subset names the rows of the file', () => {
  const inner = subset(subset(counting(6), Uint32Array.of(5, 3, 1)), Uint32Array.of(2, 0));
  assert.deepEqual([inner.sampleCount, labelsOf(inner)], [2, [1, 5]]);
  assert.throws(() => gather(inner, Uint32Array.of(2)), /sample 2 of 2/);
});

test('a label outside the classes is reported with its row in the file', () => {
  const field = labelField(tensor('int32', [4, 1], [0, 9, 12, -1]), 'y.npy');
  const dataset = createDataset('d', [], field);
  const message = (label: number, row: number): string =>
    `The label ${label} at row ${row} of y.npy is outside 0…9: the model has 10 outputs; correct the labels, ` +
    `take a model with more outputs, or leave such labels out with --ignore-label ${label}.`;
  assert.throws(() => checkLabels(dataset, 10), new InputError(message(12, 2)));
  assert.throws(() => checkLabels(subset(dataset, Uint32Array.of(0, 3)), 10), new InputError(message(-1, 3)));
  checkLabels(subset(dataset, Uint32Array.of(0, 1)), 10);
});

test('labels of many a sample are checked by row', () => {
  const dataset = createDataset('d', [], labelField(tensor('int64', [2, 3], [0, 1, 2, 3, 4, 5]), 'y'));
  checkLabels(dataset, 6);
  assert.throws(() => checkLabels(dataset, 5), /The label 5 at row 1 of y is outside 0…4/);
});

test('the number of classes is the largest label plus one', () => {
  assert.equal(inferClassCount(labelField(tensor('uint8', [3], [0, 6, 2]), 'y')), 7);
  assert.equal(inferClassCount(labelField(tensor('int64', [2], [-100, 2]), 'y')), undefined);
  assert.equal(inferClassCount(labelField(tensor('float32', [1], [1]), 'y')), undefined);
});

const image = createDataset(
  'images',
  [inputField('input', tensor('uint8', [2, 1, 2, 2], [0, 51, 102, 255, 1, 2, 3, 4]), 'x')],
  labelField(tensor('uint8', [2], [1, 0]), 'y'),
);

test('a data set takes the names, types and shapes of the model it is bound to', () => {
  const flat = bindDataset(image, [{ name: 'pixels', type: 'float32', shape: ['N', 4] }], { type: 'int32' });
  const { inputs, labels } = gather(flat, Uint32Array.of(0));
  assert.deepEqual([flat.inputs[0]?.name, inputs], ['pixels', [tensor('float32', [1, 4], [0, 0.2, 0.4, 1])]]);
  assert.deepEqual(labels, tensor('int32', [1], [1]));
  const grey = bindDataset(image, [{ name: 'x', type: 'float64', shape: [8, 2, 2] }], {
    type: 'float32',
    shape: ['N', 1],
  });
  assert.deepEqual(gather(grey, Uint32Array.of(0)), {
    inputs: [tensor('float64', [1, 2, 2], [0, 0.2, 0.4, 1])],
    labels: tensor('float32', [1, 1], [1]),
  });
  const bytes = bindDataset(image, [{ name: 'x', type: 'int64', shape: ['N', 1, 'H', 'W'] }], { type: 'int64' });
  assert.deepEqual(gather(bytes, Uint32Array.of(0)).inputs, [tensor('int64', [1, 1, 2, 2], [0, 51, 102, 255])]);
});

test('inputs are matched by name if all names agree, whatever their order', () => {
  const pair = createDataset(
    'p',
    [inputField('b', tensor('float32', [1, 1], [2]), 'b'), inputField('a', tensor('float32', [1, 1], [1]), 'a')],
    labelField(tensor('int64', [1], [0]), 'y'),
  );
  const named = bindDataset(
    pair,
    ['a', 'b'].map((name) => ({ name, type: 'float32', shape: ['N', 1] })),
    { type: 'int64' },
  );
  assert.deepEqual(
    gather(named, Uint32Array.of(0)).inputs.map((input) => input.data[0]),
    [1, 2],
  );
  const one = bindDataset(pair, [{ name: 'a', type: 'float32', shape: ['N', 1] }], { type: 'int64' });
  assert.deepEqual(
    one.inputs.map((field) => field.source),
    ['a'],
  );
});

test('shapes that would scramble the data are refused', () => {
  const rgb = createDataset(
    'd',
    [inputField('input', tensor('float32', [1, 2, 2, 3], new Array(12).fill(0)), 'x')],
    labelField(tensor('int64', [1], [300]), 'y'),
  );
  const bind = (shape: (number | string)[]): Dataset =>
    bindDataset(rgb, [{ name: 'in', type: 'float32', shape }], { type: 'int64' });
  assert.throws(
    () => bind(['N', 3, 2, 2]),
    new InputError(
      "x has the shape [N, 2, 2, 3], but the model's input in takes [N, 3, 2, 2]; reshape the array or choose " +
        'another model.',
    ),
  );
  assert.throws(() => bind(['N', 11]), InputError);
  assert.throws(() => bind([]), InputError);
  assert.throws(
    () => bindDataset(rgb, [], { type: 'uint8' }),
    new InputError('y holds int64, but the loss takes uint8; save the array as uint8.'),
  );
  assert.throws(
    () => bindDataset(rgb, [{ name: 'in', type: 'int64', shape: ['N', 12] }], { type: 'int64' }),
    new InputError("x holds float32, but the model's input in takes int64; save the array as int64."),
  );
  const two = ['a', 'b'].map((name) => ({ name, type: 'float32', shape: ['N', 1] }) as const);
  assert.throws(
    () => bindDataset(rgb, two, { type: 'int64' }),
    new InputError("The model has 2 inputs (a, b), but d has 1 (input); give the arrays the inputs' names."),
  );
});
