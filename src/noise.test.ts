import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { fnv1a, type Noise, type NoisePart, PhiloxBlocks, writeNoise } from './noise.ts';

interface Case extends Pick<Noise, 'kind' | 'seed' | 'round'>, Pick<NoisePart, 'name' | 'tangent' | 'count'> {
  readonly values: readonly number[];
}

const cases = JSON.parse(readFileSync('test/fixtures/forward-gradient/noise.json', 'utf8')) as readonly Case[];

const hex = ({ w0, w1, w2, w3 }: PhiloxBlocks): string[] => [w0, w1, w2, w3].map((word) => (word >>> 0).toString(16));

test("Philox gives the words of Random123's known answers", () => {
  const zeros = new PhiloxBlocks(0, 0, [0, 0, 0]);
  zeros.compute(0);
  assert.deepEqual(hex(zeros), ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']);
  const ones = new PhiloxBlocks(0xffffffff, 0xffffffff, [0xffffffff, 0xffffffff, 0xffffffff]);
  ones.compute(0xffffffff);
  assert.deepEqual(hex(ones), ['408f276d', '41c83b0e', 'a20bc7c6', '6d5451fd']);
});

test('FNV-1a reads UTF-8', () => {
  assert.equal(fnv1a(''), 0x811c9dc5);
  assert.equal(fnv1a('a'), 0xe40c292c);
  assert.equal(fnv1a('ß'), Math.imul(Math.imul(0x811c9dc5 ^ 0xc3, 0x01000193) ^ 0x9f, 0x01000193) >>> 0);
});

for (const { values, kind, seed, round, ...part } of cases) {
  test(`${kind} noise for "${part.name}" is the independent generator's, to the bit`, () => {
    const found = new Float32Array(part.count);
    writeNoise(found, { kind, seed, round, parts: [{ ...part, offset: 0, scale: 1 }] });
    assert.deepEqual([...found], values);
  });
}

for (const kind of ['gaussian', 'rademacher'] as const) {
  test(`${kind} noise from any element on is a piece of the whole`, () => {
    const draw = (first: number, count: number): number[] => {
      const found = new Float32Array(count);
      const part = { name: 'w', offset: 0, count, scale: 1, tangent: 2, first };
      writeNoise(found, { kind, seed: 3, round: 4, parts: [part] });
      return [...found];
    };
    const whole = draw(0, 400);
    for (const first of [1, 2, 3, 4, 31, 32, 33, 97, 128, 255])
      for (const count of [1, 2, 30, 140]) assert.deepEqual(draw(first, count), whole.slice(first, first + count));
  });
}

for (const kind of ['gaussian', 'rademacher'] as const) {
  test(`parts of ${kind} noise lie at their places, are scaled, and add up`, () => {
    const draw = (...parts: readonly NoisePart[]): Float32Array => {
      const found = new Float32Array(300).fill(9);
      writeNoise(found, { kind, seed: 1, round: 2, parts });
      return found;
    };
    const part = { name: 'w', offset: 0, count: 101, scale: 1, tangent: 0 };
    const [first, second] = [draw(part), draw({ ...part, tangent: 1 })];
    const both = draw({ ...part, offset: 50, scale: 0.5 }, { ...part, offset: 50, scale: -2, tangent: 1 });
    assert.deepEqual([...both.subarray(0, 50), ...both.subarray(151)], new Array(199).fill(0));
    for (let index = 0; index < 101; index++) {
      const expected = Math.fround(Math.fround(0.5 * (first[index] as number)) - 2 * (second[index] as number));
      assert.equal(both[50 + index], expected);
    }
  });
}

for (const kind of ['gaussian', 'rademacher'] as const) {
  test(`${kind} noise has mean 0, variance 1 and no correlation between neighbours`, () => {
    const count = 40_000;
    const noise = new Float32Array(count);
    writeNoise(noise, { kind, seed: 5, round: 0, parts: [{ name: 'w', offset: 0, count, scale: 1, tangent: 0 }] });
    const mean = (values: Iterable<number>): number => [...values].reduce((sum, value) => sum + value, 0) / count;
    // Four standard errors: 1/√n of the mean and of the correlation, at most √2/√n of the variance.
    const limit = 4 / Math.sqrt(count);
    assert.ok(Math.abs(mean(noise)) < limit);
    assert.ok(Math.abs(mean(noise.map((value) => value ** 2)) - 1) < limit * Math.SQRT2);
    assert.ok(Math.abs(mean(noise.map((value, index) => value * (noise[index + 1] ?? 0)))) < limit);
  });
}
