import assert from 'node:assert/strict';
import { test } from 'node:test';
import { operatorProblem, runOperator } from '../../testing/run-operator.ts';
import { float, int } from '../graph.ts';
import { scalar, type Tensor, tensor, toNumbers } from '../tensor.ts';

const float64 = (shape: readonly number[], values: readonly number[]): Tensor => tensor('float64', shape, values);

function near(actual: Tensor | undefined, expected: readonly number[], tolerance = 1e-12): void {
  assert.ok(actual);
  const values = toNumbers(actual);
  assert.equal(values.length, expected.length);
  values.forEach((value, index) =>
    assert.ok(Math.abs(value - (expected[index] as number)) <= tolerance, `${values} is not ${expected}`),
  );
}

test('BatchNormalization in inference mode uses the given statistics', () => {
  const x = float64([2, 2, 1], [1, 2, 3, 4]);
  const inputs = [x, float64([2], [1, 10]), float64([2], [0, 100]), float64([2], [1, 2]), float64([2], [4, 0.25])];
  near(runOperator('BatchNormalization', inputs, { epsilon: float(0) })[0], [0, 100, 1, 140]);
});

test('BatchNormalization in training mode: batch statistics, population variance, running averages', () => {
  // Channel 0 holds 1, 3, 5, 7: mean 4, population variance 5 (sample variance would be 20/3).
  const x = float64([2, 1, 2], [1, 3, 5, 7]);
  const inputs = [x, float64([1], [1]), float64([1], [0]), float64([1], [10]), float64([1], [1])];
  const attributes = { training_mode: int(1), momentum: float(0.75), epsilon: float(4) };
  const [y, mean, variance] = runOperator('BatchNormalization', inputs, attributes, 3);
  near(y, [-1, -1 / 3, 1 / 3, 1]); // (x − 4)/√(5 + 4)
  near(mean, [10 * 0.75 + 4 * 0.25]);
  near(variance, [1 * 0.75 + 5 * 0.25]);
});

test('LayerNormalization returns the mean and 1/√(variance + ε) of each row', () => {
  const x = float64([2, 2], [1, 3, 10, 10]);
  const [y, mean, inverse] = runOperator(
    'LayerNormalization',
    [x, float64([2], [1, 2]), float64([2], [0, 5])],
    { epsilon: float(3) },
    3,
  );
  near(y, [-0.5, 6, 0, 5]); // variance 1 → 1/√4
  assert.deepEqual(mean?.shape, [2, 1]);
  near(mean, [2, 10]);
  near(inverse, [0.5, 1 / Math.sqrt(3)]);
});

test('LayerNormalization over several axes; its statistics are float32 for float16', () => {
  const x = float64([1, 2, 2], [1, 2, 3, 4]);
  near(
    runOperator('LayerNormalization', [x, float64([2, 2], [1, 1, 1, 1])], { axis: int(1), epsilon: float(0.1875) })[0],
    [-1.5, -0.5, 0.5, 1.5].map((d) => d / Math.sqrt(1.4375)),
  );
  const half = tensor('float16', [1, 2], [0x3c00, 0x4000]);
  assert.deepEqual(
    runOperator('LayerNormalization', [half, half], { axis: int(1) }, 3).map(({ type }) => type),
    ['float16', 'float32', 'float32'],
  );
});

test('GroupNormalization scales by channel, not by group; InstanceNormalization is one group a channel', () => {
  const x = float64([1, 2, 2], [1, 3, 5, 7]);
  const [scale, bias] = [float64([2], [3, 6]), float64([2], [0, 1])];
  near(
    runOperator('GroupNormalization', [x, scale, bias], { num_groups: int(1), epsilon: float(4) })[0],
    [-3, -1, 3, 7],
  );
  near(runOperator('InstanceNormalization', [x, scale, bias], { epsilon: float(3) })[0], [-1.5, 1.5, -2, 4]);
  assert.match(
    operatorProblem('GroupNormalization', [x, float64([1], [1]), bias], { num_groups: int(1) }),
    /must be \[2\], one entry a channel/,
  );
});

test('Softmax and LogSoftmax do not overflow and take the last axis by default', () => {
  const x = float64([2, 2], [1000, 1000, 0, Math.log(3)]);
  near(runOperator('Softmax', [x])[0], [0.5, 0.5, 0.25, 0.75]);
  near(runOperator('LogSoftmax', [x])[0], [Math.log(0.5), Math.log(0.5), Math.log(0.25), Math.log(0.75)]);
  near(runOperator('Softmax', [float64([2, 1], [5, 5])], { axis: int(0) })[0], [0.5, 0.5]);
});

test('LpNormalization divides by the norm, and leaves zeros where that is zero', () => {
  const x = float64([2, 2], [3, 4, 0, 0]);
  near(runOperator('LpNormalization', [x])[0], [0.6, 0.8, 0, 0]);
  near(runOperator('LpNormalization', [x], { p: int(1) })[0], [3 / 7, 4 / 7, 0, 0]);
  assert.match(operatorProblem('LpNormalization', [x], { p: int(3) }), /has p = 3; it may be 1 or 2/);
});

test('Dropout passes through in inference and at ratio 0; a random mask is refused', () => {
  const x = tensor('float32', [3], [1, 2, 3]);
  const [y, mask] = runOperator('Dropout', [x], {}, 2);
  assert.deepEqual(y, x);
  assert.deepEqual(mask, tensor('bool', [3], [1, 1, 1]));
  assert.deepEqual(runOperator('Dropout', [x, scalar('float32', 0), scalar('bool', 1)])[0], x);
  assert.match(operatorProblem('Dropout', [x, scalar('float32', 0.5), scalar('bool', 1)]), /drops elements at random/);
});

test('errors of normalizations name what does not fit', () => {
  const x = float64([2, 3, 4], new Array(24).fill(1));
  const ones = (count: number): Tensor => float64([count], new Array(count).fill(1));
  assert.equal(
    operatorProblem('BatchNormalization', [x, ones(3), ones(3), ones(4), ones(3)]),
    'Node "node" (BatchNormalization) has "x3" of shape [4]; it must be [3], one entry a channel.',
  );
  assert.match(
    operatorProblem('BatchNormalization', [x, ones(3), ones(3), ones(3), ones(3)], {}, 3),
    /without training_mode = 1/,
  );
  assert.match(
    operatorProblem('LayerNormalization', [x, ones(3)]),
    /shape \[3\], which does not broadcast to its input's \[2, 3, 4\]/,
  );
  assert.match(operatorProblem('Softmax', [x], { axis: int(3) }), /axis 3, which a value of rank 3 does not have/);
});
