// Forward gradients are unbiased: the mean g over n directions points where the true gradient ∇ does, as closely as
// theory says. For directions of D independent elements with mean 0 and variance 1, ⟨g, ∇⟩ has mean |∇|² and a relative
// variance of at most 2/n, and E|g|² = |∇|²·(1 + (D + κ)/n), κ being 1 of normal numbers and −1 of signs.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Engine } from '../../engine/engine.ts';
import { createOnnxRuntimeNodeEngine } from '../../engine/node/onnxruntime-node.ts';
import { GraphBuilder } from '../../graph/builder.ts';
import type { ElementArray, Tensor } from '../../graph/tensor.ts';
import type { NoiseKind } from '../../noise.ts';
import {
  batches,
  regressionNet,
  residualNet,
  subjectOf,
  type TestNet,
  wideNet,
} from '../../testing/training-subjects.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';
import { createStage } from './create-stage.ts';
import { SegmentedVector } from './segmented-vector.ts';
import { wholeForm } from './stage-form.ts';

const [batch, tangentCount, roundCount] = [4, 4, 512];
/** Of activities, whose spread is measured. */
const activityRounds = 96;
const copyOf = (value: Tensor): Tensor => ({ ...value, data: value.data.slice() as ElementArray });

const cases: readonly (readonly [net: TestNet, kind: NoiseKind])[] = [
  [residualNet(), 'rademacher'],
  [wideNet(), 'gaussian'],
  [regressionNet(), 'rademacher'],
];

const dot = (a: Float64Array, b: Float64Array): number =>
  a.reduce((sum, each, at) => sum + each * (b[at] as number), 0);

function meanOf(vectors: readonly Float64Array[]): Float64Array {
  return (vectors[0] as Float64Array).map(
    (_, index) => vectors.reduce((sum, own) => sum + (own[index] as number), 0) / vectors.length,
  );
}

/** The gradients of so many rounds, of one batch at the same weights: estimates, or those of backward passes. */
async function gradientsOf(
  engine: Engine,
  net: TestNet,
  training: Partial<TrainingSpec>,
  rounds: number,
): Promise<readonly Float64Array[]> {
  const subject = subjectOf(net, batch, training);
  const { sequence, label } = subject;
  const whole = { sequence, layers: [0, sequence.layers.length], sampleCount: batch, microBatchSize: batch } as const;
  const stage = await createStage(engine, { ...whole, training: subject.training, label, form: wholeForm });
  for (const [name, value] of subject.state.parameter) stage.load({ role: 'parameter', name, value: copyOf(value) });
  const { inputs, labels } = batches(net, subject)(0);
  const found: Float64Array[] = [];
  for (let round = 0; round < rounds; round++) {
    stage.beginRound(round);
    const results = await stage.forward({ round, index: 0 }, 0, inputs.map(copyOf), copyOf(labels));
    if (results[0] !== undefined) stage.tangents?.estimate(round, Array.from(results[0].data as Float32Array));
    else await stage.backward({ round, index: 0 }, []);
    const taken = await stage.takeGradients(undefined, round);
    assert.ok(taken instanceof SegmentedVector);
    found.push(Float64Array.from(taken.segments.flatMap((segment) => [...segment])));
    stage.dropVersion(round);
  }
  stage.dispose();
  return found;
}

