import assert from 'node:assert/strict';
import { test } from 'node:test';
import { tensor, toNumbers } from '../../graph/tensor.ts';
import { joinSamples, sliceSamples } from './samples.ts';

test('samples along axis 0 are views of the same memory', () => {
  const value = tensor('float32', [4, 2], [0, 1, 2, 3, 4, 5, 6, 7]);
  const slice = sliceSamples(value, 0, 1, 3);
  assert.deepEqual(slice.shape, [2, 2]);
  assert.deepEqual(toNumbers(slice), [2, 3, 4, 5]);
  assert.equal(slice.data.buffer, value.data.buffer);
});

test('samples along an inner axis are gathered row by row, and joining gives the whole back', () => {
  const value = tensor('int64', [2, 3, 2], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
  const left = sliceSamples(value, 1, 0, 1);
  const right = sliceSamples(value, 1, 1, 3);
  assert.deepEqual(toNumbers(left), [0, 1, 6, 7]);
  assert.deepEqual(toNumbers(right), [2, 3, 4, 5, 8, 9, 10, 11]);
  const joined = joinSamples([left, right], 1);
  assert.deepEqual(joined.shape, [2, 3, 2]);
  assert.deepEqual(toNumbers(joined), toNumbers(value));
});

test('a single piece is not copied', () => {
  const value = tensor('float32', [1, 2], [1, 2]);
  assert.equal(joinSamples([value], 0), value);
});
