// Elementwise operators, reductions and matrix products: literal values for meanings that are easy to get wrong.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { operatorProblem, runOperator } from '../../testing/run-operator.ts';
import { type Attributes, float, int, string } from '../graph.ts';
import { type ElementType, int64s, scalar, type Tensor, tensor, toNumbers } from '../tensor.ts';
import { dataTypeCode } from './data-types.ts';
import type { OperatorName } from './names.ts';

const float32 = (shape: readonly number[], values: readonly number[]): Tensor => tensor('float32', shape, values);
const float64 = (...values: readonly number[]): Tensor => tensor('float64', [values.length], values);
const vector = (type: ElementType, ...values: readonly number[]): Tensor => tensor(type, [values.length], values);

function values(
  operator: OperatorName,
  inputs: readonly (Tensor | undefined)[],
  attributes: Attributes = {},
): readonly number[] {
  return runOperator(operator, inputs, attributes).flatMap(toNumbers);
}

function near(actual: readonly number[], expected: readonly number[], relative = 1e-14): void {
  assert.equal(actual.length, expected.length);
  expected.forEach((value, index) =>
    assert.ok(
      Math.abs((actual[index] as number) - value) <= relative * Math.abs(value),
      `${actual} is not ${expected}`,
    ),
  );
}

test('broadcasting aligns the last axes', () => {
  assert.deepEqual(runOperator('Add', [float32([2, 1], [10, 20]), float32([3], [1, 2, 3])]), [
    float32([2, 3], [11, 12, 13, 21, 22, 23]),
  ]);
  assert.deepEqual(runOperator('Mul', [float32([], [2]), float32([1, 1], [3])]), [float32([1, 1], [6])]);
  assert.deepEqual(runOperator('Add', [float32([0, 1], []), float32([3], [1, 2, 3])]), [float32([0, 3], [])]);
  assert.equal(
    operatorProblem('Add', [float32([2, 2], [1, 2, 3, 4]), float32([3], [1, 2, 3])]),
    'Node "node" (Add) has inputs of shapes [2, 2] and [3], which do not broadcast to one shape.',
  );
});

test('element types are neither mixed nor converted', () => {
  assert.equal(
    operatorProblem('Add', [float32([1], [1]), scalar('int64', 1)]),
    'Node "node" (Add) mixes element types: float32[1] and int64[]; add a Cast.',
  );
  assert.match(
    operatorProblem('Sqrt', [vector('int32', 4)]),
    /does not take int32\[1\] as input "x0"; it takes float32, float64, float16/,
  );
  assert.match(operatorProblem('And', [vector('int32', 1), vector('int32', 1)]), /it takes bool/);
});

test('errors name counts of inputs and outputs, unknown and mistyped attributes', () => {
  assert.match(operatorProblem('Relu', []), /lacks input 0; the operator needs at least 1 inputs/);
  assert.match(operatorProblem('Relu', [float64(1), float64(1)]), /has 2 inputs where the operator takes at most 1/);
  assert.match(operatorProblem('Relu', [float64(1)], {}, 2), /has 2 outputs where the operator has 1/);
  assert.match(
    operatorProblem('Elu', [float64(1)], { alpha: int(1) }),
    /has the attribute "alpha" of type int where the operator wants float/,
  );
  assert.match(
    operatorProblem('Relu', [float64(1)], { toString: int(1) }),
    /has the attribute "toString", which the operator does not know/,
  );
});

test('integer division truncates, Mod follows the divisor, fmod the dividend', () => {
  for (const type of ['int32', 'int64'] as const) {
    const [a, b] = [vector(type, 7, -7, 7, -7), vector(type, 2, 2, -2, -2)];
    assert.deepEqual(values('Div', [a, b]), [3, -3, -3, 3]);
    assert.deepEqual(values('Mod', [a, b]), [1, 1, -1, -1]);
    assert.deepEqual(values('Mod', [a, b], { fmod: int(1) }), [1, -1, 1, -1]);
  }
  assert.deepEqual(values('Mod', [float64(5.5, -5.5), float64(2, 2)], { fmod: int(1) }), [1.5, -1.5]);
  assert.match(operatorProblem('Mod', [float64(1), float64(1)]), /floats need fmod = 1/);
});

