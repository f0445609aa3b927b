import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRandom } from '../../random.ts';
import { halfToNumber, numberToHalf } from './numbers.ts';

test('every half survives conversion to a number and back', () => {
  for (let bits = 0; bits < 0x10000; bits++) {
    const value = halfToNumber(bits);
    if (Number.isNaN(value)) assert.equal(numberToHalf(value), 0x7e00);
    else assert.equal(numberToHalf(value), bits);
  }
});

test('a number becomes the nearest half', () => {
  const random = createRandom(7);
  for (let round = 0; round < 20_000; round++) {
    const value = random.normal() * 2 ** (random.integer(40) - 28);
    if (Math.abs(value) > 65504) continue; // rounds to the largest half or to infinity, see below
    const bits = numberToHalf(value);
    const error = Math.abs(halfToNumber(bits) - value);
    // Neighbours in the order of the bits are neighbours in value, within one sign.
    for (const other of [bits - 1, bits + 1]) {
      const neighbour = halfToNumber(other & 0xffff);
      if (Math.sign(neighbour) === Math.sign(value))
        assert.ok(error <= Math.abs(neighbour - value), `${value} is nearer to ${neighbour}`);
    }
  }
});

test('powers of two and the numbers just below them', () => {
  for (let exponent = -14; exponent <= 15; exponent++) {
    assert.equal(halfToNumber(numberToHalf(2 ** exponent)), 2 ** exponent);
    assert.equal(halfToNumber(numberToHalf(2 ** exponent * (1 - 2 ** -53))), 2 ** exponent);
  }
  assert.equal(numberToHalf(-0), 0x8000);
  assert.deepEqual([65519.99, 65520, -1e9].map(numberToHalf), [0x7bff, 0x7c00, 0xfc00]);
});
