// A backward pass reads the weights that its forward pass read, whatever updates lie between; and a synchronous run
// pays nothing for that.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import type { Engine, Value } from '../../engine/engine.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { elementCount, type Tensor, tensor } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import { residualNet, subjectOf } from '../../testing/training-subjects.ts';
import { createStage } from './create-stage.ts';
import { ownCopy } from './samples.ts';
import { SegmentedVector } from './segmented-vector.ts';
import type { StagePort } from './stage.ts';
import { wholeForm } from './stage-form.ts';
import { WeightVersions } from './weight-versions.ts';

const net = residualNet();
const sampleCount = 3;
const update = { learningRate: 0.5, gradientScale: 1, step: 1 };

async function stageOf(engine: Engine, passes: 'whole' | 'split' | 'step'): Promise<StagePort> {
  const { sequence, training, label, state } = subjectOf(net, sampleCount);
  const share = { sampleCount, microBatchSize: sampleCount, layers: [0, sequence.layers.length] as const };
  const stage = await createStage(engine, { sequence, training, label, ...share, form: { ...wholeForm, passes } });
  for (const { parameters, buffers } of sequence.layers) {
    for (const name of parameters)
      stage.load({ role: 'parameter', name, value: ownCopy(defined(state.parameter.get(name), name)) });
    for (const name of buffers)
      stage.load({ role: 'buffer', name, value: ownCopy(defined(state.buffer.get(name), name)) });
  }
  return stage;
}

function forward(stage: StagePort, round: number): void {
  const draw = (cut: StagePort['label'], seed: number): Tensor => {
    const random = createRandom(seed, round);
    const shape = cut.shape.map((size) => (size === 'N' ? sampleCount : size));
    const value = (): number => (cut.type === 'float32' ? random.normal() : random.integer(net.classCount));
    return tensor(cut.type, shape, Array.from({ length: elementCount(shape) }, value));
  };
  const inputs = stage.inputs.map((cut) => draw(cut, 1));
  void stage.forward({ round, index: 0 }, 0, inputs, draw(stage.label, 2));
}

async function backward(stage: StagePort, round: number, passes: string): Promise<void> {
  if (passes !== 'split') {
    await stage.backward({ round, index: 0 }, []);
    return;
  }
  await stage.backwardInput({ round, index: 0 }, []);
  stage.backwardWeight({ round, index: 0 });
}

/** Gradients alone: running statistics, behind them, are of all rounds so far. */
async function gradients(stage: StagePort): Promise<readonly Float32Array[]> {
  const taken = await stage.takeGradients();
  assert.ok(taken instanceof SegmentedVector);
  let leftCount = taken.length - stage.statisticCount;
  const own: Float32Array[] = [];
  for (const segment of taken.segments) {
    if (leftCount > 0) own.push(segment);
    leftCount -= segment.length;
  }
  return own;
}

for (const passes of ['whole', 'split', 'step'] as const) {
  test(`the gradient of a round in flight is that at the weights of its forward pass: ${passes}`, async () => {
    const engine = createReferenceEngine();
    const stage = await stageOf(engine, passes);
    stage.beginRound(0);
    forward(stage, 0);
    stage.beginRound(1, undefined, 0);
    forward(stage, 1);
    await backward(stage, 0, passes);
    const { lossSum } = await stage.finishRound(true);
    stage.update(update);
    await backward(stage, 1, passes);
    const found = await gradients(stage);

    const oracle = await stageOf(engine, passes);
    oracle.beginRound(1);
    forward(oracle, 1);
    await backward(oracle, 1, passes);
    assert.deepEqual(found, await gradients(oracle));
    assert.ok(lossSum > 0, 'the loss of the round before is its own');

    stage.beginRound(2);
    forward(stage, 1);
    await backward(stage, 1, passes);
    assert.notDeepEqual(await gradients(stage), found, 'the update has changed the weights');
    stage.dispose();
    oracle.dispose();
    assert.equal(engine.valueBytes(), 0, 'nothing is left of what was held');
  });
}

test('whoever holds the live weights pays nothing, until something replaces them', () => {
  const counts = { retained: 0, released: 0 };
  const value: Value = { type: 'float32', shape: [1], handle: 1 };
  const state = {
    parameters: () => ({ w: value }),
    retain: () => void counts.retained++,
    release: () => void counts.released++,
  };
  const versions = new WeightVersions(state, () => ({}));
  for (let round = 0; round < 3; round++) {
    const held = [versions.hold(), versions.hold()];
    for (const weights of held) versions.release(weights);
    versions.replace();
  }
  assert.deepEqual(counts, { retained: 0, released: 0 }, 'a synchronous run');
  const [first, second] = [versions.hold(), versions.hold()];
  versions.replace();
  assert.notEqual(versions.live(), first);
  versions.release(first);
  assert.deepEqual(counts, { retained: 1, released: 0 });
  versions.release(second);
  assert.deepEqual(counts, { retained: 1, released: 1 });
});

test('in a stream: filters are made when a version is first read; what was predicted stands for the weights', () => {
  let next = 1;
  let live: Value = { type: 'float32', shape: [1], handle: next };
  const counts = new Map<number, number>();
  const count = (value: Value, by: number): void => {
    counts.set(value.handle, (counts.get(value.handle) ?? 0) + by);
  };
  const state = {
    parameters: () => ({ w: live }),
    retain: (value: Value) => count(value, 1),
    release: (value: Value) => count(value, -1),
  };
  let madeCount = 0;
  const versions = new WeightVersions(state, () => {
    madeCount++;
    return {};
  });
  versions.beginStream(0, 2);
  for (let round = 0; round < 5; round++) {
    const read = versions.holdFor(round);
    read.filters();
    assert.equal(madeCount, Math.max(0, round - 2) + 1, 'one version after the other');
    versions.advance();
    live = { ...live, handle: ++next };
    versions.predict({ w: { ...live, handle: -next } });
    versions.prepare();
    versions.release(read);
  }
  assert.equal(counts.get(1), 0, 'the first version, which nothing predicted, was kept for its rounds');
  assert.ok(
    [2, 3, 4, 5, 6].every((handle) => !counts.has(handle)),
    'of later versions the predictions are read',
  );
  versions.endStream();
  assert.deepEqual(
    [-2, -3, -4, -5, -6].map((handle) => counts.get(handle)),
    [-1, -1, -1, -1, -1],
    'each prediction goes once',
  );
});
