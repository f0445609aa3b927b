// How tests train the models of test/fixtures/pytorch and hold the result against PyTorch's: the flags of the run, its
// losses, its weights.

import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { defined } from '../assert.ts';
import { resolveSettings } from '../cli/settings.ts';
import { systemClock } from '../clock.ts';
import { layers } from '../graph/layers.ts';
import { decodeModel, parseModel } from '../graph/onnx/decode.ts';
import type { Tensor } from '../graph/tensor.ts';
import { loadModel } from '../runtime/host/models.ts';
import { runSession } from '../runtime/host/session-here.ts';
import { sizedByData } from '../runtime/run/subject.ts';
import { loadDataset } from '../storage/node/datasets.ts';
import { handPlan } from './hand-plans.ts';
import type { PytorchFixture } from './pytorch-fixtures.ts';

/** The flags of `asteroid train` that train a fixture as PyTorch did, but for `--no-shuffle`. */
export function flagsOf(fixture: PytorchFixture): Readonly<Record<string, string>> {
  const { modelPath, inputsPath, labelsPath, learningRate, momentum, batchSize, stepCount } = fixture;
  return {
    model: modelPath,
    data: `npy:${inputsPath},${labelsPath}`,
    batch: String(batchSize),
    'micro-batch': String(batchSize),
    steps: String(stepCount),
    optimizer: 'sgd',
    lr: String(learningRate),
    momentum: String(momentum),
    loss: 'cross-entropy',
  };
}

/**
 * Trains a fixture in this process by the path of `asteroid train`: the losses of its steps, and the file that comes
 * out.
 */
export async function trainInProcess(
  fixture: PytorchFixture,
): Promise<{ readonly losses: readonly number[]; readonly file: Uint8Array }> {
  const settings = resolveSettings({ shuffle: false }, { ...flagsOf(fixture) }, 'the flags');
  const model = await loadModel(settings.model, settings.seed);
  const { train } = await loadDataset(settings.data);
  const environment = { clock: systemClock, observe: () => {}, signal: new AbortController().signal };
  const { losses, state } = await runSession({ settings, model, train, test: undefined }, environment);
  return { losses, file: model.write(new Map([...state.parameter, ...state.buffer])) };
}

/**
 * Writes a file into `folder` with the plan of a fixture's layers in equal stages, by their shares of a batch. Resolves
 * with its path.
 */
export async function writePlan(
  fixture: PytorchFixture,
  shares: readonly (readonly number[])[],
  folder: string,
): Promise<string> {
  const { graph } = await loadModel(fixture.modelPath, 0);
  const { train } = await loadDataset(`npy:${fixture.inputsPath},${fixture.labelsPath}`);
  const layerCount = layers(sizedByData(graph, train)).layers.length;
  const cuts = shares.slice(1).map((_, index) => Math.round(((index + 1) * layerCount) / shares.length));
  const path = join(folder, `${fixture.name.replace('/', '-')}.json`);
  await writeFile(path, JSON.stringify(handPlan({ schedule: '1f1b', cuts, shares, microBatchCount: 1 }, layerCount)));
  return path;
}

/**
 * Fails where a step's loss is further than `tolerance`, relative, from PyTorch's. Returns the largest relative
 * difference.
 */
export function checkLosses(
  found: readonly unknown[],
  { name, losses }: PytorchFixture,
  { how, tolerance }: Comparison,
): number {
  assert.equal(found.length, losses.length, `${name} ${how}`);
  let largest = 0;
  losses.forEach((expected, step) => {
    const difference = Math.abs(Number(found[step]) - expected) / expected;
    assert.ok(
      difference < tolerance,
      `${name} ${how}: the loss of step ${step} is ${found[step]}, PyTorch's ${expected}`,
    );
    largest = Math.max(largest, difference);
  });
  return largest;
}

/** Fails where the sums over a trained tensor of the file `bytes` are not those of PyTorch's parameter. */
export function checkWeights(
  bytes: Uint8Array,
  { name, finalWeights }: PytorchFixture,
  { how, tolerance }: Comparison,
): void {
  const tensors: ReadonlyMap<string, Tensor> = decodeModel(parseModel(bytes)).initializers;
  for (const [parameter, { initializer, sum, sumOfSquares, shape }] of Object.entries(finalWeights)) {
    const { data } = defined(tensors.get(initializer), `${initializer} of ${name}`);
    const elementCount = shape.reduce((product, size) => product * size, 1);
    assert.equal(data.length, elementCount, `${parameter} of ${name}`);
    let [total, squares] = [0, 0];
    for (const value of data) {
      total += Number(value);
      squares += Number(value) ** 2;
    }
    const what = `${parameter} of ${name} ${how}`;
    const isClose = Math.abs(squares - sumOfSquares) < tolerance * sumOfSquares;
    assert.ok(isClose, `${what}: squares sum to ${squares}, PyTorch's to ${sumOfSquares}`);
    // A sum may be near 0: its scale is that of the elements.
    assert.ok(
      Math.abs(total - sum) < tolerance * Math.sqrt(elementCount * sumOfSquares),
      `${what}: sums to ${total}, PyTorch's to ${sum}`,
    );
  }
}

/** How two trainings are compared. */
export interface Comparison {
  /** How the fixture was trained, for messages, such as 'over 3 workers'. */
  readonly how: string;
  /** The largest relative difference that is accepted. */
  readonly tolerance: number;
}
