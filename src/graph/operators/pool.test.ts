import assert from 'node:assert/strict';
import { test } from 'node:test';
import { operatorProblem, runOperator } from '../../testing/run-operator.ts';
import { int, ints, string } from '../graph.ts';
import { type Tensor, tensor, toNumbers } from '../tensor.ts';

const float32 = (shape: readonly number[], values: readonly number[]): Tensor => tensor('float32', shape, values);
const numbers = (outputs: readonly Tensor[]): readonly (readonly number[])[] => outputs.map(toNumbers);

test('MaxPool returns the maxima and their indices in the whole tensor', () => {
  // Two images of two channels: the indices run through all of them.
  const x = float32([2, 2, 1, 3], [1, 5, 2, 7, 3, 4, 9, 8, 6, 0, 1, 2]);
  const [values, indices] = runOperator('MaxPool', [x], { kernel_shape: ints([1, 2]) }, 2) as [Tensor, Tensor];
  assert.deepEqual(toNumbers(values), [5, 5, 7, 4, 9, 8, 1, 2]);
  assert.deepEqual(indices.type, 'int64');
  assert.deepEqual(toNumbers(indices), [1, 1, 3, 5, 6, 7, 10, 11]);
});

test('MaxPool takes the first of equal elements, and NaN where there is one', () => {
  assert.deepEqual(numbers(runOperator('MaxPool', [float32([1, 1, 3], [4, 4, 4])], { kernel_shape: ints([3]) }, 2)), [
    [4],
    [0],
  ]);
  assert.deepEqual(
    numbers(runOperator('MaxPool', [float32([1, 1, 3], [4, Number.NaN, 5])], { kernel_shape: ints([3]) }, 2)),
    [[Number.NaN], [1]],
  );
});

test('MaxPool ignores padding, even if all elements are negative', () => {
  const x = float32([1, 1, 2, 2], [-1, -2, -3, -4]);
  const padded = runOperator(
    'MaxPool',
    [x],
    { kernel_shape: ints([2, 2]), pads: ints([1, 1, 1, 1]), strides: ints([2, 2]) },
    2,
  );
  assert.deepEqual(numbers(padded), [
    [-1, -2, -3, -4],
    [0, 1, 2, 3],
  ]);
});

test('MaxPool with dilations, and with storage_order 1', () => {
  const x = float32([1, 1, 2, 3], [1, 2, 9, 4, 8, 6]);
  assert.deepEqual(numbers(runOperator('MaxPool', [x], { kernel_shape: ints([1, 2]), dilations: ints([1, 2]) }, 2)), [
    [9, 6],
    [2, 5],
  ]);
  // Column-major within the image: element (row 0, column 2) of 2x3 is 4, (1, 1) is 3.
  assert.deepEqual(numbers(runOperator('MaxPool', [x], { kernel_shape: ints([2, 2]), storage_order: int(1) }, 2)), [
    [8, 9],
    [3, 4],
  ]);
});

test('ceil_mode adds a window at the end, but none that starts in the padding', () => {
  const x = float32([1, 1, 5], [1, 2, 3, 4, 5]);
  const window = { kernel_shape: ints([2]), strides: ints([2]) };
  assert.deepEqual(numbers(runOperator('MaxPool', [x], window)), [[2, 4]]);
  assert.deepEqual(numbers(runOperator('MaxPool', [x], { ...window, ceil_mode: int(1) })), [[2, 4, 5]]);
  // Two elements, kernel 1, stride 2 and one of padding at the end: the second window would start at position 2, past
  // the input.
  const late = { kernel_shape: ints([2]), strides: ints([3]), pads: ints([0, 1]), ceil_mode: int(1) };
  assert.deepEqual(numbers(runOperator('MaxPool', [float32([1, 1, 3], [1, 2, 3])], late)), [[2]]);
});

test('AveragePool divides by the elements it covers, or by the padded window with count_include_pad', () => {
  const x = float32([1, 1, 4], [2, 4, 6, 8]);
  const window = { kernel_shape: ints([2]), strides: ints([2]), pads: ints([1, 1]) };
  assert.deepEqual(numbers(runOperator('AveragePool', [x], window)), [[2, 5, 8]]);
  assert.deepEqual(numbers(runOperator('AveragePool', [x], { ...window, count_include_pad: int(1) })), [[1, 5, 4]]);
});

test('AveragePool: elements that ceil_mode adds beyond the padding never count', () => {
  const x = float32([1, 1, 4], [1, 2, 3, 4]);
  const window = { kernel_shape: ints([3]), strides: ints([2]), ceil_mode: int(1), count_include_pad: int(1) };
  // The last window covers 3, 4 and one place beyond the padding, which does not count.
  assert.deepEqual(numbers(runOperator('AveragePool', [x], window)), [[2, 3.5]]);
});

test('AveragePool: auto_pad and dilations', () => {
  const x = float32([1, 1, 4], [1, 2, 3, 4]);
  assert.deepEqual(
    numbers(runOperator('AveragePool', [x], { kernel_shape: ints([2]), auto_pad: string('SAME_UPPER') })),
    [[1.5, 2.5, 3.5, 4]],
  );
  assert.deepEqual(
    numbers(runOperator('AveragePool', [x], { kernel_shape: ints([2]), auto_pad: string('SAME_LOWER') })),
    [[1, 1.5, 2.5, 3.5]],
  );
  assert.deepEqual(numbers(runOperator('AveragePool', [x], { kernel_shape: ints([2]), dilations: ints([3]) })), [
    [2.5],
  ]);
});

test('global pools leave one element a channel', () => {
  const x = float32([1, 2, 2, 2], [1, 2, 3, 6, -1, -2, -3, -6]);
  const [average] = runOperator('GlobalAveragePool', [x]);
  assert.deepEqual(average, float32([1, 2, 1, 1], [3, -3]));
  assert.deepEqual(numbers(runOperator('GlobalMaxPool', [x])), [[6, -1]]);
});

test('errors of pools name what does not fit', () => {
  const x = float32([1, 1, 2, 2], [1, 2, 3, 4]);
  assert.equal(
    operatorProblem('MaxPool', [x], { kernel_shape: ints([2]) }),
    'Node "node" (MaxPool) has kernel_shape [2] for an input [1, 1, 2, 2]; it needs one entry a spatial axis.',
  );
  assert.match(
    operatorProblem('MaxPool', [x], { kernel_shape: ints([1, 1]), pads: ints([0, 1, 0, 0]) }),
    /a window would see nothing but padding/,
  );
  assert.match(
    operatorProblem('AveragePool', [x], { kernel_shape: ints([3, 3]) }),
    /larger than its padded input \[2, 2\]/,
  );
  assert.match(
    operatorProblem('GlobalMaxPool', [float32([2, 2], [1, 2, 3, 4])]),
    /wants an input \[N, C, D1, ...\], not \[2, 2\]/,
  );
});
