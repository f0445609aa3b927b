import assert from 'node:assert/strict';
import { test } from 'node:test';
import { operatorProblem, runOperator } from '../../testing/run-operator.ts';
import { int, ints, string } from '../graph.ts';
import { type Tensor, tensor, toNumbers } from '../tensor.ts';

const float32 = (shape: readonly number[], values: readonly number[]): Tensor => tensor('float32', shape, values);
const count = (shape: readonly number[], first = 1): Tensor =>
  float32(
    shape,
    Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, index) => first + index),
  );

/** Shape and elements of the only output. */
function result(outputs: readonly Tensor[]): readonly [readonly number[], readonly number[]] {
  const [output] = outputs;
  assert.ok(output);
  return [output.shape, toNumbers(output)];
}

test('Conv multiplies each window by the kernel, without flipping it', () => {
  const x = count([1, 1, 3, 3]);
  const w = float32([1, 1, 2, 2], [1, 2, 3, 4]);
  // 1·1 + 2·2 + 4·3 + 5·4 = 37
  assert.deepEqual(result(runOperator('Conv', [x, w])), [
    [1, 1, 2, 2],
    [37, 47, 67, 77],
  ]);
  assert.deepEqual(result(runOperator('Conv', [x, w, float32([1], [100])])), [
    [1, 1, 2, 2],
    [137, 147, 167, 177],
  ]);
});

test('Conv pads at the beginning and at the end separately', () => {
  const x = count([1, 1, 4]);
  const w = float32([1, 1, 3], [1, 10, 100]);
  assert.deepEqual(result(runOperator('Conv', [x, w], { pads: ints([1, 0]) })), [
    [1, 1, 3],
    [210, 321, 432],
  ]);
  assert.deepEqual(result(runOperator('Conv', [x, w], { pads: ints([0, 2]) })), [
    [1, 1, 4],
    [321, 432, 43, 4],
  ]);
});

test('Conv: SAME puts the odd padding at the end (UPPER) or at the beginning (LOWER); VALID pads nothing', () => {
  const x = count([1, 1, 4]);
  const w = float32([1, 1, 2], [1, 10]);
  assert.deepEqual(result(runOperator('Conv', [x, w], { auto_pad: string('SAME_UPPER') })), [
    [1, 1, 4],
    [21, 32, 43, 4],
  ]);
  assert.deepEqual(result(runOperator('Conv', [x, w], { auto_pad: string('SAME_LOWER') })), [
    [1, 1, 4],
    [10, 21, 32, 43],
  ]);
  assert.deepEqual(result(runOperator('Conv', [x, w], { auto_pad: string('VALID') })), [
    [1, 1, 3],
    [21, 32, 43],
  ]);
  // Stride 2 on 5 elements: ceil(5 / 2) = 3 places, which need (3 − 1)·2 + 2 − 5 = 1 element of padding.
  const odd = runOperator('Conv', [count([1, 1, 5]), w], { auto_pad: string('SAME_LOWER'), strides: ints([2]) });
  assert.deepEqual(result(odd), [
    [1, 1, 3],
    [10, 32, 54],
  ]);
});

test('Conv strides and dilates', () => {
  const x = count([1, 1, 7]);
  const w = float32([1, 1, 3], [1, 10, 100]);
  assert.deepEqual(result(runOperator('Conv', [x, w], { strides: ints([3]) })), [
    [1, 1, 2],
    [321, 654],
  ]);
  assert.deepEqual(result(runOperator('Conv', [x, w], { dilations: ints([3]) })), [[1, 1, 1], [741]]);
});

test('Conv with groups keeps each group of channels to itself', () => {
  const x = float32([1, 4, 1], [1, 2, 3, 4]);
  const w = float32([4, 2, 1], [1, 0, 0, 1, 1, 0, 0, 1]);
  assert.deepEqual(result(runOperator('Conv', [x, w], { group: int(2) })), [
    [1, 4, 1],
    [1, 2, 3, 4],
  ]);
  const depthwise = float32([8, 1, 1], [1, 10, 1, 10, 1, 10, 1, 10]);
  assert.deepEqual(result(runOperator('Conv', [x, depthwise], { group: int(4) })), [
    [1, 8, 1],
    [1, 10, 2, 20, 3, 30, 4, 40],
  ]);
});

