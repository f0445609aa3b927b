// Asynchronous pipelines against an independent program in PyTorch (test/fixtures/delayed), whose nets are others than
// those of stream.test.ts: gradients late by the plan's staleness, with clipping, aggregation, prediction.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import { createOnnxRuntimeNodeEngine } from '../../engine/node/onnxruntime-node.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { withStaleness } from '../../schedule/staleness.ts';
import { loadDataset } from '../../storage/node/datasets.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { runCluster } from '../../testing/memory-cluster.ts';
import { fixtureFolder } from '../../testing/pytorch-fixtures.ts';
import { sgd } from '../../testing/training-subjects.ts';
import { clipScale } from '../../training/clipping.ts';
import { gather } from '../../training/data/dataset.ts';
import { loadModel } from '../host/models.ts';
import { trainedLayers } from './fine-tuning.ts';
import { bindToModel, labelCut, sizedByData } from './subject.ts';

interface Case {
  readonly name: string;
  readonly net: string;
  readonly optimizer: 'sgd' | 'adam' | 'adamw';
  readonly lr: number;
  readonly staleness: number;
  /** The first parameter of each stage but the first. */
  readonly starts: readonly string[];
  readonly shares: readonly (readonly number[])[];
  readonly clip?: number;
  readonly aggregate?: number;
  readonly correction?: 'predict';
  readonly frozen: readonly string[];
  readonly losses: readonly number[];
  /** By parameter: the sum of its elements after the last round, and that of their squares. */
  readonly weights: Readonly<Record<string, readonly [sum: number, squares: number]>>;
}

const batchSize = 8;
const folder = fixtureFolder('delayed');
const { cases } = JSON.parse(readFileSync(join(folder, 'expected.json'), 'utf8')) as {
  readonly cases: readonly Case[];
};

/** Of float32, where losses are of float64. */
const tolerance = 1e-5;

async function compare(expected: Case): Promise<void> {
  const { net, optimizer, lr, staleness, starts, shares, clip, aggregate, correction, frozen, losses } = expected;
  const model = await loadModel(join(folder, `${net}.onnx`), 0);
  const { train } = await loadDataset(`npy:${join(folder, `${net}-X.npy`)},${join(folder, `${net}-Y.npy`)}`);
  const tuning = { loss: 'cross-entropy', freeze: frozen, freezeAllBut: [], batchNorm: 'inference' } as const;
  const { sequence, frozen: untrained } = trainedLayers(sizedByData(model.graph, train), tuning, model.choices);
  const dataset = bindToModel(train, sequence, tuning);
  const { graph } = sequence;
  const values = (names: readonly string[]): Map<string, Tensor> =>
    new Map(names.map((name) => [name, defined(graph.initializers.get(name), name)]));
  const cuts = starts.map((name) => sequence.layers.findIndex(({ parameters }) => parameters.includes(name)));
  const microBatchCount = batchSize / (shares[0] as number[]).reduce((sum, share) => sum + share, 0);
  const plan = handPlan({ schedule: 'async', cuts, shares, microBatchCount }, sequence.layers.length);
  const { losses: found, state } = await runCluster({
    subject: {
      ...{ modelName: net, sequence, label: labelCut(dataset) },
      training: {
        ...{ batchSize, loss: 'cross-entropy', clipNorm: clip ?? null, seed: 1, frozen: untrained },
        optimizer: { ...sgd, kind: optimizer, weightDecay: optimizer === 'adamw' ? 0.05 : 0 },
        ...(aggregate === undefined ? {} : { aggregate }),
        ...(correction === undefined ? {} : { stalenessCorrection: correction }),
      },
      state: { parameter: values(graph.parameters), buffer: values(graph.buffers), optimizer: new Map() },
    },
    plan: withStaleness(plan, { staleness }),
    batch: (round) => {
      const first = (round * batchSize) % train.sampleCount;
      return gather(
        dataset,
        Uint32Array.from({ length: batchSize }, (_, index) => first + index),
      );
    },
    machine: {
      endRound: losses.length,
      learningRate: () => lr,
      gradientScale: (squaredNorm) => (clip === undefined ? 1 : clipScale(squaredNorm, clip)),
    },
    createEngine: () => createOnnxRuntimeNodeEngine(),
  });
  for (const [round, loss] of losses.entries()) {
    const difference = Math.abs((found[round] ?? Number.NaN) - loss) / loss;
    assert.ok(difference <= tolerance, `round ${round}: ${found[round]} instead of ${loss}`);
  }
  for (const [name, [sum, squares]] of Object.entries(expected.weights)) {
    const data = Array.from(defined(state.parameter.get(name), name).data, Number);
    const total = (numbers: readonly number[]): number => numbers.reduce((all, value) => all + value, 0);
    const [foundSum, foundSquares] = [total(data), total(data.map((value) => value * value))];
    const size = Math.sqrt(data.length * squares);
    assert.ok(Math.abs(foundSum - sum) <= tolerance * size, `${name}: the sum is ${foundSum} instead of ${sum}`);
    assert.ok(Math.abs(foundSquares / squares - 1) <= tolerance, `${name}: ${foundSquares} instead of ${squares}`);
  }
}

for (const found of cases)
  test(`as PyTorch with late gradients: ${found.name}`, { timeout: 60_000 }, () => compare(found));
