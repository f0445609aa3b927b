// Rounds of any smaller number of samples, between whole ones: however a plan cuts the net and shares out the samples,
// losses and weights are those of one device that computes the same samples together.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Tensor } from '../../graph/tensor.ts';
import { type HandPlan, handPlan, randomHandPlan } from '../../testing/hand-plans.ts';
import { difference, type MemoryRun, runAlone, runCluster } from '../../testing/memory-cluster.ts';
import {
  batches,
  batchNormNet,
  dropoutNet,
  residualNet,
  subjectOf,
  type TestNet,
  transformerNet,
} from '../../testing/training-subjects.ts';
import { clipScale } from '../../training/clipping.ts';
import { sliceSamples } from '../device/samples.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';

const batchSize = 8;

/** Six rounds, every second one of `sampleCount` samples. */
function runOf(net: TestNet, sampleCount: number, training: Partial<TrainingSpec> = {}): MemoryRun {
  const subject = subjectOf(net, batchSize, training);
  const { clipNorm } = subject.training;
  const batch = batches(net, subject);
  const isSmaller = (round: number): boolean => round % 2 === 1;
  return {
    subject,
    batch: (round) => {
      const { inputs, labels } = batch(round);
      const cut = (value: Tensor): Tensor => (isSmaller(round) ? sliceSamples(value, 0, 0, sampleCount) : value);
      return { inputs: inputs.map(cut), labels: cut(labels) };
    },
    machine: {
      endRound: 6,
      batchAt: (round) =>
        isSmaller(round) ? { sampleCount, factor: batchSize / sampleCount } : { sampleCount: batchSize, factor: 1 },
      gradientScale: (squaredNorm) => (clipNorm === null ? 1 : clipScale(squaredNorm, clipNorm)),
    },
  };
}

function planned(run: MemoryRun, plan: HandPlan): MemoryRun {
  return { ...run, plan: handPlan(plan, run.subject.sequence.layers.length) };
}

const nets: readonly (readonly [TestNet, Partial<TrainingSpec>])[] = [
  [residualNet(), { clipNorm: 0.5 }],
  [dropoutNet(), {}],
  [transformerNet(), { recompute: 0 }],
];

for (let seed = 0; seed < 24; seed++) {
  const [net, training] = nets[seed % nets.length] ?? [residualNet(), {}];
  const sampleCount = 1 + (seed % (batchSize - 1));
  const layerCount = subjectOf(net, batchSize).sequence.layers.length;
  const plan = randomHandPlan(seed, layerCount, batchSize);
  const { schedule, cuts, shares, microBatchCount } = plan;
  const what = `${schedule} ${JSON.stringify(shares)} cut at ${JSON.stringify(cuts)}, ${microBatchCount} micro-batches`;
  test(`${sampleCount} of ${batchSize} samples of ${net.graph.name} over ${what}: as on one device`, async () => {
    const run = runOf(net, sampleCount, training);
    const alone = await runAlone({ ...run, microBatchSize: batchSize / microBatchCount });
    const { loss, weight, worst } = difference(await runCluster(planned(run, plan)), alone);
    assert.ok(loss < 1e-5 && weight < 1e-5, `losses differ by ${loss}, ${worst} by ${weight}`);
  });
}

test('batches of a replicated stage are normalized over the samples that each device has', async () => {
  const run = runOf(batchNormNet(), 5);
  // Of 5 samples 4 are on a and 1 on b: what one device does with micro-batches of 4.
  const alone = await runAlone({ ...run, microBatchSize: 4 });
  const shared = await runCluster(planned(run, { schedule: '1f1b', cuts: [], shares: [[4, 4]], microBatchCount: 1 }));
  const weightsOf = ({ state }: typeof alone) => ({ ...state, buffer: new Map() });
  const { loss, weight, worst } = difference(
    { ...shared, state: weightsOf(shared) },
    { ...alone, state: weightsOf(alone) },
  );
  assert.ok(loss < 1e-5 && weight < 1e-5, `losses differ by ${loss}, ${worst} by ${weight}`);
  for (const [name, { data }] of shared.state.buffer) assert.ok([...data].every(Number.isFinite), name);
});