test('integers wrap at their width', () => {
  assert.deepEqual(values('Add', [vector('int8', 127), vector('int8', 1)]), [-128]);
  assert.deepEqual(values('Mul', [vector('int32', 0x7fffffff), vector('int32', 0x7fffffff)]), [1]);
  assert.deepEqual(values('Mul', [vector('uint32', 0xffffffff), vector('uint32', 0xffffffff)]), [1]);
  const most: Tensor = { type: 'int64', shape: [], data: BigInt64Array.of(2n ** 63n - 1n) };
  assert.deepEqual(runOperator('Add', [most, scalar('int64', 1)])[0]?.data, BigInt64Array.of(-(2n ** 63n)));
  assert.deepEqual(
    values('BitShift', [vector('uint32', 0x80000001), vector('uint32', 1)], { direction: string('LEFT') }),
    [2],
  );
  assert.deepEqual(
    values('BitShift', [vector('uint64', 6, 6), vector('uint64', 1, 64)], { direction: string('RIGHT') }),
    [3, 0],
  );
});

test('Cast: fractions are truncated, integers wrap, bool is "not zero", halves round to even', () => {
  const cast = (x: Tensor, to: ElementType): readonly number[] => values('Cast', [x], { to: int(dataTypeCode(to)) });
  assert.deepEqual(cast(float64(1.9, -1.9, 300), 'int8'), [1, -1, 44]);
  assert.deepEqual(cast(float64(-2.5), 'int64'), [-2]);
  assert.deepEqual(cast(float64(0, -0, 0.5, Number.NaN), 'bool'), [0, 0, 1, 1]);
  assert.deepEqual(cast({ type: 'int64', shape: [], data: BigInt64Array.of(2n ** 62n + 3n) }, 'int32'), [3]);
  assert.deepEqual(cast(vector('int64', -1), 'uint8'), [255]);
  // 1 + 2^-11 is halfway between two halves; so is 1 + 3·2^-11. 65520 rounds to infinity; 2^-25 is half the smallest
  // half.
  assert.deepEqual(
    cast(float64(1 + 2 ** -11, 1 + 3 * 2 ** -11, 65519, 65520, 2 ** -25, 3 * 2 ** -25), 'float16'),
    [0x3c00, 0x3c02, 0x7bff, 0x7c00, 0, 2],
  );
  assert.match(
    operatorProblem('Cast', [float64(1)], { to: int(16) }),
    /element type 16 of ONNX, which is not supported/,
  );
});

test('Clip: absent bounds, crossed bounds', () => {
  const x = float64(-2, 0, 2);
  assert.deepEqual(values('Clip', [x, undefined, scalar('float64', 1)]), [-2, 0, 1]);
  assert.deepEqual(values('Clip', [x, scalar('float64', -1)]), [-1, 0, 2]);
  assert.deepEqual(values('Clip', [x, scalar('float64', 1), scalar('float64', -1)]), [-1, -1, -1]);
  assert.deepEqual(values('Clip', [vector('int64', -2, 0, 2), scalar('int64', -1), scalar('int64', 1)]), [-1, 0, 1]);
});

test('Round takes ties to the even integer; Sign, Abs, Neg, Relu on 64-bit integers', () => {
  assert.deepEqual(values('Round', [float64(0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 2.4)]), [0, 2, 2, -0, -2, -2, 2]);
  const x = vector('int64', -3, 0, 3);
  assert.deepEqual(values('Sign', [x]), [-1, 0, 1]);
  assert.deepEqual(values('Abs', [x]), [3, 0, 3]);
  assert.deepEqual(values('Neg', [x]), [3, 0, -3]);
  assert.deepEqual(values('Relu', [x]), [0, 0, 3]);
});

test('Max and Min propagate NaN; Sum and Mean take any number of inputs', () => {
  assert.deepEqual(values('Max', [float64(1, Number.NaN), float64(Number.NaN, 1)]), [Number.NaN, Number.NaN]);
  assert.deepEqual(values('Min', [float32([2, 1], [1, 5]), float32([2], [3, 4])]), [1, 1, 3, 4]);
  assert.deepEqual(values('Mean', [float64(1), float64(2), float64(6)]), [3]);
  assert.deepEqual(values('Sum', [float64(1)]), [1]);
});

