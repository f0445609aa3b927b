import assert from 'node:assert/strict';
import { test } from 'node:test';
import { heldStage, movedBytes } from './inference-memory.ts';

const mib = 2 ** 20;

test('weights lie in memory four times while compiled, and once more for each further number of samples', () => {
  const demand = { weightBytes: 10 * mib, activationBytes: 3 * mib };
  const held = (memoryMiB: number | undefined, sizeCount?: number) =>
    heldStage({
      ...demand,
      memoryBytes: memoryMiB && memoryMiB * mib,
      ...(sizeCount === undefined ? {} : { sizeCount }),
    });
  assert.deepEqual(held(undefined), { isInFile: false, compiledCount: 4, bytes: 73 * mib });
  assert.deepEqual(held(1000, 2), { isInFile: false, compiledCount: 2, bytes: 53 * mib });
  // 90 % of the memory may be filled: 63, 54 and 45 MiB have room for three, two and one numbers of samples.
  assert.deepEqual(held(71), { isInFile: false, compiledCount: 3, bytes: 63 * mib });
  assert.deepEqual(held(60), { isInFile: false, compiledCount: 2, bytes: 53 * mib });
  assert.deepEqual(held(50), { isInFile: false, compiledCount: 1, bytes: 43 * mib });
  // No room for weights four times: they lie in a file.
  assert.deepEqual(held(47), { isInFile: true, compiledCount: 1, bytes: 13 * mib });
});

test('two micro-batches at each end, and the widest layer, move through a stage', () => {
  const cuts = [5, 100, 7, 30, 2];
  assert.equal(movedBytes(cuts, [0, 4]), 2 * (5 + 2) + 107);
  assert.equal(movedBytes(cuts, [2, 4]), 2 * (7 + 2) + 37);
});
