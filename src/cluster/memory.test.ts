// What eq. 3 counts where rounds overlap, by hand.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { LayerProfile } from './cluster.ts';
import { demandOf, layerSums, stageMemoryBytes, uncommittedUpdates } from './memory.ts';

const layer: LayerProfile = { name: 'l', outputBytes: 1, weightBytes: 100, savedBytes: 0, flops: 1 };

/** Bytes of a stage of that layer, of three stages with one micro-batch a round, Adam. */
function bytesOf(more: Partial<LayerProfile>, own: number, staleness = 2): number {
  const sums = layerSums({
    ...{ model: '', inputBytes: 1, labelBytes: 1, layers: [{ ...layer, ...more }] },
    ...{ batchSizes: [1], devices: {} },
  });
  const run = { savedBytes: 0, inFlight: own + 1, staleness, overlap: { own, most: 2 }, optimizerState: 2 } as const;
  return stageMemoryBytes(demandOf(sums, [0, 1], run), 1);
}

test('updates that may stand uncommitted: one in the first stage, more where passes come earlier', () => {
  assert.deepEqual(
    [2, 1, 0].map((own) => uncommittedUpdates({ own, most: 2 })),
    [1, 2, 3],
  );
});

test('a profile that names no buffers: eq. 3 and versions of the weights alone', () => {
  assert.equal(bytesOf({}, 0), (2 + 2 + 2) * 100);
});

test('states that may have to return are kept whole, where versions do not hold their weights anyway', () => {
  // The weights of three uncommitted updates: two are versions, one is in the buffers. Momentum and variance of two.
  assert.equal(bytesOf({ runtimeBytes: 600 }, 0), 600 + 600 + 2 * 2 * 100);
  assert.equal(bytesOf({ runtimeBytes: 600 }, 1), 600 + 600 + (2 - 1) * 100);
  // One update of the first stage: what it keeps is within what any stage does.
  assert.equal(bytesOf({ runtimeBytes: 600 }, 2), 600 + 600);
  // Staler than it must be: versions, which eq. 3 counts, are more than the uncommitted states.
  assert.equal(bytesOf({ runtimeBytes: 600 }, 0, 4), 800 + 600 + (4 - 1 - 4) * 100 + 4 * 100);
});

test('predicted weights of each version; filters of each further round whose passes are under way', () => {
  const predicted = bytesOf({ runtimeBytes: 600, predictedBytes: 100 }, 0);
  assert.equal(predicted, 600 + 600 + 2 * 2 * 100 + 3 * 100);
  // Of older versions only what was predicted is read: the first stage keeps one state and three predictions.
  assert.equal(bytesOf({ runtimeBytes: 600, predictedBytes: 100 }, 2), 600 + 600 + 3 * 100);
  assert.equal(bytesOf({ runtimeBytes: 600, filterBytes: 30 }, 1), bytesOf({ runtimeBytes: 600 }, 1) + 30);
});
