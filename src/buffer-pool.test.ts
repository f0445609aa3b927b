import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BufferPool } from './buffer-pool.ts';
import { createRandom } from './random.ts';

test('a returned buffer is reused for its size, and for no other', () => {
  const pool = new BufferPool();
  const [four, eight] = [pool.take(4), pool.take(8)];
  assert.deepEqual([four.byteLength, eight.byteLength], [4, 8]);
  pool.give(four);
  assert.notEqual(pool.take(4), eight);
  pool.give(eight);
  assert.equal(pool.take(8), eight);
  assert.notEqual(pool.take(8), eight);
});

test('free and used buffers never exceed the peak of used ones; the longest unused are dropped', () => {
  const discarded: number[] = [];
  const pool = new BufferPool(({ byteLength }) => discarded.push(byteLength));
  const first = [pool.take(3), pool.take(5)];
  for (const buffer of first) pool.give(buffer);
  assert.equal(pool.freeBytes, 8);
  // 6 are in use: of the 8 free ones, 2 may stay
  const six = pool.take(6);
  assert.deepEqual(discarded, [3, 5]);
  pool.adopt(1);
  pool.give(six);
  assert.equal(pool.freeBytes, 6);
  pool.leave(1);
  assert.equal(pool.take(6), six);
});

test('trim drops all free buffers, and resets the peak', () => {
  const discarded: number[] = [];
  const pool = new BufferPool(({ byteLength }) => discarded.push(byteLength));
  const [four, eight] = [pool.take(4), pool.take(8)];
  pool.give(eight);
  pool.trim(9);
  assert.deepEqual([pool.freeBytes, discarded], [8, []], 'less than is worth it');
  pool.trim(8);
  assert.deepEqual([pool.freeBytes, discarded], [0, [8]]);
  pool.give(four);
  assert.equal(pool.freeBytes, 4);
});

test('returning a buffer twice, or one that was never taken, is an error', () => {
  const pool = new BufferPool();
  const buffer = pool.take(4);
  pool.take(4);
  pool.give(buffer);
  assert.throws(() => pool.give(buffer), /given back twice/);
  assert.throws(() => pool.give(new ArrayBuffer(5)), /5 bytes leave of 4/);
});

test('in any order of calls no buffer has two owners, and the bound holds', () => {
  for (let seed = 0; seed < 50; seed++) {
    const random = createRandom(seed);
    const pool = new BufferPool();
    const out: ArrayBuffer[] = [];
    let peak = 0;
    for (let step = 0; step < 200; step++) {
      if (random.integer(3) > 0) {
        const buffer = pool.take(1 + random.integer(4));
        assert.ok(!out.includes(buffer), `seed ${seed}, step ${step}`);
        out.push(buffer);
      } else if (out.length > 0) {
        const [buffer] = out.splice(random.integer(out.length), 1);
        if (random.integer(4) === 0) pool.leave((buffer as ArrayBuffer).byteLength);
        else pool.give(buffer as ArrayBuffer);
      }
      const bytes = out.reduce((sum, { byteLength }) => sum + byteLength, 0);
      peak = Math.max(peak, bytes);
      assert.ok(bytes + pool.freeBytes <= peak, `seed ${seed}, step ${step}`);
    }
  }
});