for (const [net, kind] of cases) {
  test(`${net.graph.name}: the mean of 2,048 ${kind} directions is near the gradient`, async () => {
    const engine = await createOnnxRuntimeNodeEngine();
    const [gradient = new Float64Array()] = await gradientsOf(engine, net, {}, 1);
    const forwardGradient = { tangentCount, kind, scales: {}, roundsPerEpoch: 1 };
    const mean = meanOf(await gradientsOf(engine, net, { forwardGradient }, roundCount));
    await engine.close();
    const n = tangentCount * roundCount;
    const threeErrors = 3 * Math.sqrt(2 / n);
    const along = dot(mean, gradient) / dot(gradient, gradient);
    assert.ok(Math.abs(along - 1) < threeErrors, `${along} of the gradient`);
    const cosine = dot(mean, gradient) / Math.sqrt(dot(mean, mean) * dot(gradient, gradient));
    const expected = 1 / Math.sqrt(1 + (gradient.length + (kind === 'gaussian' ? 1 : -1)) / n);
    assert.ok(Math.abs(cosine / expected - 1) < threeErrors, `a cosine of ${cosine}, not ${expected}`);
  });

  // Of estimates g_r with mean ∇, the mean m of R has E|m − ∇|² = E|g_r − m|² / (R − 1): more is a bias.
  test(`${net.graph.name}: the mean over ${kind} noise of activities is the gradient`, async () => {
    const engine = await createOnnxRuntimeNodeEngine();
    const [gradient = new Float64Array()] = await gradientsOf(engine, net, {}, 1);
    const forwardGradient = { tangentCount, kind, scales: {}, roundsPerEpoch: 1, perturbs: 'activations' } as const;
    const estimates = await gradientsOf(engine, net, { forwardGradient }, activityRounds);
    await engine.close();
    const mean = meanOf(estimates);
    const squaredDistance = (a: Float64Array, b: Float64Array): number =>
      a.reduce((sum, each, at) => sum + (each - (b[at] as number)) ** 2, 0);
    const spread =
      estimates.reduce((sum, own) => sum + squaredDistance(own, mean), 0) / activityRounds / (activityRounds - 1);
    const found = squaredDistance(mean, gradient);
    assert.ok(found < 2 * spread, `${found} from the gradient, by chance ${spread}`);
    const parts = estimates.map((own) => dot(own, gradient) / dot(gradient, gradient));
    const along = parts.reduce((sum, part) => sum + part, 0) / activityRounds;
    const error = Math.sqrt(
      parts.reduce((sum, part) => sum + (part - along) ** 2, 0) / activityRounds / (activityRounds - 1),
    );
    assert.ok(Math.abs(along - 1) < 3 * error, `${along} of the gradient, within ${error}`);
  });
}

// Signs in C dimensions: E|u uᵀδ|² = C|δ|², and samples have noise of their own. With one linear layer, whose weights'
// gradient is Σ_i δ_i (x_i, 1)ᵀ, an estimate from N tangents has E|g|² = |∇|² + (C − 1)/N · Σ_i |δ_i|² (|x_i|² + 1).
test("the noise of a linear layer's activities is in as many dimensions as it has outputs", async () => {
  const b = new GraphBuilder('linear', { seed: 2 });
  const graph = b.build([b.linear(b.input('x', 'float32', ['N', 9]), { name: 'head', outFeatures: 5 })]);
  const net: TestNet = { graph, loss: 'mse', classCount: 0 };
  const engine = await createOnnxRuntimeNodeEngine();
  const [gradient = new Float64Array()] = await gradientsOf(engine, net, {}, 1);
  const forwardGradient = { tangentCount, kind: 'rademacher', scales: {}, roundsPerEpoch: 1 } as const;
  const training = { forwardGradient: { ...forwardGradient, perturbs: 'activations' } } as const;
  const estimates = await gradientsOf(engine, net, training, activityRounds);
  await engine.close();
  const { inputs, labels } = batches(net, subjectOf(net, batch))(0);
  const [x, y] = [inputs[0]?.data as Float32Array, labels.data as Float32Array];
  const initial = (name: string): Float32Array => graph.initializers.get(name)?.data as Float32Array;
  const [weight, bias] = [initial('head.weight'), initial('head.bias')];
  let noise = 0;
  for (let sample = 0; sample < batch; sample++) {
    const row = [...x.subarray(9 * sample, 9 * sample + 9)];
    const squared = (values: readonly number[]): number => values.reduce((sum, value) => sum + value * value, 0);
    const delta = [...bias].map((own, output) => {
      const given = row.reduce((sum, value, at) => sum + value * (weight[9 * output + at] as number), own);
      return ((given - (y[5 * sample + output] as number)) * 2) / 5 / batch;
    });
    noise += ((5 - 1) / tangentCount) * squared(delta) * (squared(row) + 1);
  }
  const expected = dot(gradient, gradient) + noise;
  const found = estimates.reduce((sum, own) => sum + dot(own, own), 0) / activityRounds;
  assert.ok(Math.abs(found / expected - 1) < 0.2, `${found}, not ${expected}`);
});
