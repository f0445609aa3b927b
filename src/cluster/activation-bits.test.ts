import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type ActivationBits, bitsForLink, bitsWish, outputError, paceOfLinks } from './activation-bits.ts';

/** At 100 ms, float32 takes all of the pace at 8 Mbps. */
const bytes = 100_000;
const at = (bandwidthMbps: number, current?: ActivationBits): ActivationBits =>
  bitsForLink({ bytes, bandwidthMbps, ...(current === undefined ? {} : { current }) }, 100);

test('the most bits with which the link keeps the pace', () => {
  const found = [10, 8, 4.3, 4, 2.2, 2.1, 1.6, 1.5, 1.1, 1, 0.1].map((mbps) => at(mbps));
  assert.deepEqual(found, [32, 16, 16, 8, 8, 6, 6, 4, 4, 2, 2]);
});

test('what is chosen stays while the bandwidth wavers, and follows it where it changes', () => {
  let current: ActivationBits | undefined;
  const follow = (all: readonly number[]): ActivationBits[] =>
    all.map((mbps) => {
      current = at(mbps, current);
      return current;
    });
  assert.deepEqual(follow([9, 8.6, 9.5, 8.7]), [32, 32, 32, 32]);
  assert.deepEqual(follow([8.2, 8.8, 9.5, 8.3]), [16, 16, 16, 16]);
  assert.deepEqual(follow([10.1, 9, 8.5]), [32, 32, 32]);
  assert.deepEqual(follow([1.2, 1.3, 1, 0.3, 100]), [4, 4, 2, 2, 32]);
});

test('the pace is the slowest stage’s, or a slower target’s', () => {
  assert.equal(paceOfLinks([20, 50, 30], 4, undefined), 50);
  assert.equal(paceOfLinks([20, 50, 30], 4, 1000), 50);
  assert.equal(paceOfLinks([20, 50, 30], 4, 40), 100);
});

test('bits by name; the error of outputs', () => {
  const names = ['16', '8', '6', '4', '2'].map((text) => bitsWish(text).encoding);
  assert.deepEqual(names, ['float16', 'uint8', 'uint6', 'uint4', 'uint2']);
  assert.deepEqual(bitsWish('auto'), { encoding: 'uint8', isAdaptive: true });
  for (const wrong of ['3', '32', '08', ''])
    assert.throws(() => bitsWish(wrong), {
      message: `--activation-bits ${wrong} must be one of 16, 8, 6, 4, 2, auto.`,
    });
  const exact = Float32Array.of(3, 0, 0, 4);
  assert.deepEqual(outputError(exact, exact, 2), { relative: 0, largest: 0, changedFraction: 0 });
  const found = outputError(exact, Float32Array.of(3, 0, 4, 1), 2);
  assert.deepEqual(found, { relative: 1, largest: 4, changedFraction: 0.5 });
});
