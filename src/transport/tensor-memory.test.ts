import assert from 'node:assert/strict';
import { test } from 'node:test';
import { giveMemory, takeMemory } from './tensor-memory.ts';

const mebibyte = 2 ** 20;

test('memory that was given back is taken again for exactly its size', () => {
  const first = takeMemory(10_000);
  assert.equal(first.buffer.byteLength, 10_000);
  giveMemory(new Float32Array(first.buffer));
  assert.notEqual(takeMemory(10_004).buffer, first.buffer);
  assert.equal(takeMemory(10_000).buffer, first.buffer);
  assert.notEqual(takeMemory(10_000).buffer, first.buffer);
});

test('parts of a buffer, small memory and memory given twice are not handed out', () => {
  const part = takeMemory(20_000);
  giveMemory(part.subarray(8));
  assert.notEqual(takeMemory(19_992).buffer, part.buffer);
  assert.notEqual(takeMemory(20_000).buffer, part.buffer);
  const small = takeMemory(4_095);
  giveMemory(small);
  assert.notEqual(takeMemory(4_095).buffer, small.buffer);
  const twice = takeMemory(30_000);
  giveMemory(twice);
  giveMemory(twice);
  assert.equal(takeMemory(30_000).buffer, twice.buffer);
  assert.notEqual(takeMemory(30_000).buffer, twice.buffer);
});

test('memory that was moved to another thread after it was given back is a mistake that shows', () => {
  const moved = takeMemory(50_000);
  giveMemory(moved);
  structuredClone(moved.buffer, { transfer: [moved.buffer] });
  assert.throws(() => takeMemory(50_000), /moved elsewhere after it had been given back/);
});

test('at most 32 MiB lie unused: the longest unused go first', () => {
  const given = Array.from({ length: 40 }, () => takeMemory(mebibyte));
  for (const memory of given) giveMemory(memory);
  const again = new Set(Array.from({ length: 40 }, () => takeMemory(mebibyte).buffer));
  assert.deepEqual(
    given.map(({ buffer }) => again.has(buffer)),
    given.map((_, index) => index >= 8),
  );
});
