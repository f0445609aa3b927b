import assert from 'node:assert/strict';
import { test } from 'node:test';
import { operatorNode, operatorProblem, runOperator } from '../../testing/run-operator.ts';
import { float, floats, int, ints, string, tensorAttribute } from '../graph.ts';
import { int64s, scalar, type Tensor, tensor, toNumbers } from '../tensor.ts';
import { operators } from './index.ts';

const float32 = (shape: readonly number[], values: readonly number[]): Tensor => tensor('float32', shape, values);
const upTo = (shape: readonly number[]): Tensor =>
  float32(
    shape,
    Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, index) => index),
  );
const int64 = (shape: readonly number[], values: readonly number[]): Tensor => tensor('int64', shape, values);

/** Shape and elements of the only output. */
function result(outputs: readonly Tensor[]): readonly [readonly number[], readonly number[]] {
  const [output] = outputs;
  assert.ok(output);
  return [output.shape, toNumbers(output)];
}

test('Slice clamps, counts from the end and goes backwards', () => {
  const x = upTo([5]);
  const slice = (start: number, end: number, step = 1): readonly number[] =>
    result(runOperator('Slice', [x, int64s([start]), int64s([end]), int64s([0]), int64s([step])]))[1];
  assert.deepEqual(slice(1, 3), [1, 2]);
  assert.deepEqual(slice(-2, 1000), [3, 4]);
  assert.deepEqual(slice(0, -1, 2), [0, 2]);
  assert.deepEqual(slice(4, 0, -2), [4, 2]);
  assert.deepEqual(slice(-1, -1000, -1), [4, 3, 2, 1, 0]);
  assert.deepEqual(slice(1000, -1000, -3), [4, 1]);
  assert.deepEqual(slice(3, 1), []);
  // ONNX clamps a start before the beginning to the first element; numpy would give nothing.
  assert.deepEqual(slice(-9, -1000, -1), [0]);
  assert.deepEqual(result(runOperator('Slice', [upTo([0]), int64s([-1]), int64s([-9]), int64s([0]), int64s([-1])])), [
    [0],
    [],
  ]);
});

test('Slice works on the named axes only', () => {
  const x = upTo([2, 3]);
  assert.deepEqual(result(runOperator('Slice', [x, int64s([1]), int64s([3]), int64s([-1])])), [
    [2, 2],
    [1, 2, 4, 5],
  ]);
  assert.deepEqual(result(runOperator('Slice', [x, int64s([1, 0]), int64s([2, 1])])), [[1, 1], [3]]);
  assert.match(
    operatorProblem('Slice', [x, int64s([0]), int64s([1]), int64s([2])]),
    /axis 2, which a value of rank 2 does not have/,
  );
  assert.match(operatorProblem('Slice', [x, int64s([0, 0]), int64s([1, 1]), int64s([1, -1])]), /names an axis twice/);
  assert.match(operatorProblem('Slice', [x, int64s([0]), int64s([1]), int64s([0]), int64s([0])]), /has step 0/);
});

test('Pad: constant, reflect, edge, wrap', () => {
  const x = float32([3], [1, 2, 3]);
  const pad = (mode: string, pads: readonly number[], value?: Tensor): readonly number[] =>
    result(runOperator('Pad', [x, int64s(pads), value], { mode: string(mode) }))[1];
  assert.deepEqual(pad('constant', [1, 2]), [0, 1, 2, 3, 0, 0]);
  assert.deepEqual(pad('constant', [1, 0], scalar('float32', 9)), [9, 1, 2, 3]);
  assert.deepEqual(pad('constant', [-1, 2]), [2, 3, 0, 0]);
  assert.deepEqual(pad('constant', [2, -2]), [0, 0, 1]);
  assert.deepEqual(pad('reflect', [2, 2]), [3, 2, 1, 2, 3, 2, 1]);
  assert.deepEqual(pad('edge', [2, 1]), [1, 1, 1, 2, 3, 3]);
  assert.deepEqual(pad('wrap', [2, 4]), [2, 3, 1, 2, 3, 1, 2, 3, 1]);
});

test('Pad: axes, and invalid pads', () => {
  const x = upTo([2, 2]);
  assert.deepEqual(result(runOperator('Pad', [x, int64s([1, 0]), undefined, int64s([-1])])), [
    [2, 3],
    [0, 0, 1, 0, 2, 3],
  ]);
  assert.match(operatorProblem('Pad', [x, int64s([1, 0])]), /has 2 pads for 2 axes; it needs two for each/);
  assert.match(
    operatorProblem('Pad', [x, int64s([0, 2, 0, 0])], { mode: string('reflect') }),
    /reflects 2 elements on axis 1, which has only 2/,
  );
  assert.match(operatorProblem('Pad', [x, int64s([0, -2, 0, -2])]), /cuts more than there is from \[2, 2\]/);
  assert.match(operatorProblem('Pad', [x, int64s([0, 0, 0, 0])], { mode: string('circular') }), /has mode "circular"/);
});

