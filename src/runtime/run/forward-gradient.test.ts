// Training by forward gradients equals an independent program in PyTorch (test/fixtures/forward-gradient): on one
// device, in pipelines, in groups with unequal shares.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import { resolveSettings } from '../../cli/settings.ts';
import { createOnnxRuntimeNodeEngine } from '../../engine/node/onnxruntime-node.ts';
import { GraphBuilder } from '../../graph/builder.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { NoiseKind } from '../../noise.ts';
import { loadDataset } from '../../storage/node/datasets.ts';
import { type HandPlan, handPlan } from '../../testing/hand-plans.ts';
import { type MemoryRun, runAlone, runCluster } from '../../testing/memory-cluster.ts';
import { batchNormNet, sgd } from '../../testing/training-subjects.ts';
import { gather } from '../../training/data/dataset.ts';
import type { Batch } from '../coordinator/options.ts';
import { loadModel } from '../host/models.ts';
import { trainDelayed } from './delayed-training.ts';
import { trainedLayers } from './fine-tuning.ts';
import { checkPlanFits } from './prepare.ts';
import { bindToModel, labelCut, sizedByData } from './subject.ts';
import { tangentScales } from './tangent-scales.ts';

interface Case {
  readonly name: string;
  readonly tangent: NoiseKind;
  readonly tangents: number;
  readonly optimizer: 'sgd' | 'adam';
  readonly momentum: number;
  readonly lr: number;
  readonly scales?: Readonly<Record<string, readonly [alpha: number, epochs: number]>>;
  readonly staleness?: readonly number[];
  readonly perturb?: 'activations';
  readonly losses: readonly number[];
}

const folder = 'test/fixtures/forward-gradient';
const { cases, seed, batch } = JSON.parse(readFileSync(`${folder}/expected.json`, 'utf8')) as {
  readonly cases: readonly Case[];
  readonly seed: number;
  readonly batch: number;
};
const activities = (
  JSON.parse(readFileSync(`${folder}/activities.json`, 'utf8')) as { readonly cases: readonly Case[] }
).cases;
const { train } = await loadDataset(`npy:${folder}/X.npy,${folder}/Y.npy`);
const model = await loadModel(`${folder}/net.onnx`, 0);

function runOf(
  { tangent, tangents, optimizer, momentum, lr, scales = {}, perturb, losses }: Case,
  more: { readonly difference?: number } = {},
): MemoryRun {
  const tangentScale = Object.entries(scales).map(([pattern, [alpha, epochs]]) => `${pattern}=${alpha}:${epochs}`);
  const tuning = { loss: 'cross-entropy', freeze: [], freezeAllBut: [], tangentScale } as const;
  const moved = perturb === undefined ? {} : { perturb };
  const { sequence, frozen } = trainedLayers(sizedByData(model.graph, train), { ...tuning, ...moved }, model.choices);
  const dataset = bindToModel(train, sequence, tuning);
  const roundsPerEpoch = train.sampleCount / batch;
  const { graph } = sequence;
  return {
    subject: {
      modelName: 'net',
      sequence,
      training: {
        ...{ batchSize: batch, loss: 'cross-entropy', clipNorm: null, seed, frozen },
        optimizer: { ...sgd, kind: optimizer, momentum },
        forwardGradient: {
          tangentCount: tangents,
          kind: tangent,
          scales: tangentScales(graph.parameters, tangentScale).scales,
          roundsPerEpoch,
          ...(perturb === undefined ? {} : { perturbs: perturb }),
          ...more,
        },
      },
      label: labelCut(dataset),
      state: {
        parameter: new Map(graph.parameters.map((name) => [name, graph.initializers.get(name) as Tensor])),
        buffer: new Map(),
        optimizer: new Map(),
      },
    },
    batch: (round): Batch => {
      const first = (round % roundsPerEpoch) * batch;
      return gather(
        dataset,
        Uint32Array.from({ length: batch }, (_, index) => first + index),
      );
    },
    machine: { endRound: losses.length, learningRate: () => lr },
    createEngine: () => createOnnxRuntimeNodeEngine(),
  };
}

function checkLosses(found: readonly number[], { losses, name }: Case, tolerance = 1e-4): void {
  assert.equal(found.length, losses.length);
  for (const [round, expected] of losses.entries()) {
    const difference = Math.abs((found[round] as number) - expected) / expected;
    assert.ok(difference < tolerance, `${name}: the loss of round ${round} is ${found[round]}, PyTorch's ${expected}`);
  }
}

for (const found of cases.filter(({ staleness }) => staleness === undefined)) {
  test(`${found.name} on one device`, async () => {
    const run = runOf(found);
    checkLosses((await runAlone({ ...run, microBatchSize: batch / 2 })).losses, found);
  });
}

