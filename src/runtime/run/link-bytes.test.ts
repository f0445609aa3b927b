// What a round sends between devices, counted on the links of whole runs: forward gradients beside backpropagation, in
// a straight pipeline and with a replicated stage (docs/forward-gradients.md has the table).

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import { createOnnxRuntimeNodeEngine } from '../../engine/node/onnxruntime-node.ts';
import { GraphBuilder } from '../../graph/builder.ts';
import { cutBefore, cutBytes, layers } from '../../graph/layers.ts';
import { elementCount, type Tensor, tensor } from '../../graph/tensor.ts';
import { type HandPlan, handPlan } from '../../testing/hand-plans.ts';
import { type MemoryRun, runCluster } from '../../testing/memory-cluster.ts';
import { sgd } from '../../testing/training-subjects.ts';

const batch = 32;
const widths = [96, 128, 160];

/** Three linear layers, a stage each: cuts of 96 and 128 numbers a sample. */
const sequence = (() => {
  const b = new GraphBuilder('three', { seed: 1 });
  let x = b.input('x', 'float32', ['N', 64]);
  widths.forEach((outFeatures, index) => {
    x = b.linear(index === 0 ? x : b.tanh(x), { name: `layer${index}`, outFeatures });
  });
  return layers(b.build([x]));
})();

function runOf(plan: HandPlan & { readonly tangentCount: number }, endRound: number): MemoryRun {
  const { graph } = sequence;
  const { tangentCount, ...hand } = plan;
  const isForward = hand.schedule === 'forward-gradient';
  const layout = handPlan(hand, sequence.layers.length);
  const staleness = layout.stages.map(() => 0);
  const spec = { tangentCount, kind: 'rademacher', scales: {}, roundsPerEpoch: 100 } as const;
  return {
    subject: {
      modelName: 'three',
      sequence,
      training: {
        ...{ batchSize: batch, loss: 'mse', clipNorm: null, seed: 1, frozen: [], optimizer: sgd },
        ...(isForward ? { forwardGradient: spec } : {}),
      },
      label: { name: 'label', type: 'float32', shape: ['N', 160], batchAxis: 0, differentiable: false },
      state: {
        parameter: new Map(graph.parameters.map((name) => [name, graph.initializers.get(name) as Tensor])),
        buffer: new Map(),
        optimizer: new Map(),
      },
    },
    batch: () => ({ inputs: [zeros([batch, 64])], labels: zeros([batch, 160]) }),
    machine: { endRound, learningRate: () => 1e-3, replicateEvery: 0 },
    createEngine: () => createOnnxRuntimeNodeEngine(),
    plan: isForward ? { ...layout, staleness, tangentCount } : layout,
  };
}

function zeros(shape: readonly number[]): Tensor {
  return tensor('float32', shape, new Float32Array(elementCount(shape)));
}

/** Bytes that devices send to each other in a round: of runs of 3 and 9 rounds, the difference. */
async function roundBytes(plan: HandPlan & { readonly tangentCount: number }): Promise<number> {
  const [first, last] = [3, 9];
  const counted = [];
  for (const endRound of [first, last]) {
    let bytes = 0;
    const tamper = (message: Uint8Array): readonly Uint8Array[] => {
      bytes += message.length;
      return [message];
    };
    const linkBetween: MemoryRun['linkBetween'] = (a, b) => ([a, b].includes('coordinator') ? undefined : { tamper });
    await runCluster({ ...runOf(plan, endRound), linkBetween });
    counted.push(bytes);
  }
  return ((counted[1] as number) - (counted[0] as number)) / (last - first);
}

/** Of all samples of a round. */
const activations = [1, 2].map((cut) => cutBytes(cutBefore(sequence, cut), batch));
const allActivations = activations.reduce((sum, bytes) => sum + bytes, 0);
const weights = sequence.graph.parameters.reduce(
  (sum, name) => sum + 4 * elementCount(defined(sequence.graph.initializers.get(name), name).shape),
  0,
);
const straight = { cuts: [1, 2], shares: [[16], [16], [16]], microBatchCount: 2 };
const replicated = { cuts: [], shares: [[8, 8]], microBatchCount: 2 };

/** What travels besides what is counted: heads of frames. */
const heads = 2500;

const expected: readonly (readonly [
  title: string,
  plan: HandPlan & { readonly tangentCount: number },
  bytes: number,
])[] = [
  ['a straight pipeline, backpropagation', { ...straight, schedule: '1f1b', tangentCount: 0 }, 2 * allActivations],
  [
    'a straight pipeline, one tangent',
    { ...straight, schedule: 'forward-gradient', tangentCount: 1 },
    2 * allActivations + 16,
  ],
  [
    'a straight pipeline, four tangents',
    { ...straight, schedule: 'forward-gradient', tangentCount: 4 },
    5 * allActivations + 64,
  ],
  ['a replicated stage, backpropagation', { ...replicated, schedule: '1f1b', tangentCount: 0 }, 2 * weights],
  ['a replicated stage, four tangents', { ...replicated, schedule: 'forward-gradient', tangentCount: 4 }, 64],
];

for (const [title, plan, bytes] of expected)
  test(`${title}: ${bytes} bytes a round`, async () => {
    const found = await roundBytes(plan);

    const most = bytes + heads;
    assert.ok(found >= bytes && found <= most, `${found} bytes, not ${bytes}`);
  });