test('Reshape: −1 takes the remaining size, 0 copies, allowzero means 0', () => {
  const x = upTo([2, 3, 4]);
  const shape = (target: readonly number[], allowZero = 0): readonly number[] =>
    result(runOperator('Reshape', [x, int64s(target)], { allowzero: int(allowZero) }))[0];
  assert.deepEqual(shape([4, -1]), [4, 6]);
  assert.deepEqual(shape([0, -1]), [2, 12]);
  assert.deepEqual(shape([0, 0, 2, 2]), [2, 3, 2, 2]);
  assert.deepEqual(result(runOperator('Reshape', [upTo([0, 3]), int64s([3, 0])], { allowzero: int(1) }))[0], [3, 0]);
  assert.equal(
    operatorProblem('Reshape', [x, int64s([5, -1])]),
    'Node "node" (Reshape) cannot reshape [2, 3, 4] to [5, -1].',
  );
  assert.match(operatorProblem('Reshape', [x, int64s([-1, -1])]), /cannot reshape/);
  assert.match(operatorProblem('Reshape', [x, int64s([24, 1, 1, 0])]), /cannot reshape/);
});

test('Reshape needs its target before running', () => {
  const x = upTo([2]);
  const node = operatorNode('Reshape', [x, int64s([2])]);
  assert.throws(() => operators.Reshape.infer(node, [x, int64s([2])], []), {
    name: 'InputError',
    message:
      'Node "node" (Reshape) needs the value of its input "x1" before running; make it an initializer or ' +
      'compute it from constants and shapes.',
  });
});

test('Split: sizes, equal parts, a smaller last part', () => {
  const x = upTo([7]);
  const parts = (
    split: readonly number[] | undefined,
    count: number,
    attributes = {},
  ): readonly (readonly number[])[] =>
    runOperator('Split', split ? [x, int64s(split)] : [x], attributes, count).map(toNumbers);
  assert.deepEqual(parts([1, 0, 6], 3), [[0], [], [1, 2, 3, 4, 5, 6]]);
  assert.deepEqual(parts(undefined, 3, { num_outputs: int(3) }), [[0, 1, 2], [3, 4, 5], [6]]);
  assert.match(
    operatorProblem('Split', [x, int64s([3, 3])], {}, 2),
    /splits 7 elements into 2 outputs of sizes \[3, 3\], which does not add up/,
  );
  assert.match(operatorProblem('Split', [x], { num_outputs: int(2) }, 3), /has 3 outputs and num_outputs = 2/);
  const [left, right] = runOperator('Split', [upTo([2, 3]), int64s([1, 2])], { axis: int(-1) }, 2);
  assert.deepEqual([left, right], [float32([2, 1], [0, 3]), float32([2, 2], [1, 2, 4, 5])]);
});

test('Transpose, Concat, Expand, Tile', () => {
  const x = upTo([2, 3]);
  assert.deepEqual(result(runOperator('Transpose', [x])), [
    [3, 2],
    [0, 3, 1, 4, 2, 5],
  ]);
  assert.deepEqual(result(runOperator('Transpose', [upTo([1, 2, 3])], { perm: ints([1, 2, 0]) })), [
    [2, 3, 1],
    [0, 1, 2, 3, 4, 5],
  ]);
  assert.match(
    operatorProblem('Transpose', [x], { perm: ints([0, 0]) }),
    /perm \[0, 0\], which is not a permutation of the axes of \[2, 3\]/,
  );
  assert.deepEqual(result(runOperator('Concat', [x, float32([2, 1], [8, 9])], { axis: int(1) })), [
    [2, 4],
    [0, 1, 2, 8, 3, 4, 5, 9],
  ]);
  assert.match(
    operatorProblem('Concat', [x, upTo([3, 1])], { axis: int(1) }),
    /joins \[2, 3\] and \[3, 1\] along axis 1/,
  );
  assert.deepEqual(result(runOperator('Expand', [float32([2, 1], [1, 2]), int64s([3, 1, 2])])), [
    [3, 2, 2],
    [1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2],
  ]);
  // Expand broadcasts both ways: a 1 in the target keeps the input's dimension.
  assert.deepEqual(result(runOperator('Expand', [float32([2], [1, 2]), int64s([1])])), [[2], [1, 2]]);
  assert.deepEqual(result(runOperator('Tile', [float32([1, 2], [1, 2]), int64s([2, 2])])), [
    [2, 4],
    [1, 2, 1, 2, 1, 2, 1, 2],
  ]);
});