/** Three stages: the first convolution, the second, the rest. One device each, groups, more micro-batches. */
const layouts: readonly (Pick<HandPlan, 'cuts' | 'shares' | 'microBatchCount'> & { readonly title: string })[] = [
  { title: 'three stages', cuts: [1, 2], shares: [[8], [8], [8]], microBatchCount: 1 },
  { title: 'three stages, two micro-batches', cuts: [1, 2], shares: [[4], [4], [4]], microBatchCount: 2 },
  { title: 'a group of two with unequal shares', cuts: [], shares: [[5, 3]], microBatchCount: 1 },
  { title: 'a group of three, one without samples', cuts: [], shares: [[3, 0, 1]], microBatchCount: 2 },
  {
    title: 'groups of two and three with unequal shares',
    cuts: [1, 2],
    shares: [[8], [5, 3], [2, 5, 1]],
    microBatchCount: 1,
  },
];

for (const { title, ...layout } of layouts) {
  for (const found of cases.filter(({ name }) => name === 'four' || name === 'adam' || name === 'scales')) {
    test(`${found.name}: ${title}, each round after the last`, async () => {
      const run = runOf(found);
      const layerCount = run.subject.sequence.layers.length;
      const plan = handPlan({ schedule: 'forward-gradient', ...layout }, layerCount);
      const staleness = plan.stages.map(() => 0);
      const tangentCount = found.tangents;
      checkLosses((await runCluster({ ...run, plan: { ...plan, staleness, tangentCount } })).losses, found);
    });
  }
}

for (const { title, ...layout } of layouts.filter(({ shares }) => shares.length === 3)) {
  for (const found of cases.filter(({ staleness }) => staleness !== undefined)) {
    test(`${found.name}: ${title}, each a round ahead of the next`, async () => {
      const run = runOf(found);
      const plan = handPlan({ schedule: 'forward-gradient', ...layout }, run.subject.sequence.layers.length);
      const { losses } = await runCluster({ ...run, plan: { ...plan, tangentCount: found.tangents } });
      checkLosses(losses, found);
    });
  }
}

test('derivatives from two forward passes are those of tangents, to the square of the step', async () => {
  const found = defined(
    cases.find(({ name }) => name === 'rademacher'),
    'the case',
  );
  const near = { ...found, losses: found.losses.slice(0, 12) };
  const run = runOf(near, { difference: 1e-3 });
  const plan = handPlan(
    { schedule: 'forward-gradient', cuts: [1, 2], shares: [[4], [3, 1], [4]], microBatchCount: 2 },
    run.subject.sequence.layers.length,
  );
  checkLosses((await runAlone({ ...run, microBatchSize: batch / 2 })).losses, near, 2e-3);
  checkLosses(
    (await runCluster({ ...run, plan: { ...plan, staleness: [0, 0, 0], tangentCount: 1 } })).losses,
    near,
    2e-3,
  );
});

for (const found of activities) {
  test(`${found.name} on one device, and by the oracle`, async () => {
    const run = runOf({ ...found, perturb: 'activations' });
    const { sequence } = run.subject;
    assert.equal(sequence.layers.at(-1)?.batchDependent, true);
    checkLosses((await runAlone({ ...run, microBatchSize: batch / 2 })).losses, found);
    const engine = await createOnnxRuntimeNodeEngine();
    const stages = [{ layers: [0, sequence.layers.length], staleness: 0 }] as const;
    const scales = { learningRate: () => found.lr, gradientScale: () => 1 };
    const config = { firstRound: 0, endRound: found.losses.length, batchSize: batch, ...scales };
    const { losses } = await trainDelayed(engine, { ...run, config, microBatchSize: batch / 4, stages });
    await engine.close();
    checkLosses(losses, found);
  });
}

test('activities of the head behind two stages that are frozen', async () => {
  const found = defined(activities[1], 'the case');
  const run = runOf({ ...found, perturb: 'activations' });
  const plan = handPlan(
    { schedule: 'forward-gradient', cuts: [1, 2], shares: [[4], [3, 1], [4]], microBatchCount: 2 },
    run.subject.sequence.layers.length,
  );
  checkLosses((await runCluster({ ...run, plan: { ...plan, tangentCount: found.tangents } })).losses, found);
});

test('activities are refused where samples or weights do not allow it', () => {
  const b = new GraphBuilder('two readers', { seed: 1 });
  const x = b.linear(b.input('x', 'float32', ['N', 4]), { name: 'a', outFeatures: 4 });
  const twice = b.build([b.matMul(b.relu(x), 'a.weight')]);
  const refused = { loss: 'cross-entropy', freeze: [], freezeAllBut: [], perturb: 'activations' } as const;
  assert.throws(() => trainedLayers(twice, refused), /--perturb activations cannot train "a.weight".*reads it, too/);
  assert.throws(() => trainedLayers(batchNormNet().graph, refused), /--batch-norm inference/);
});

test('a plan that shares out the stage whose activities move is refused', () => {
  const { sequence } = runOf({ ...defined(activities[1], 'the case'), perturb: 'activations' }).subject;
  const flags = { model: 'net', data: 'x', mode: 'forward-gradient', batch: String(batch), workers: '2' };
  const settings = resolveSettings({ ...flags, perturb: 'activations' }, {}, '');
  const plan = handPlan(
    { schedule: 'forward-gradient', cuts: [], shares: [[5, 3]], microBatchCount: 1 },
    sequence.layers.length,
  );
  assert.throws(() => checkPlanFits(plan, sequence, settings), /shares the last stage out to 2 devices/);
  checkPlanFits(plan, sequence, { ...settings, perturb: 'weights' });
});
