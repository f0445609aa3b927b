// Against NumPy (test/fixtures/levels/make_fixtures.py): how numbers are packed, where ACIQ clips, and how much is lost
// between the best of 400 pairs of ends.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { ProtocolError } from '../../errors.ts';
import { fixtureFolder } from '../../testing/pytorch-fixtures.ts';
import { gaussianClip, laplaceClip } from './clipping.ts';
import { decodeLevels, encodeLevels, type LevelBits, packedLength } from './levels.ts';

interface Expected {
  readonly clips: Record<string, { readonly laplace: number; readonly gaussian: number }>;
  readonly packings: readonly { bits: LevelBits; numbers: readonly number[]; bytes: readonly number[] }[];
  readonly values: Record<string, readonly number[]>;
  readonly errors: Record<string, Record<string, number>>;
}

const expected = JSON.parse(readFileSync(join(fixtureFolder('levels'), 'expected.json'), 'utf8')) as Expected;
const allBits: readonly LevelBits[] = [8, 6, 4, 2];

function roundTrip(values: Float32Array, groupCount: number, bits: LevelBits): Float32Array {
  const encoded = encodeLevels(values, groupCount, bits);
  assert.ok(encoded !== undefined);
  const { bytes, meaning } = encoded;
  assert.equal(bytes.length, groupCount * packedLength(values.length / groupCount, bits));
  const size = { count: values.length, sampleCount: groupCount };
  const decoded = decodeLevels(bytes, Float32Array.from(meaning), 0, size);
  assert.equal(decoded.next, meaning.length);
  return decoded.values;
}

function meanSquare(values: Float32Array, decoded: Float32Array): number {
  return values.reduce((sum, value, index) => sum + (value - (decoded[index] as number)) ** 2, 0) / values.length;
}

test('clipping factors are the least expected squared error’s', () => {
  for (const [bits, { laplace, gaussian }] of Object.entries(expected.clips)) {
    assert.ok(Math.abs(laplaceClip(Number(bits)) - laplace) < 2e-3, `${bits} bits: ${laplaceClip(Number(bits))}`);
    assert.ok(Math.abs(gaussianClip(Number(bits)) - gaussian) < 2e-3, `${bits} bits: ${gaussianClip(Number(bits))}`);
  }
});

test('numbers are packed as NumPy packs them, and come back', () => {
  for (const { bits, numbers, bytes } of expected.packings) {
    const last = 2 ** bits - 1;
    // With both ends among the values, each value is its own number.
    const values = Float32Array.of(0, last, 0, last, last);
    assert.deepEqual(roundTrip(values, 1, bits), values);
    const meaning = Float32Array.of(bits, 1, -3, 0.5);
    const { values: decoded } = decodeLevels(Uint8Array.from(bytes), meaning, 0, {
      count: numbers.length,
      sampleCount: 1,
    });
    assert.deepEqual(
      Array.from(decoded),
      numbers.map((number) => number / 2 - 3),
    );
    if (Math.min(...numbers) === Math.max(...numbers) || !numbers.includes(0) || !numbers.includes(last)) continue;
    assert.deepEqual(Array.from(encodeLevels(Float32Array.from(numbers), 1, bits)?.bytes ?? []), bytes);
  }
});

test('little more is lost than between the best symmetrical ends, and half a step of what is not clipped', () => {
  for (const [name, numbers] of Object.entries(expected.values)) {
    const values = Float32Array.from(numbers);
    for (const bits of allBits) {
      const lost = meanSquare(values, roundTrip(values, 1, bits));
      const best = expected.errors[name]?.[bits] ?? Number.NaN;
      // With a few outliers the error has several minima, of which the search finds a good one.
      assert.ok(lost <= (name === 'outliers' ? 1.15 : 1.05) * best, `${name}, ${bits} bits: ${lost}, the best ${best}`);
      const [low, step] = (encodeLevels(values, 1, bits)?.meaning.slice(2) ?? []) as [number, number];
      roundTrip(values, 1, bits).forEach((found, index) => {
        const clipped = Math.min(Math.max(values[index] as number, low), low + step * (2 ** bits - 1));
        assert.ok(Math.abs(found - clipped) <= 0.5001 * step);
      });
    }
  }
});

test('a sample becomes the same in any company, and two values or one stay exact', () => {
  const values = Float32Array.from((expected.values['laplace'] ?? []).slice(0, 1500));
  for (const bits of allBits) {
    const together = roundTrip(values, 5, bits);
    for (let sample = 0; sample < 5; sample++)
      assert.deepEqual(
        roundTrip(values.slice(300 * sample, 300 * sample + 300), 1, bits),
        together.slice(300 * sample, 300 * sample + 300),
      );
    const mask = Float32Array.from({ length: 301 }, (_, index) => (index % 7 === 0 ? -10_000 : 0));
    const error = Math.max(
      ...roundTrip(mask, 1, bits).map((found, index) => Math.abs(found - (mask[index] as number))),
    );
    assert.ok(error < 1e-3, `${bits} bits: ${error}`);
    const same = new Float32Array(70).fill(-1.5);
    assert.deepEqual(roundTrip(same, 1, bits), same);
  }
});

test('values without levels are refused by the encoder, and strange meanings by the decoder', () => {
  for (const wrong of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 3e38, -3e38])
    assert.equal(encodeLevels(Float32Array.of(1, wrong, 2), 1, 4), undefined);
  const size = { count: 8, sampleCount: 2 };
  const bytes = new Uint8Array(4);
  for (const meaning of [
    [],
    [4],
    [4, 1, 0],
    [3, 1, 0, 1],
    [16, 1, 0, 1],
    [Number.NaN, 1, 0, 1],
    [4, 3, 0, 1, 0, 1, 0, 1],
    [4, 0],
    [4, -1, 0, 1],
    [4, 1.5, 0, 1],
    [4, 1, Number.NaN, 1],
    [4, 1, Number.NEGATIVE_INFINITY, 1],
    [4, 1, 0, -1],
    [4, 1, 0, Number.NaN],
    [4, 1, 0, 1e38],
    [8, 1, 0, 1],
    [2, 2, 0, 1, 0, 1],
  ])
    assert.throws(() => decodeLevels(bytes, Float32Array.from(meaning), 0, size), ProtocolError, `${meaning}`);
  assert.equal(decodeLevels(bytes, Float32Array.of(4, 2, 0, 1, 5, 0), 0, size).values[7], 5);
});
