// What labels mean for each loss, and the words for those that do not fit.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InputError } from '../../errors.ts';
import { type ElementType, elementCount, tensor, toNumbers } from '../../graph/tensor.ts';
import { bindDataset } from './bind.ts';
import { countedLabels, createDataset, type Dataset, gather, inputField, labelField } from './dataset.ts';
import { type LabelTask, labelsFor } from './labels.ts';

/** Samples with these labels. */
function labelled(shape: readonly number[], values: readonly number[], type: ElementType = 'int64'): Dataset {
  const count = shape[0] as number;
  const inputs = inputField('x', tensor('float32', [count, 1], new Array(count).fill(0)), 'x.npy');
  return createDataset('data', [inputs], labelField(tensor(type, shape, values), 'y.npy'));
}

function task(output: readonly (number | 'N')[], more: Partial<LabelTask> = {}): LabelTask {
  return { loss: 'cross-entropy', output, isSigmoid: false, ...more };
}

/** The labels as a batch of all samples has them. */
function taken(dataset: Dataset, given: LabelTask): { readonly type: ElementType; readonly values: readonly number[] } {
  const { dataset: checked, need } = labelsFor(dataset, given);
  const inputs = [{ name: 'x', type: 'float32', shape: ['N', 1] }] as const;
  const bound = bindDataset(checked, inputs, need);
  const { labels } = gather(
    bound,
    Uint32Array.from({ length: dataset.sampleCount }, (_, index) => index),
  );
  assert.equal(labels.shape.length > 0, true);
  return { type: labels.type, values: toNumbers(labels) };
}

function refusal(dataset: Dataset, given: LabelTask): string {
  let message = '';
  assert.throws(
    () => labelsFor(dataset, given),
    (error) => {
      message = error instanceof InputError ? error.message : '';
      return error instanceof InputError;
    },
  );
  return message;
}

test('whole numbers are classes in every type, and in a column', () => {
  const values = [2, 0, 1];
  for (const type of ['int32', 'uint8', 'float32', 'float64', 'float16'] as const)
    for (const shape of [[3], [3, 1]]) {
      const raw = type === 'float16' ? [0x4000, 0, 0x3c00] : values;
      const found = taken(labelled(shape, raw, type), task(['N', 3, 1, 1]));
      assert.deepEqual(found, { type: 'int64', values }, `${type} ${shape}`);
    }
  assert.deepEqual(taken(labelled([2], [1, 0], 'bool'), task(['N', 2])), { type: 'int64', values: [1, 0] });
  assert.equal(
    refusal(labelled([2], [1, 0.5], 'float32'), task(['N', 3])),
    'The label 0.5 at row 1 of y.npy is not a whole number, and cross-entropy takes class numbers; use ' +
      '--loss mse for numbers.',
  );
});

test('−100 and the label that is named are left out, and gathered as −1', () => {
  const classes = taken(labelled([4], [0, -100, 255, 2]), task(['N', 3], { ignoreLabel: 255 }));
  assert.deepEqual(classes, { type: 'int64', values: [0, -1, -1, 2] });
  const bytes = taken(labelled([2, 2], [0, 255, 255, 1], 'uint8'), task(['N', 3, 2], { ignoreLabel: 255 }));
  assert.deepEqual(bytes.values, [0, -1, -1, 1]);
  const yes = taken(labelled([2, 2], [0, -100, 1, 0.25], 'float32'), task(['N', 2], { loss: 'binary-cross-entropy' }));
  assert.deepEqual(yes, { type: 'float32', values: [0, -1, 1, 0.25] });
  assert.equal(countedLabels(tensor('int64', [4], [0, -1, -1, 2])), 2);
  const { dataset } = labelsFor(labelled([3], [0, 1, 2]), task(['N', 3]));
  assert.equal(dataset.labels.ignored, undefined);
  const { dataset: numbers } = labelsFor(labelled([2], [-100, 1]), task(['N', 1], { loss: 'mse' }));
  assert.equal(numbers.labels.ignored, undefined);
  assert.equal(
    refusal(labelled([2], [-100, -100]), task(['N', 3])),
    'Every label in y.npy is left out (-100): nothing could be learnt.',
  );
  assert.match(refusal(labelled([2], [0, 255]), task(['N', 3])), /outside 0…2: .*--ignore-label 255\.$/);
});

