import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inferenceMode } from '../../graph/onnx/modes.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { subjectOf, wideNet } from '../../testing/training-subjects.ts';
import { checkInferenceMemory, plannedInferenceMiB } from './inference-memory.ts';

const net = wideNet();
const { sequence } = subjectOf({ ...net, graph: inferenceMode(net.graph) }, 4);
const predicted = { roundMs: 0, samplesPerS: 0, peakMemoryMiB: {} };
const layout = handPlan(
  { schedule: 'inference', cuts: [1], shares: [[4], [2, 2]], microBatchCount: 1 },
  sequence.layers.length,
);
const plan = { ...layout, predicted };

test('a plan that a device cannot hold even with its weights in a file is refused, by its name', () => {
  const { a = 0, b = 0, c = 0 } = plannedInferenceMiB(plan, sequence, 1);
  assert.ok(a > 0 && b > 0 && b === c, `${a}, ${b}, ${c} MiB`);
  const cluster = (ownMiB: number) => ({
    devices: ['a', 'b', 'c'].map((name) => ({ name, memoryMiB: name === 'c' ? ownMiB : 1024 })),
    links: { default: { bandwidthMbps: 100 } },
  });
  checkInferenceMemory(plan, sequence, cluster(b));
  assert.throws(() => checkInferenceMemory(plan, sequence, cluster(0.01 * b)), {
    name: 'InputError',
    message: /^c would need at least \d+ MiB for its part of the plan, and has \d+ MiB: add devices or memory/,
  });
});
