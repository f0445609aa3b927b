// Tensors that no training made, by their values; and that fresh or trained weights are not taken for such.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { createRandom } from '../../random.ts';
import { type Tensor, tensor } from '../tensor.ts';
import { formulaOf, isMask, isRepeatedFilter } from './number-tables.ts';

const table = (shape: readonly number[], element: (...index: number[]) => number): Tensor => {
  const values: number[] = [];
  const visit = (index: number[]): void => {
    if (index.length === shape.length) values.push(element(...index));
    else for (let next = 0; next < (shape[index.length] as number); next++) visit([...index, next]);
  };
  visit([]);
  return tensor('float32', shape, values);
};
const frequency = (column: number): number => 10000 ** (-column / 8);

test('tables of formulas: counted, geometric, ramps, sinusoids along any axis, over a grid', () => {
  const curves = 'it holds ramps or sinusoids';
  const cases: readonly (readonly [string, Tensor, string | undefined])[] = [
    ['positions', table([20], (t) => t), 'it holds whole and half numbers'],
    [
      'anchors',
      table([1, 6, 2], (_, cell, axis) => (axis === 0 ? cell % 3 : Math.floor(cell / 3)) + 0.5),
      'it holds whole and half numbers',
    ],
    ['inverse frequencies', table([8], frequency), 'it is a geometric series'],
    ['alibi slopes times positions', table([4, 1, 10], (head, _, t) => 2 ** -(head + 1) * t * 1.1), curves],
    [
      'sinusoidal positions',
      table([1, 40, 8], (_, t, k) => (k % 2 === 0 ? Math.sin : Math.cos)(t * frequency(k >> 1))),
      curves,
    ],
    ['rotary cosines', table([1, 1, 12, 8], (_, __, t, k) => Math.cos(t * frequency(k % 4))), curves],
    ['a Hann window', table([32], (t) => 0.5 - 0.5 * Math.cos((2 * Math.PI * t) / 32)), curves],
    [
      'patches of a square after a class token',
      table([1, 37, 8], (_, cell, k) => {
        if (cell === 0) return 0;
        const place = k < 4 ? (cell - 1) % 6 : Math.floor((cell - 1) / 6);
        return (k % 2 === 0 ? Math.sin : Math.cos)(place * frequency(k % 4));
      }),
      curves,
    ],
    ['coordinates', table([1, 16, 3], (_, t, k) => (t / 15) * (k + 1) - 0.3), curves],
  ];
  for (const [name, value, expected] of cases) assert.equal(formulaOf(value), expected, name);
});

test('weights follow no formula: random, all equal, small, scaled rows', () => {
  for (let seed = 0; seed < 50; seed++) {
    const random = createRandom(seed);
    const draw = (): number => random.uniform() - 0.5;
    assert.equal(formulaOf(table([1, 17, 12], draw)), undefined, `seed ${seed}`);
    assert.equal(formulaOf(table([1, 1, 9], draw)), undefined, `seed ${seed}`);
    // A row with one number in each column that varies little.
    assert.equal(formulaOf(table([1, 17, 12], (_, __, k) => k + 1e-2 * draw())), undefined, `seed ${seed}`);
  }
  assert.equal(formulaOf(table([1, 16, 8], () => 1)), undefined);
  assert.equal(formulaOf(table([4], (index) => index)), undefined, 'too short to tell');
  assert.equal(
    formulaOf(
      table([6], (index) => index * 0.3),
      { isWeight: true },
    ),
    undefined,
    'a bias may be a ramp',
  );
});

test('masks: infinities, huge numbers, zeros and one number far below; filters that blur', () => {
  assert.ok(isMask(table([4, 4], (row, column) => (column > row ? Number.NEGATIVE_INFINITY : 0))));
  assert.ok(isMask(table([4, 4], (row, column) => (column > row ? -100 : 0))));
  assert.ok(!isMask(table([4], (index) => -index)));
  const blur = table([6, 1, 3, 3], (_, __, y, x) => (2 - Math.abs(y - 1)) * (2 - Math.abs(x - 1)));
  assert.ok(isRepeatedFilter(blur, new Set(['Conv'])));
  assert.ok(
    !isRepeatedFilter(
      table([6, 1, 3, 3], () => 1),
      new Set(['Conv']),
    ),
    'all equal: a fresh weight',
  );
  assert.ok(
    !isRepeatedFilter(
      table([6, 1, 3, 3], (c, _, y) => c + y),
      new Set(['Conv']),
    ),
  );
});
