import assert from 'node:assert/strict';
import { test } from 'node:test';
import { heldStage, movedBytes } from './inference-memory.ts';

const mib = 2 ** 20;

test('weights lie in memory five times while compiled, and once more for each further number of samples', () => {
  const moved = { endBytes: 2 * mib, widestBytes: 0 };
  const demand = { weightBytes: 10 * mib, sessionBytes: mib, moved };
  const held = (memoryMiB: number | undefined, sizeCount?: number) =>
    heldStage({
      ...demand,
      memoryBytes: memoryMiB && memoryMiB * mib,
      ...(sizeCount === undefined ? {} : { sizeCount }),
    });
  assert.deepEqual(held(undefined), { isInFile: false, compiledCount: 4, bytes: 83 * mib });
  assert.deepEqual(held(1000, 2), { isInFile: false, compiledCount: 2, bytes: 63 * mib });
  // 90 % of the memory may be filled: 73, 63 and 54 MiB have room for three, two and one numbers of samples.
  assert.deepEqual(held(82), { isInFile: false, compiledCount: 3, bytes: 73 * mib });
  assert.deepEqual(held(71), { isInFile: false, compiledCount: 2, bytes: 63 * mib });
  assert.deepEqual(held(60), { isInFile: false, compiledCount: 1, bytes: 53 * mib });
  // No room for weights five times: they lie in a file.
  assert.deepEqual(held(58), { isInFile: true, compiledCount: 1, bytes: 13 * mib });
});

test('two micro-batches at each end, and the widest layer, move through a stage', () => {
  const cuts = [5, 100, 7, 30, 2];
  assert.deepEqual(movedBytes(cuts, [0, 4], 1), { endBytes: 2 * (5 + 2), widestBytes: 107 });
  assert.deepEqual(movedBytes(cuts, [2, 4], 3), { endBytes: 6 * (7 + 2), widestBytes: 3 * 37 });
});

test('each number of samples has memory of its own for its runs, half of that for half as many', () => {
  const moved = { endBytes: 0, widestBytes: 8 * mib };
  const bytes = (sizeCount: number): number =>
    heldStage({ weightBytes: 0, sessionBytes: 0, moved, memoryBytes: undefined, sizeCount }).bytes;
  assert.deepEqual(
    [1, 2, 3, 4].map(bytes),
    [12, 18, 21, 22.5].map((size) => size * mib),
  );
});
