import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { createHeap } from './heap.ts';

test('what is pushed comes out in order, whenever it is popped', () => {
  fc.assert(
    fc.property(fc.array(fc.option(fc.integer({ min: 0, max: 20 }), { nil: undefined, freq: 3 })), (steps) => {
      const heap = createHeap<number>((a, b) => a < b);
      const sorted: number[] = [];
      for (const step of steps) {
        if (step === undefined) assert.equal(heap.pop(), sorted.shift());
        else {
          heap.push(step);
          sorted.push(step);
          sorted.sort((a, b) => a - b);
        }
      }
      for (const value of sorted) assert.equal(heap.pop(), value);
      assert.equal(heap.pop(), undefined);
    }),
    { seed: 4, numRuns: 500 },
  );
});
