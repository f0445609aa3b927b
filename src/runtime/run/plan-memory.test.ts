// Checks a hand-written plan against its devices' memory.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InputError } from '../../errors.ts';
import { buildModel } from '../../models/zoo.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { sgd, subjectOf } from '../../testing/training-subjects.ts';
import { bufferBytes } from '../device/memory-need.ts';
import { checkPlanMemory } from './plan-memory.ts';

const graph = buildModel('digits', { initialize: false }).graph;
const layout = handPlan({ schedule: '1f1b', cuts: [2], shares: [[3, 1], [4]], microBatchCount: 4 }, 6);
const plan = { ...layout, predicted: { roundMs: 0, samplesPerS: 0, peakMemoryMiB: {} } };

/** Checks the plan with `bytes` of memory for one device and enough for the others. */
function check(device: string, bytes: number, frozen: readonly string[] = []): void {
  const { sequence, training } = subjectOf({ graph, loss: 'cross-entropy', classCount: 10 }, 16, {
    optimizer: { ...sgd, momentum: 0.9 },
    frozen,
  });
  const devices = ['a', 'b', 'c'].map((name) => ({ name, memoryMiB: name === device ? bytes / 2 ** 20 : 1024 }));
  checkPlanMemory(plan, { devices, links: { default: { bandwidthMbps: 1 } } }, { sequence, training });
}

/**
 * Of conv1, which keeps its input and the Relu's result, and of the pooling behind it, which keeps its input too, and
 * the places of the largest.
 */
const [weightBytes, planes] = [(24 * 9 + 24) * 4, 24 * 28 * 28 * 4];
const momentum = { optimizer: { ...sgd, momentum: 0.9 } };
const ownBytes = bufferBytes({ weightBytes }, momentum) + bufferBytes({ weightBytes: 0 }, momentum);

test('weights, gradients, momentum, activations of K_p micro-batches and the runtime’s buffers have to fit', () => {
  // K_0 = 2(2 − 0) − 1.
  const needed = (samples: number, pooling: number): number =>
    3 * weightBytes + ownBytes + 3 * samples * (28 * 28 * 4 + planes + pooling);
  const least = (device: string): number => {
    let [low, high] = [0, 2 ** 26];
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      try {
        check(device, middle);
        high = middle;
      } catch {
        low = middle;
      }
    }
    return high;
  };
  const [a, b] = [least('a'), least('b')];
  // Both keep the same for a sample, and a has two more of three micro-batches.
  const pooling = (a - b) / 6 - 28 * 28 * 4 - planes;
  assert.ok(pooling >= planes && pooling <= 2.25 * planes, `${pooling / planes} planes`);
  assert.deepEqual([a, b], [needed(3, pooling), needed(1, pooling)]);
});

test('the error names the device, its layers and their size; frozen weights have no gradients or momentum', () => {
  const hiddenBytes = (96 * 48 * 49 + 96) * 4;
  assert.throws(
    () => check('c', 4 * hiddenBytes),
    (error) =>
      error instanceof InputError &&
      error.message.startsWith('The plan does not fit: device "c" has 3 MiB for training, and layers 2 to 5') &&
      / with its share take \d+; give it fewer layers/.test(error.message),
  );
  const free = 3 * 2 ** 20 + hiddenBytes;
  assert.throws(() => check('c', free), InputError);
  check('c', free, ['hidden.weight', 'hidden.bias']);
});