test('Pow has the type of its base; PRelu, Where', () => {
  assert.deepEqual(runOperator('Pow', [vector('int32', 2, 3), float64(3, -1)]), [vector('int32', 8, 0)]);
  const exact = runOperator('Pow', [vector('int64', 3), vector('int64', 39)])[0];
  assert.deepEqual(exact?.data, BigInt64Array.of(3n ** 39n));
  const wrapped = runOperator('Pow', [
    vector('int64', 3, 2),
    { type: 'int64', shape: [2], data: BigInt64Array.of(41n, 2n ** 62n) },
  ])[0];
  assert.deepEqual(wrapped?.data, BigInt64Array.of(BigInt.asIntN(64, 3n ** 41n), 0n));
  assert.deepEqual(values('PRelu', [float32([2, 2], [-1, 1, -1, 1]), float32([2, 1], [0.5, 3])]), [-0.5, 1, -3, 1]);
  assert.match(
    operatorProblem('PRelu', [float64(1), float64(1, 2)]),
    /slope of shape \[2\], which does not broadcast to its input's \[1\]/,
  );
  assert.deepEqual(values('Where', [tensor('bool', [2, 1], [1, 0]), float64(1, 2), float64(3, 4)]), [1, 2, 3, 4]);
});

test('special functions to the last digits of a double', () => {
  // Reference digits: Abramowitz & Stegun, table 7.1.
  near(
    values('Erf', [float64(0.5, 1, -2, 0)]),
    [0.5204998778130465, 0.8427007929497149, -0.9953222650189527, 0],
    1e-15,
  );
  assert.deepEqual(values('Erf', [float64(30, Number.NEGATIVE_INFINITY)]), [1, -1]);
  near(values('Gelu', [float64(1, -1)]), [0.8413447460685429, -0.15865525393145707]);
  near(values('Gelu', [float64(1)], { approximate: string('tanh') }), [0.8411919906082768]);
  near(values('Sigmoid', [float64(800, -800, 0)]), [1, 0, 0.5]);
  near(values('Softplus', [float64(800, -800, 0)]), [800, 0, Math.LN2]);
  near(values('Mish', [float64(1)]), [0.8650983882673103]);
  near(values('HardSwish', [float64(-4, -1, 4)]), [0, -1 / 3, 4]);
  near(values('Celu', [float64(-1, 1)], { alpha: float(2) }), [2 * Math.expm1(-0.5), 1]);
});

test('float64 stays in double precision; float32 is rounded once', () => {
  assert.deepEqual(values('Add', [float64(1), float64(2 ** -40)]), [1 + 2 ** -40]);
  // Summed in float32, the small terms would be lost.
  const x = float32([5], [2 ** 24, 1, 1, 1, 1]);
  assert.deepEqual(values('ReduceSum', [x]), [2 ** 24 + 4]);
});

test('Reduce: axes, keepdims, no-op, empty groups', () => {
  const x = float32([2, 3], [1, 2, 3, 4, 5, 6]);
  assert.deepEqual(runOperator('ReduceSum', [x, int64s([0])]), [float32([1, 3], [5, 7, 9])]);
  assert.deepEqual(runOperator('ReduceSum', [x, int64s([-1])], { keepdims: int(0) }), [float32([2], [6, 15])]);
  assert.deepEqual(runOperator('ReduceSum', [x]), [float32([1, 1], [21])]);
  assert.deepEqual(runOperator('ReduceSum', [x, int64s([])], { noop_with_empty_axes: int(1) }), [x]);
  assert.deepEqual(values('ReduceL1', [float64(-2, 3)], { noop_with_empty_axes: int(1) }), [2, 3]);
  const empty = float32([2, 0], []);
  assert.deepEqual(values('ReduceSum', [empty, int64s([1])]), [0, 0]);
  assert.deepEqual(values('ReduceProd', [empty, int64s([1])]), [1, 1]);
  assert.deepEqual(values('ReduceMax', [empty, int64s([1])]), [Number.NEGATIVE_INFINITY, Number.NEGATIVE_INFINITY]);
  assert.deepEqual(values('ReduceMin', [tensor('int8', [0], [])]), [127]);
  assert.deepEqual(values('ReduceLogSumExp', [empty, int64s([1])]), [
    Number.NEGATIVE_INFINITY,
    Number.NEGATIVE_INFINITY,
  ]);
  assert.match(operatorProblem('ReduceSum', [x, int64s([0, -2])]), /names an axis twice in \[0, -2\]/);
});

test('Reduce: every combination', () => {
  const x = float64(3, -4);
  assert.deepEqual(values('ReduceL1', [x]), [7]);
  assert.deepEqual(values('ReduceL2', [x]), [5]);
  assert.deepEqual(values('ReduceSumSquare', [x]), [25]);
  assert.deepEqual(values('ReduceMean', [x]), [-0.5]);
  assert.deepEqual(values('ReduceMax', [x]), [3]);
  assert.deepEqual(values('ReduceMin', [x]), [-4]);
  assert.deepEqual(values('ReduceProd', [x]), [-12]);
  near(values('ReduceLogSum', [float64(2, 6)]), [Math.log(8)]);
  near(values('ReduceLogSumExp', [float64(1000, 1000)]), [1000 + Math.LN2]);
  assert.deepEqual(values('ReduceMean', [vector('int64', 1, 2, 5)]), [2]);
  assert.deepEqual(values('ReduceMax', [vector('int64', -7, -5)]), [-5]);
});

