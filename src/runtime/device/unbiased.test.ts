// Forward gradients are unbiased: the mean g over n directions points where the true gradient ∇ does, as closely as
// theory says. For directions of D independent elements with mean 0 and variance 1, ⟨g, ∇⟩ has mean |∇|² and a relative
// variance of at most 2/n, and E|g|² = |∇|²·(1 + (D + κ)/n), κ being 1 of normal numbers and −1 of signs.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createOnnxRuntimeNodeEngine } from '../../engine/node/onnxruntime-node.ts';
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
import type { StagePort } from './stage.ts';
import { wholeForm } from './stage-form.ts';

const [batch, tangentCount, roundCount] = [4, 4, 512];
const copyOf = (value: Tensor): Tensor => ({ ...value, data: value.data.slice() as ElementArray });

const cases: readonly (readonly [net: TestNet, kind: NoiseKind])[] = [
  [residualNet(), 'rademacher'],
  [wideNet(), 'gaussian'],
  [regressionNet(), 'rademacher'],
];

for (const [net, kind] of cases) {
  test(`${net.graph.name}: the mean of 2,048 ${kind} directions is near the gradient`, async () => {
    const engine = await createOnnxRuntimeNodeEngine();
    const compute = async (
      training: Partial<TrainingSpec>,
      use: (stage: StagePort, round: number) => Promise<void>,
      rounds: number,
    ): Promise<readonly Float64Array[]> => {
      const subject = subjectOf(net, batch, training);
      const { sequence, label } = subject;
      const whole = {
        sequence,
        layers: [0, sequence.layers.length],
        sampleCount: batch,
        microBatchSize: batch,
      } as const;
      const stage = await createStage(engine, { ...whole, training: subject.training, label, form: wholeForm });
      for (const [name, value] of subject.state.parameter)
        stage.load({ role: 'parameter', name, value: copyOf(value) });
      const { inputs, labels } = batches(net, subject)(0);
      const found: Float64Array[] = [];
      for (let round = 0; round < rounds; round++) {
        stage.beginRound(round);
        const results = await stage.forward({ round, index: 0 }, 0, inputs.map(copyOf), copyOf(labels));
        if (results[0] !== undefined) stage.tangents?.estimate(round, Array.from(results[0].data as Float32Array));
        else await use(stage, round);
        const taken = await stage.takeGradients(undefined, round);
        assert.ok(taken instanceof SegmentedVector);
        found.push(Float64Array.from(taken.segments.flatMap((segment) => [...segment])));
        stage.dropVersion(round);
      }
      stage.dispose();
      return found;
    };
    const backward = async (stage: StagePort, round: number): Promise<void> => {
      await stage.backward({ round, index: 0 }, []);
    };
    const [gradient = new Float64Array()] = await compute({}, backward, 1);
    const forwardGradient = { tangentCount, kind, scales: {}, roundsPerEpoch: 1 };
    const estimates = await compute({ forwardGradient }, async () => {}, roundCount);
    await engine.close();

    const mean = gradient.map(
      (_, index) => estimates.reduce((sum, own) => sum + (own[index] as number), 0) / roundCount,
    );
    const dot = (a: Float64Array, b: Float64Array): number =>
      a.reduce((sum, each, at) => sum + each * (b[at] as number), 0);
    const n = tangentCount * roundCount;
    const threeErrors = 3 * Math.sqrt(2 / n);
    const along = dot(mean, gradient) / dot(gradient, gradient);
    assert.ok(Math.abs(along - 1) < threeErrors, `${along} of the gradient`);
    const cosine = dot(mean, gradient) / Math.sqrt(dot(mean, mean) * dot(gradient, gradient));
    const expected = 1 / Math.sqrt(1 + (gradient.length + (kind === 'gaussian' ? 1 : -1)) / n);
    assert.ok(Math.abs(cosine / expected - 1) < threeErrors, `a cosine of ${cosine}, not ${expected}`);
  });
}