test('labels of the output’s shape are distributions, never several yes or no trained as a Softmax', () => {
  const oneHot = taken(labelled([2, 3], [0, 1, 0, 0, 0, 1], 'uint8'), task(['N', 3]));
  assert.deepEqual(oneHot, { type: 'float32', values: [0, 1, 0, 0, 0, 1] });
  const several = labelled([2, 3], [0, 1, 0, 1, 0, 1]);
  const advice = 'for several labels of 0 or 1 a sample use --loss binary-cross-entropy';
  assert.equal(
    refusal(several, task(['N', 3])),
    `Row 1 of y.npy sums to 2, which is no distribution over the classes: ${advice}; a distribution sums to 1.`,
  );
  assert.equal(
    refusal(labelled([2, 3], [0, 1, 0, 0, 0, 1]), task(['N', 3], { isSigmoid: true })),
    'The model ends in a Sigmoid, and y.npy has a label for each of its outputs: cross-entropy would train them as a ' +
      `Softmax; ${advice}.`,
  );
  const binary = task(['N', 3], { loss: 'binary-cross-entropy' });
  assert.deepEqual(taken(several, binary), { type: 'float32', values: [0, 1, 0, 1, 0, 1] });
  // Tokens with classes last: cross-entropy takes those of distributions on axis 1.
  assert.match(refusal(labelled([1, 2, 3], [0, 1, 0, 0, 0, 1]), task(['N', 2, 3])), /Row 0 of y\.npy along axis 1/);
});

test('one output a sample: yes or no, or a number, but no class', () => {
  const given = labelled([4], [0, 1, 1, 0]);
  assert.equal(
    refusal(given, task(['N', 1])),
    'The model has one output a sample, in which cross-entropy finds no classes: use --loss binary-cross-entropy for ' +
      'labels of 0 and 1 (a Sigmoid at the end belongs to it), or --loss mse for numbers.',
  );
  const binary = task(['N', 1], { loss: 'binary-cross-entropy' });
  assert.deepEqual(taken(given, binary), { type: 'float32', values: [0, 1, 1, 0] });
  assert.equal(elementCount(labelsFor(given, binary).dataset.labels.values.shape), 4);
  assert.equal(
    refusal(labelled([2], [1, 2]), binary),
    'The label 2 at row 1 of y.npy is not between 0 and 1, as binary-cross-entropy takes it for each output; ' +
      'for class numbers use --loss cross-entropy.',
  );
});

test('a number that is not finite is found with its place: file, row and column', () => {
  const values = (count: number, at: number, value: number): number[] =>
    Array.from({ length: count }, (_, index) => (index === at ? value : 0));
  const made = (type: ElementType, shape: readonly number[], numbers: readonly number[]) => (): Dataset =>
    createDataset(
      'data',
      [inputField('x', tensor(type, shape, numbers), 'x.npy')],
      labelField(tensor('int64', [shape[0] as number], new Array(shape[0]).fill(0)), 'y.npy'),
    );
  const fix = 'correct it, or leave that row out.';
  assert.throws(
    made('float32', [3, 4], values(12, 6, Number.NaN)),
    new InputError(`x.npy holds NaN, at row 1, column 2; ${fix}`),
  );
  assert.throws(
    made('float64', [2, 2, 3], values(12, 10, Number.NEGATIVE_INFINITY)),
    new InputError(`x.npy holds -Infinity, at row 1, at [1, 1] in it; ${fix}`),
  );
  assert.throws(
    made('float64', [3], values(3, 2, 1e300)),
    new InputError(`x.npy holds 1e+300, which is beyond the range of float32, at row 2; ${fix}`),
  );
  assert.throws(made('float16', [2, 2], [0, 0, 0, 0x7c00]), /x\.npy holds Infinity, at row 1, column 1;/);
  made('float16', [2, 2], [0, 0, 0, 0x7bff])();
  assert.throws(() => labelled([2, 1], [0, Number.NaN], 'float32'), /y\.npy holds NaN, at row 1, column 0;/);
});
