// A device with a GPU and one without train together as one: the losses and weights are those of one processor.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createOnnxRuntimeNodeEngine } from '../../engine/node/onnxruntime-node.ts';
import { GraphBuilder } from '../../graph/builder.ts';
import { bert } from '../../models/bert.ts';
import { buildModel } from '../../models/zoo.ts';
import { type HandPlan, handPlan } from '../../testing/hand-plans.ts';
import { difference, type Outcome, runAlone, runCluster } from '../../testing/memory-cluster.ts';
import { softwareGpuMissing, useSoftwareGpu } from '../../testing/software-gpu.ts';
import { batches, batchNormNet, subjectOf, type TestNet } from '../../testing/training-subjects.ts';

useSoftwareGpu();

const digits = (): TestNet => ({
  graph: buildModel('digits', { seed: 1 }).graph,
  loss: 'cross-entropy',
  classCount: 10,
});

/** BERT with 2 layers of 16 on 8 tokens. */
function tinyBert(): TestNet {
  const b = new GraphBuilder('bert-tiny', { seed: 1 });
  const config = { layerCount: 2, width: 16, headCount: 2, intermediateWidth: 32, vocabularySize: 6, positionCount: 8 };
  const logits = bert(b, b.input('ids', 'int64', ['N', 8]), { config, classes: 3, dropout: 0.1 });
  return { graph: b.build([logits]), loss: 'cross-entropy', classCount: 3 };
}

/** Biases of attention's keys change no result: what they are trained to is the rounding of their gradients. */
function withoutNoise(outcome: Outcome): Outcome {
  const kept = [...outcome.state.parameter].filter(([name]) => !name.endsWith('.key.bias'));
  return { ...outcome, state: { ...outcome.state, parameter: new Map(kept), optimizer: new Map() } };
}

/** Device a has the GPU. */
async function compare(net: TestNet, plan: HandPlan): Promise<void> {
  const batchSize = (plan.shares[0] as number[]).reduce((sum, share) => sum + share, 0) * plan.microBatchCount;
  const subject = subjectOf(net, batchSize);
  const run = {
    subject,
    batch: batches(net, subject),
    plan: handPlan(plan, subject.sequence.layers.length),
    machine: { learningRate: () => 0.05 },
  };
  const single = await runAlone({ ...run, microBatchSize: run.plan.microBatchSize });
  const mixed = await runCluster({
    ...run,
    createEngine: (device) => createOnnxRuntimeNodeEngine({ device: device === 'a' ? 'gpu' : 'cpu' }),
  });
  const { loss, weight, worst } = difference(withoutNoise(mixed), withoutNoise(single));
  assert.equal(mixed.losses.length, 3);
  assert.ok(loss <= 1e-4, `losses differ by ${loss}: ${mixed.losses} and ${single.losses}`);
  assert.ok(weight <= 1e-4, `${worst} differs by ${weight}`);
}

const options = { skip: softwareGpuMissing ?? false, timeout: 300_000 };

test('the digits, the GPU in the first stage', options, () =>
  compare(digits(), { schedule: '1f1b', cuts: [3], shares: [[2], [2]], microBatchCount: 2 }),
);

test('a small BERT, its backward pass split', options, () =>
  compare(tinyBert(), { schedule: 'zb-h1', cuts: [2], shares: [[2], [2]], microBatchCount: 2 }),
);

test('batch normalization, written out', options, () =>
  compare(batchNormNet(), { schedule: '1f1b', cuts: [2], shares: [[2], [2]], microBatchCount: 2 }),
);
