import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan } from '../cluster/cluster.ts';
import { program } from './generate.ts';
import { isBackwardImmediate, isUpdateImmediate } from './program.ts';

/** A plan of two stages, the second on the given devices. */
function planOf(samples: readonly number[], microBatchCount: number): Plan {
  const microBatchSize = samples.reduce((sum, count) => sum + count, 0);
  return {
    planner: 'hand',
    schedule: '1f1b',
    batchSize: microBatchSize * microBatchCount,
    microBatchSize,
    microBatchCount,
    stages: [
      { layers: [0, 1], devices: ['a'], samples: [microBatchSize], inFlight: 2 },
      { layers: [1, 2], devices: ['b', 'c'].slice(0, samples.length), samples: [...samples], inFlight: 1 },
    ],
    predicted: { roundMs: 0, samplesPerS: 0, peakMemoryMiB: {} },
  };
}

test('an update is immediate after a sole backward pass with nothing to add; a backward pass, if it comes next', () => {
  const answers = [planOf([4], 1), planOf([4], 2), planOf([3, 1], 1)].map((plan) =>
    program(plan).devices.map((device) => [device.device, isBackwardImmediate(device), isUpdateImmediate(device)]),
  );
  assert.deepEqual(answers, [
    [
      ['a', true, true],
      ['b', true, true],
    ],
    [
      ['a', false, false],
      ['b', true, false],
    ],
    [
      ['a', true, true],
      ['b', true, false],
      ['c', true, false],
    ],
  ]);
});
