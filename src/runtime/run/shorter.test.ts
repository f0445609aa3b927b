// Rounds of shorter samples, between those of the longest: however a plan cuts the net and shares out the samples,
// losses and weights are those of one device that computes the same samples filled up to the longest.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InputError } from '../../errors.ts';
import type { Graph } from '../../graph/graph.ts';
import { layers } from '../../graph/layers.ts';
import { trainingMode } from '../../graph/onnx/modes.ts';
import { type Tensor, tensor, wrap } from '../../graph/tensor.ts';
import { buildCheckout } from '../../models/checkout/build.ts';
import { createRandom } from '../../random.ts';
import { handPlan, randomHandPlan } from '../../testing/hand-plans.ts';
import { difference, type MemoryRun, runAlone, runCluster } from '../../testing/memory-cluster.ts';
import { subjectOf } from '../../testing/training-subjects.ts';
import { createDataset } from '../../training/data/dataset.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';
import type { SessionInput } from './prepare.ts';
import { withShorter } from './shorter.ts';

const [batchSize, longest, shorterLengths] = [8, 12, [4, 8]] as const;

const config = {
  model_type: 'bert',
  vocab_size: 20,
  hidden_size: 8,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  intermediate_size: 8,
  max_position_embeddings: 16,
};

const bertOf = (sequence: number, dropout: number): Graph =>
  trainingMode(buildCheckout(config, 'config.json', { sequence, dropout, seed: 3 }).graph);

/** The length of each round's batch. */
const lengthAt = (round: number): number => [longest, 4, 8, 8][round % 4] as number;

/** Inputs and labels of a round, filled up to `length`. */
function batchAt(round: number, length: number): { readonly inputs: readonly Tensor[]; readonly labels: Tensor } {
  const random = createRandom(9, round);
  const counts = Array.from({ length: batchSize }, () => 1 + random.integer(lengthAt(round)));
  const ids = counts.map((count) => Array.from({ length: count }, () => random.integer(20)));
  const field = (of: (sample: number, place: number) => number): Tensor =>
    tensor(
      'int64',
      [batchSize, length],
      Array.from({ length: batchSize * length }, (_, at) => of(Math.floor(at / length), at % length)),
    );
  return {
    inputs: [
      field((sample, place) => ids[sample]?.[place] ?? 0),
      field((sample, place) => (place < (counts[sample] as number) ? 1 : 0)),
      field(() => 0),
    ],
    labels: tensor(
      'int64',
      [batchSize],
      counts.map((count) => count % 2),
    ),
  };
}

function runOf(training: Partial<TrainingSpec>, { isPadded = false, dropout = 0 } = {}): MemoryRun {
  const subject = subjectOf({ graph: bertOf(longest, dropout), loss: 'cross-entropy', classCount: 2 }, batchSize, {
    ...training,
    frozen,
  });
  const shorter = new Map(shorterLengths.map((length) => [length, layers(bertOf(length, dropout), { frozen })]));
  const sequence = isPadded ? subject.sequence : { ...subject.sequence, shorter };
  return {
    subject: { ...subject, sequence },
    batch: (round) => batchAt(round, isPadded ? longest : lengthAt(round)),
    machine: {
      endRound: 5,
      batchAt: (round) => {
        const length = lengthAt(round);
        return { sampleCount: batchSize, factor: 1, ...(isPadded || length === longest ? {} : { length }) };
      },
    },
  };
}

/** A softmax takes no notice of it: its gradient is rounding alone. */
const frozen = ['bert.encoder.layer.0.attention.self.key.bias'];

const cases: readonly Partial<TrainingSpec>[] = [{}, { clipNorm: 0.5 }, { recompute: 0 }, { grain: 1 }];

for (let seed = 0; seed < 8; seed++) {
  const training = cases[seed % cases.length] ?? {};
  const run = runOf(training);
  const layerCount = run.subject.sequence.layers.length;
  const plan = randomHandPlan(seed, layerCount, batchSize);
  const what = `${plan.schedule} ${JSON.stringify(plan.shares)}, ${plan.microBatchCount} micro-batches`;
  test(`samples of 4, 8 and 12 tokens over ${what}, ${JSON.stringify(training)}: as filled up to 12`, async () => {
    const microBatchSize = batchSize / plan.microBatchCount;
    const padded = await runAlone({ ...runOf(training, { isPadded: true }), microBatchSize });
    const alone = await runAlone({ ...run, microBatchSize });
    const shared = await runCluster({ ...run, plan: handPlan(plan, layerCount) });
    for (const found of [alone, shared]) {
      const { loss, weight, worst } = difference(found, padded);
      assert.ok(loss < 1e-5 && weight < 1e-5, `losses differ by ${loss}, ${worst} by ${weight}`);
    }
  });
}

test('dropout of shorter samples does not depend on the plan', async () => {
  const run = runOf({}, { dropout: 0.3 });
  const layerCount = run.subject.sequence.layers.length;
  const plan = handPlan({ schedule: '1f1b', cuts: [3], shares: [[3, 1], [4]], microBatchCount: 2 }, layerCount);
  const { loss, weight } = difference(
    await runCluster({ ...run, plan }),
    await runAlone({ ...run, microBatchSize: 4 }),
  );
  assert.ok(loss < 1e-5 && weight < 1e-5, `losses differ by ${loss}, weights by ${weight}`);
});

test('models and modes that have one length are refused', () => {
  const ids = { name: 'input_ids', values: wrap('int32', [2, 12], new Int32Array(24)), type: 'int64' } as const;
  const field = { ...ids, divisor: 1, source: 'x' };
  const labels = { ...field, name: 'labels', values: tensor('int32', [2], [0, 1]) };
  const lengths = { tokens: Uint32Array.of(3, 12), padded: [8, 12] };
  const order = { sampleCount: 2, batchSize: 1, seed: 0, shuffle: true, lengths };
  const graph = bertOf(12, 0);
  const refused = (
    settings: object,
    names: readonly string[] = ['input_ids', 'attention_mask', 'token_type_ids'],
  ): void => {
    const inputs = graph.inputs.map((input, index) => ({ ...input, name: names[index] ?? input.name }));
    const sequence = layers(graph);
    const given = {
      ...sequence,
      inputs: sequence.inputs.map((cut, index) => ({ ...cut, name: inputs[index]?.name ?? '' })),
    };
    const model = { name: 'x', graph, notes: [], write: () => new Uint8Array() };
    const input = { model, settings, train: createDataset('x', [field], labels) } as unknown as SessionInput;
    withShorter(given, input, { order, layersOf: (each) => layers(each) });
  };
  const says = (pattern: RegExp) => (error: unknown) => error instanceof InputError && pattern.test(error.message);
  assert.throws(() => refused({ mode: 'async' }), says(/--mode async, whose rounds all have one shape/));
  assert.throws(() => refused({}, ['x', 'y', 'z']), says(/by its input attention_mask; it has x, y, z/));
  assert.throws(() => refused({}), says(/leaves the number of tokens open, and this one has 12/));
});