test('Squeeze, Unsqueeze, Flatten', () => {
  assert.deepEqual(runOperator('Squeeze', [upTo([1, 2, 1])])[0]?.shape, [2]);
  assert.deepEqual(runOperator('Squeeze', [upTo([1, 2, 1]), int64s([-1])])[0]?.shape, [1, 2]);
  assert.match(operatorProblem('Squeeze', [upTo([1, 2]), int64s([1])]), /squeezes axis 1 of \[1, 2\], which is not 1/);
  assert.deepEqual(runOperator('Unsqueeze', [upTo([2, 3]), int64s([-1, 0])])[0]?.shape, [1, 2, 3, 1]);
  assert.deepEqual(runOperator('Flatten', [upTo([2, 3, 4])], { axis: int(0) })[0]?.shape, [1, 24]);
  assert.deepEqual(runOperator('Flatten', [upTo([2, 3, 4])], { axis: int(-1) })[0]?.shape, [6, 4]);
});

test('Gather counts negative indices from the end and refuses invalid ones', () => {
  const x = upTo([3, 2]);
  assert.deepEqual(result(runOperator('Gather', [x, int64([], [-1])])), [[2], [4, 5]]);
  assert.deepEqual(result(runOperator('Gather', [x, int64([1, 2], [1, 0])], { axis: int(1) })), [
    [3, 1, 2],
    [1, 0, 3, 2, 5, 4],
  ]);
  assert.equal(
    operatorProblem('Gather', [x, int64([1], [3])]),
    'Node "node" (Gather) reads index 3 where there are 3 elements.',
  );
});

test('GatherElements and GatherND', () => {
  const x = float32([2, 2], [1, 2, 3, 4]);
  assert.deepEqual(
    result(runOperator('GatherElements', [x, int64([2, 2], [0, 0, 1, 0])], { axis: int(1) }))[1],
    [1, 1, 4, 3],
  );
  assert.deepEqual(result(runOperator('GatherND', [x, int64([2, 2], [0, 0, 1, -1])])), [[2], [1, 4]]);
  assert.deepEqual(result(runOperator('GatherND', [x, int64([2, 1], [1, 0])])), [
    [2, 2],
    [3, 4, 1, 2],
  ]);
  const batched = runOperator('GatherND', [upTo([2, 2, 2]), int64([2, 1], [1, 0])], { batch_dims: int(1) });
  assert.deepEqual(result(batched), [
    [2, 2],
    [2, 3, 4, 5],
  ]);
  assert.match(
    operatorProblem('GatherND', [x, int64([1, 3], [0, 0, 0])]),
    /cannot take indices \[1, 3\] from \[2, 2\]/,
  );
});

test('ScatterElements: an element written twice is overwritten or reduced', () => {
  const x = float32([1, 4], [1, 2, 3, 4]);
  const indices = int64([1, 3], [1, -1, 1]);
  const updates = float32([1, 3], [5, 6, 7]);
  const scatter = (reduction: string): readonly number[] =>
    result(runOperator('ScatterElements', [x, indices, updates], { axis: int(1), reduction: string(reduction) }))[1];
  assert.deepEqual(scatter('none'), [1, 7, 3, 6]);
  assert.deepEqual(scatter('add'), [1, 14, 3, 10]);
  assert.deepEqual(scatter('mul'), [1, 70, 3, 24]);
  assert.deepEqual(scatter('max'), [1, 7, 3, 6]);
  assert.deepEqual(scatter('min'), [1, 2, 3, 4]);
  assert.match(
    operatorProblem('ScatterElements', [x, int64([2, 1], [0, 0]), float32([2, 1], [0, 0])], { axis: int(1) }),
    /off axis 1 they must not be larger/,
  );
});

test('ScatterND writes slices', () => {
  const x = float32([3, 2], [1, 2, 3, 4, 5, 6]);
  const [indices, updates] = [int64([2, 1], [2, 2]), float32([2, 2], [10, 20, 30, 40])];
  assert.deepEqual(result(runOperator('ScatterND', [x, indices, updates]))[1], [1, 2, 3, 4, 30, 40]);
  assert.deepEqual(
    result(runOperator('ScatterND', [x, indices, updates], { reduction: string('add') }))[1],
    [1, 2, 3, 4, 45, 66],
  );
  assert.match(
    operatorProblem('ScatterND', [x, indices, float32([2], [1, 2])]),
    /cannot write updates \[2\] at indices \[2, 1\] into \[3, 2\]/,
  );
});

test('OneHot: a new axis, negative indices, indices out of range', () => {
  const indices = int64([4], [0, -1, 2, 3]);
  const values = float32([2], [7, 1]);
  assert.deepEqual(result(runOperator('OneHot', [indices, scalar('int64', 3), values])), [
    [4, 3],
    [1, 7, 7, 7, 7, 1, 7, 7, 1, 7, 7, 7],
  ]);
  assert.deepEqual(result(runOperator('OneHot', [indices, scalar('int64', 2), values], { axis: int(0) })), [
    [2, 4],
    [1, 7, 7, 7, 7, 1, 7, 7],
  ]);
});

