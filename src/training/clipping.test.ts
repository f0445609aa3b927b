import assert from 'node:assert/strict';
import { test } from 'node:test';
import { evaluateGraph } from '../graph/evaluate.ts';
import { scalar, type Tensor, tensor, toNumbers } from '../graph/tensor.ts';
import { clipScale, squaredNormGraph } from './clipping.ts';

test('squaredNormGraph sums the squares of all gradients', () => {
  const graph = squaredNormGraph([
    { name: 'w', shape: [2, 2] },
    { name: 'b', shape: [], type: 'float64' },
  ]);
  const feeds = new Map([
    ['gradient(w)', tensor('float32', [2, 2], [1, -2, 3, 0])],
    ['gradient(b)', scalar('float64', -5)],
  ]);
  assert.deepEqual(toNumbers(evaluateGraph(graph, feeds).get('squaredNorm') as Tensor), [1 + 4 + 9 + 25]);
});

test('without parameters the squared norm is 0', () => {
  assert.deepEqual(toNumbers(evaluateGraph(squaredNormGraph([]), new Map()).get('squaredNorm') as Tensor), [0]);
});

test('clipScale shrinks to the maximum norm, never enlarges, and propagates NaN', () => {
  assert.equal(clipScale(100, 1), 1 / 10.000001);
  assert.equal(clipScale(0.25, 1), 1);
  assert.equal(clipScale(0, 1), 1);
  assert.ok(Number.isNaN(clipScale(Number.NaN, 1)));
  assert.equal(clipScale(Number.POSITIVE_INFINITY, 1), 0);
  assert.throws(() => clipScale(1, 0), /norm of 0/);
});