test('ArgMax and ArgMin take the first of equal elements, or the last', () => {
  const x = float32([2, 3], [1, 5, 5, 7, 0, 0]);
  assert.deepEqual(runOperator('ArgMax', [x], { axis: int(1) }), [tensor('int64', [2, 1], [1, 0])]);
  assert.deepEqual(values('ArgMax', [x], { axis: int(-1), select_last_index: int(1) }), [2, 0]);
  assert.deepEqual(runOperator('ArgMin', [x], { axis: int(1), keepdims: int(0) }), [tensor('int64', [2], [0, 1])]);
  assert.deepEqual(values('ArgMax', [x]), [1, 0, 0]);
});

test('CumSum: exclusive and reverse', () => {
  const x = float64(1, 2, 3);
  assert.deepEqual(values('CumSum', [x, scalar('int64', 0)]), [1, 3, 6]);
  assert.deepEqual(values('CumSum', [x, scalar('int64', 0)], { exclusive: int(1) }), [0, 1, 3]);
  assert.deepEqual(values('CumSum', [x, scalar('int32', -1)], { reverse: int(1) }), [6, 5, 3]);
  assert.deepEqual(values('CumSum', [x, scalar('int64', 0)], { exclusive: int(1), reverse: int(1) }), [5, 3, 0]);
  assert.deepEqual(values('CumSum', [float32([2, 2], [1, 2, 3, 4]), scalar('int64', 0)]), [1, 2, 4, 6]);
});

test('MatMul: vectors, batches, invalid shapes', () => {
  const a = float32([2, 2], [1, 2, 3, 4]);
  assert.deepEqual(runOperator('MatMul', [a, float32([2], [1, 10])]), [float32([2], [21, 43])]);
  assert.deepEqual(runOperator('MatMul', [float32([2], [1, 10]), a]), [float32([2], [31, 42])]);
  assert.deepEqual(runOperator('MatMul', [float32([2], [1, 2]), float32([2], [3, 4])]), [float32([], [11])]);
  const batch = float32([2, 1, 2, 1], [1, 2, 3, 4]);
  assert.deepEqual(runOperator('MatMul', [batch, float32([2, 1, 1], [1, 10])]), [
    float32([2, 2, 2, 1], [1, 2, 10, 20, 3, 4, 30, 40]),
  ]);
  assert.equal(
    operatorProblem('MatMul', [a, float32([3, 1], [1, 2, 3])]),
    'Node "node" (MatMul) cannot multiply shapes [2, 2] and [3, 1].',
  );
  assert.match(operatorProblem('MatMul', [a, float32([], [1])]), /scalars are for Mul/);
});

test('Gemm: transposes, factors, a broadcast C', () => {
  const [a, b] = [float32([2, 1], [1, 2]), float32([2, 3], [1, 2, 3, 4, 5, 6])];
  // Aᵀ·B = [1·1 + 2·4, …]
  assert.deepEqual(runOperator('Gemm', [a, b], { transA: int(1) }), [float32([1, 3], [9, 12, 15])]);
  const scaled = runOperator('Gemm', [a, b, float32([1], [100])], {
    transA: int(1),
    alpha: float(2),
    beta: float(0.5),
  });
  assert.deepEqual(scaled, [float32([1, 3], [68, 74, 80])]);
  assert.deepEqual(runOperator('Gemm', [b, b], { transB: int(1) }), [float32([2, 2], [14, 32, 32, 77])]);
  const columns = runOperator('Gemm', [a, float32([1, 2], [1, 10]), float32([2, 1], [1000, 2000])]);
  assert.deepEqual(columns, [float32([2, 2], [1001, 1010, 2002, 2020])]);
  assert.match(
    operatorProblem('Gemm', [a, b]),
    /multiplies 2x1 by 2x3 \(A \[2, 1\], B \[2, 3\]\); the inner dimensions must be equal/,
  );
  assert.match(
    operatorProblem('Gemm', [b, b, float32([3], [1, 2, 3])], { transB: int(1) }),
    /C of shape \[3\], which does not broadcast to \[2, 2\]/,
  );
});