test('Constant reads whichever attribute it has', () => {
  const constant = (attributes: Parameters<typeof runOperator>[2]): Tensor | undefined =>
    runOperator('Constant', [], attributes)[0];
  assert.deepEqual(constant({ value: tensorAttribute(float32([2], [1, 2])) }), float32([2], [1, 2]));
  assert.deepEqual(constant({ value_int: int(7) }), scalar('int64', 7));
  assert.deepEqual(constant({ value_ints: ints([7, 8]) }), int64s([7, 8]));
  assert.deepEqual(constant({ value_float: float(0.5) }), scalar('float32', 0.5));
  assert.deepEqual(constant({ value_floats: floats([0.5]) }), float32([1], [0.5]));
  assert.match(
    operatorProblem('Constant', [], { value_string: string('a') }),
    /attribute "value_string", which the operator does not know/,
  );
  assert.match(operatorProblem('Constant', []), /has 0 values; it needs exactly one/);
});

test('ConstantOfShape, EyeLike, Range, Shape, Size, Trilu', () => {
  assert.deepEqual(runOperator('ConstantOfShape', [int64s([2])])[0], float32([2], [0, 0]));
  assert.deepEqual(
    runOperator('ConstantOfShape', [int64s([])], { value: tensorAttribute(int64s([3])) })[0],
    scalar('int64', 3),
  );
  assert.deepEqual(
    runOperator('EyeLike', [upTo([2, 3])], { k: int(1), dtype: int(7) })[0],
    int64([2, 3], [0, 1, 0, 0, 0, 1]),
  );
  assert.deepEqual(
    runOperator('Range', [scalar('int64', 10), scalar('int64', 4), scalar('int64', -3)])[0],
    int64s([10, 7]),
  );
  assert.deepEqual(
    runOperator('Range', [scalar('float32', 1), scalar('float32', 2), scalar('float32', 0.5)])[0],
    float32([2], [1, 1.5]),
  );
  assert.deepEqual(runOperator('Shape', [upTo([2, 3, 4])], { start: int(-2), end: int(9) })[0], int64s([3, 4]));
  assert.deepEqual(runOperator('Size', [upTo([2, 3])])[0], scalar('int64', 6));
  assert.deepEqual(result(runOperator('Trilu', [upTo([3, 3]), scalar('int64', 1)]))[1], [0, 1, 2, 0, 0, 5, 0, 0, 0]);
  assert.deepEqual(
    result(runOperator('Trilu', [upTo([2, 3]), scalar('int64', -1)], { upper: int(0) }))[1],
    [0, 0, 0, 3, 0, 0],
  );
});

test('DepthToSpace in both orders, and SpaceToDepth', () => {
  // Channel c holds 10·c; block 2 over 8 channels makes 2 channels of 2x2.
  const x = float32([1, 8, 1, 1], [0, 10, 20, 30, 40, 50, 60, 70]);
  assert.deepEqual(result(runOperator('DepthToSpace', [x], { blocksize: int(2) })), [
    [1, 2, 2, 2],
    [0, 20, 40, 60, 10, 30, 50, 70],
  ]);
  assert.deepEqual(
    result(runOperator('DepthToSpace', [x], { blocksize: int(2), mode: string('CRD') }))[1],
    [0, 10, 20, 30, 40, 50, 60, 70],
  );
  assert.deepEqual(result(runOperator('SpaceToDepth', [upTo([1, 1, 2, 2])], { blocksize: int(2) })), [
    [1, 4, 1, 1],
    [0, 1, 2, 3],
  ]);
  assert.match(
    operatorProblem('SpaceToDepth', [upTo([1, 1, 3, 2])], { blocksize: int(2) }),
    /image of 3x2, which blocksize 2 does not divide/,
  );
});

test('elements of any type move: 64-bit integers keep every bit, halves their raw bits', () => {
  const big = { type: 'int64', shape: [2], data: BigInt64Array.of(2n ** 62n + 1n, -5n) } as const;
  assert.deepEqual(runOperator('Gather', [big, int64([1], [0])])[0]?.data, BigInt64Array.of(2n ** 62n + 1n));
  assert.deepEqual(runOperator('Pad', [big, int64s([1, 0])])[0]?.data, BigInt64Array.of(0n, 2n ** 62n + 1n, -5n));
  assert.deepEqual(
    runOperator('Transpose', [tensor('float16', [1, 2], [0x3c00, 0xfc00])])[0],
    tensor('float16', [2, 1], [0x3c00, 0xfc00]),
  );
});
