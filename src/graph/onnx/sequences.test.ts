// Sequences with constant splits and indices become plain operators that compute the same.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { onnxModel } from '../../testing/onnx-models.ts';
import { evaluateGraph } from '../evaluate.ts';
import { int, type Node, type ValueInfo } from '../graph.ts';
import { instantiate } from '../static.ts';
import { int64s, scalar, type Tensor, tensor, toNumbers } from '../tensor.ts';
import { importModel } from './import.ts';

const x: ValueInfo = { name: 'x', type: 'float32', shape: ['N', 5] };
const initializers: Record<string, Tensor> = {
  w: tensor('float32', [5, 5], [1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1]),
  sizes: int64s([2, 3]),
  two: scalar('int64', 2),
  first: scalar('int64', 0),
  second: scalar('int64', 1),
  third: scalar('int64', 2),
  last: scalar('int64', -1),
};

type Part = Partial<Node> & { readonly operator: string };

/** What y is for x = [[1, 2, 3, 4, 5]], computed from h = x. */
function result(...nodes: readonly Part[]): { readonly values: readonly number[]; readonly shape: readonly number[] } {
  const all = [{ operator: 'MatMul', inputs: ['x', 'w'], outputs: ['h'] }, ...nodes];
  const { graph } = importModel(onnxModel({ opset: 17, inputs: [x], nodes: all, outputs: ['y'], initializers }));
  const inputs = new Map([['x', tensor('float32', [1, 5], [1, 2, 3, 4, 5])]]);
  const y = evaluateGraph(instantiate(graph, 1).graph, inputs).get('y') as Tensor;
  return { values: toNumbers(y), shape: y.shape };
}

const split = (inputs: readonly string[], attributes: Node['attributes'] = {}): Part => ({
  operator: 'SplitToSequence',
  inputs,
  outputs: ['parts'],
  attributes: { axis: int(1), ...attributes },
});
const at = (index: string, output = 'y'): Part => ({
  operator: 'SequenceAt',
  inputs: ['parts', index],
  outputs: [output],
});

test('SplitToSequence by sizes, by chunks, one by one', () => {
  assert.deepEqual(result(split(['h', 'sizes']), at('first')), { values: [1, 2], shape: [1, 2] });
  assert.deepEqual(result(split(['h', 'sizes']), at('last')), { values: [3, 4, 5], shape: [1, 3] });
  assert.deepEqual(result(split(['h', 'two']), at('second')), { values: [3, 4], shape: [1, 2] });
  assert.deepEqual(result(split(['h', 'two']), at('third')), { values: [5], shape: [1, 1] });
  assert.deepEqual(result(split(['h']), at('last')), { values: [5], shape: [1, 1] });
  assert.deepEqual(result(split(['h'], { keepdims: int(0) }), at('third')), { values: [3], shape: [1] });
});

test('SequenceConstruct, ConcatFromSequence', () => {
  const construct = { operator: 'SequenceConstruct', inputs: ['b', 'a'], outputs: ['again'] };
  const parts = [split(['h', 'two']), at('first', 'a'), at('second', 'b'), construct];
  const concat = (attributes: Node['attributes']): Part => ({
    operator: 'ConcatFromSequence',
    inputs: ['again'],
    outputs: ['y'],
    attributes,
  });
  assert.deepEqual(result(...parts, concat({ axis: int(1) })), { values: [3, 4, 1, 2], shape: [1, 4] });
  assert.deepEqual(result(...parts, concat({ axis: int(0), new_axis: int(1) })), {
    values: [3, 4, 1, 2],
    shape: [2, 1, 2],
  });
});

test('an index that depends on data, or is counted from the end of chunks, is refused by name', () => {
  const computed = {
    operator: 'ArgMax',
    inputs: ['h'],
    outputs: ['best'],
    attributes: { axis: int(1), keepdims: int(0) },
  };
  assert.throws(
    () => result(split(['h', 'sizes']), computed, at('best')),
    /Operator SplitToSequence .* is not supported, nor SequenceAt/,
  );
  assert.throws(() => result(split(['h', 'two']), at('last')), /Operator SplitToSequence .* is not supported/);
});