test('ConvTranspose scatters each input times the kernel', () => {
  const x = float32([1, 1, 2], [1, 2]);
  const w = float32([1, 1, 3], [1, 10, 100]);
  assert.deepEqual(result(runOperator('ConvTranspose', [x, w])), [
    [1, 1, 4],
    [1, 12, 120, 200],
  ]);
  assert.deepEqual(result(runOperator('ConvTranspose', [x, w], { strides: ints([2]) })), [
    [1, 1, 5],
    [1, 10, 102, 20, 200],
  ]);
  assert.deepEqual(result(runOperator('ConvTranspose', [x, w], { strides: ints([2]), pads: ints([1, 1]) })), [
    [1, 1, 3],
    [10, 102, 20],
  ]);
  const padded = runOperator('ConvTranspose', [x, w], { strides: ints([2]), output_padding: ints([1]) });
  assert.deepEqual(result(padded), [
    [1, 1, 6],
    [1, 10, 102, 20, 200, 0],
  ]);
});

test('ConvTranspose cuts to the output_shape, at the beginning first; to input·stride where auto_pad is SAME', () => {
  const x = float32([1, 1, 2], [1, 2]);
  const w = float32([1, 1, 3], [1, 10, 100]);
  // 4 elements are covered, one too many.
  assert.deepEqual(result(runOperator('ConvTranspose', [x, w], { output_shape: ints([3]) })), [
    [1, 1, 3],
    [12, 120, 200],
  ]);
  const upper = runOperator('ConvTranspose', [x, w], { output_shape: ints([3]), auto_pad: string('SAME_UPPER') });
  assert.deepEqual(result(upper), [
    [1, 1, 3],
    [1, 12, 120],
  ]);
  const same = runOperator('ConvTranspose', [x, w], { auto_pad: string('SAME_UPPER'), strides: ints([2]) });
  assert.deepEqual(result(same), [
    [1, 1, 4],
    [1, 10, 102, 20],
  ]);
});

test('ConvTranspose with groups', () => {
  const x = float32([1, 2, 1], [1, 2]);
  const w = float32([2, 2, 1], [1, 10, 1, 10]);
  assert.deepEqual(result(runOperator('ConvTranspose', [x, w], { group: int(2) })), [
    [1, 4, 1],
    [1, 10, 2, 20],
  ]);
  assert.deepEqual(result(runOperator('ConvTranspose', [x, w])), [
    [1, 2, 1],
    [3, 30],
  ]);
});

test('convolutions name the shapes that do not fit', () => {
  const x = count([1, 3, 4, 4]);
  assert.equal(
    operatorProblem('Conv', [x, count([8, 4, 3, 3])]),
    'Node "node" (Conv) has weights [8, 4, 3, 3] for an input [1, 3, 4, 4] with group = 1; ' +
      "the weights' second dimension must be 3.",
  );
  assert.equal(
    operatorProblem('Conv', [x, count([8, 3, 5, 5])]),
    'Node "node" (Conv) has a window of [5, 5] (dilated) that is larger than its padded input [4, 4].',
  );
  assert.equal(
    operatorProblem('Conv', [x, count([2, 3, 1, 1]), count([3])]),
    'Node "node" (Conv) has a bias of shape [3]; it must be [2].',
  );
  assert.equal(
    operatorProblem('Conv', [x, count([2, 3, 1, 1])], { auto_pad: string('SAME_UPPER'), pads: ints([1, 1, 1, 1]) }),
    'Node "node" (Conv) has both auto_pad "SAME_UPPER" and pads [1, 1, 1, 1]; remove one.',
  );
  assert.match(
    operatorProblem('Conv', [x, count([2, 3, 1, 1])], { group: int(2) }),
    /3 input channels, which 2 groups do not divide/,
  );
  assert.match(
    operatorProblem('Conv', [x, count([2, 3, 1, 1])], { strides: ints([1]) }),
    /strides \[1\]; it needs 2 positive integers/,
  );
  assert.match(operatorProblem('Conv', [x, count([2, 3, 1])]), /both must have one rank of at least 3/);
  assert.match(operatorProblem('ConvTranspose', [x, count([2, 3, 1, 1])]), /their first dimension must be 3/);
  assert.match(
    operatorProblem('ConvTranspose', [count([1, 1, 2]), count([1, 1, 1])], {
      output_shape: ints([5]),
      strides: ints([2]),
    }),
    /leaves a whole stride of its output \[5\] uncovered/,
  );
});
