// The delayed oracle against training on one device where nothing is late, and against float64 numbers by hand where
// gradients are: two scalar layers, y = b · a · x, in stages of their own.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createReferenceEngine } from '../../engine/reference.ts';
import { GraphBuilder } from '../../graph/builder.ts';
import { layers } from '../../graph/layers.ts';
import { type Tensor, tensor } from '../../graph/tensor.ts';
import { difference, type MemoryRun, runAlone } from '../../testing/memory-cluster.ts';
import { batches, batchNormNet, dropoutNet, sgd, subjectOf } from '../../testing/training-subjects.ts';
import { clipScale } from '../../training/clipping.ts';
import type { RunSubject } from '../protocol/run-subject.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';
import type { DelayedRun, DelayedStage } from './delayed-run.ts';
import { trainDelayed } from './delayed-training.ts';

const roundCount = 9;

/** y = b · (a · x), a mean squared error, one sample a round. */
function scalarSubject(optimizer: TrainingSpec['optimizer']): RunSubject {
  const b = new GraphBuilder('scalar', { seed: 1 });
  const hidden = b.linear(b.input('x', 'float32', ['N', 1]), { name: 'a', outFeatures: 1, bias: false });
  const graph = b.build([b.linear(hidden, { name: 'b', outFeatures: 1, bias: false })]);
  const weight = (value: number): Tensor => tensor('float32', [1, 1], [value]);
  return {
    modelName: 'scalar',
    sequence: layers(graph),
    training: { batchSize: 1, loss: 'mse', optimizer, clipNorm: null, seed: 1, frozen: [] },
    label: { name: 'label', type: 'float32', shape: ['N', 1], batchAxis: 0, differentiable: false },
    state: {
      parameter: new Map([
        ['a.weight', weight(0.5)],
        ['b.weight', weight(-0.75)],
      ]),
      buffer: new Map(),
      optimizer: new Map(),
    },
  };
}

const sample = (round: number): { readonly x: number; readonly y: number } => ({
  x: 1 + (round % 3) / 4,
  y: 0.5 - (round % 2),
});
const rateOf = (round: number): number => 0.125 / (1 + round / 8);

/** What the scalar net's weights and losses are, in float64, from the definitions. */
interface ByHand {
  readonly staleness: readonly [number, number];
  /** Of a version list and an update's number, what the update is applied to. */
  readonly base?: (versions: readonly number[], update: number, stage: number) => number;
  /** The new weight from what it is applied to, a gradient, and own state; and what is read in its place. */
  readonly rule: (weight: number, gradient: number, rate: number, stage: number) => number | readonly [number, number];
}

function byHand({ staleness, base, rule }: ByHand): { losses: number[]; weights: readonly [number, number] } {
  const versions: readonly [number[], number[]] = [[0.5], [-0.75]];
  const readable: readonly [number[], number[]] = [[0.5], [-0.75]];
  const losses: number[] = [];
  for (let round = 0; round < roundCount; round++) {
    const { x, y } = sample(round);
    const read = (stage: 0 | 1): number => readable[stage][Math.max(0, round - staleness[stage])] as number;
    const [a, b] = [read(0), read(1)];
    const error = b * a * x - y;
    losses.push(error ** 2);
    const gradients = [2 * error * b * x, 2 * error * a * x];
    for (const stage of [0, 1] as const) {
      const from = base?.(versions[stage], round, stage) ?? (versions[stage][round] as number);
      const made = rule(from, gradients[stage] as number, rateOf(round), stage);
      const [weight, read] = typeof made === 'number' ? [made, made] : made;
      versions[stage].push(weight);
      readable[stage].push(read);
    }
  }
  return { losses, weights: [versions[0].at(-1) as number, versions[1].at(-1) as number] };
}

/** SGD with momentum 0.5, by stage. */
function momentumRule(): ByHand['rule'] {
  const velocity = [0, 0];
  return (weight, gradient, rate, stage) => {
    velocity[stage] = 0.5 * (velocity[stage] as number) + gradient;
    return weight - rate * (velocity[stage] as number);
  };
}

const half: TrainingSpec['optimizer'] = { ...sgd, momentum: 0.5 };

async function scalarRun(options: Partial<DelayedRun> & { readonly staleness: readonly [number, number] }): Promise<{
  losses: readonly number[];
  weights: readonly [number, number];
}> {
  const { staleness, ...rest } = options;
  const engine = createReferenceEngine();
  const { losses, state } = await trainDelayed(engine, {
    subject: scalarSubject(half),
    config: { firstRound: 0, endRound: roundCount, batchSize: 1, learningRate: rateOf, gradientScale: () => 1 },
    batch: (round) => ({
      inputs: [tensor('float32', [1, 1], [sample(round).x])],
      labels: tensor('float32', [1, 1], [sample(round).y]),
    }),
    microBatchSize: 1,
    stages: [
      { layers: [0, 1], staleness: staleness[0] },
      { layers: [1, 2], staleness: staleness[1] },
    ],
    ...rest,
  });
  const valueBytes = engine.valueBytes();
  await engine.close();
  assert.equal(valueBytes, 0, 'every value is released');
  const weight = (name: string): number => Number(state.parameter.get(name)?.data[0]);
  return { losses, weights: [weight('a.weight'), weight('b.weight')] };
}

function near(found: readonly number[], expected: readonly number[], what: string): void {
  assert.equal(found.length, expected.length, what);
  for (const [index, value] of expected.entries())
    assert.ok(Math.abs((found[index] as number) - value) < 2e-6, `${what}: ${found} and ${expected}`);
}

for (const staleness of [
  [0, 0],
  [2, 2],
  [1, 0],
  [3, 1],
] as const) {
  test(`staleness ${staleness}: each stage's gradient is that of the version so many rounds before`, async () => {
    const found = await scalarRun({ staleness });
    const expected = byHand({ staleness, rule: momentumRule() });
    near(found.losses, expected.losses, 'losses');
    near(found.weights, expected.weights, 'weights');
  });
}

test('an update of the first of two stages is applied to the mean of two versions every 2 K updates', async () => {
  for (const every of [1, 2]) {
    const found = await scalarRun({ staleness: [1, 1], aggregateEvery: every });
    const base: ByHand['base'] = (versions, update, stage) => {
      const [now, before] = [versions[update] as number, versions[update - 1] as number];
      return stage === 0 && update > 0 && update % (2 * every) === 0 ? (before + now) / 2 : now;
    };
    const expected = byHand({ staleness: [1, 1], base, rule: momentumRule() });
    near(found.losses, expected.losses, `losses, K = ${every}`);
    near(found.weights, expected.weights, `weights, K = ${every}`);
  }
});

test('predict: passes read the weights s smoothed updates further on', async () => {
  const staleness = [3, 1] as const;
  const velocity = [0, 0];
  const rule: ByHand['rule'] = (weight, gradient, rate, stage) => {
    const v = 0.5 * (velocity[stage] as number) + gradient;
    velocity[stage] = v;
    const updated = weight - rate * v;
    return [updated, updated - rate * (staleness[stage] as number) * v];
  };
  const found = await scalarRun({ staleness, correction: 'predict' });
  const expected = byHand({ staleness, rule });
  near(found.losses, expected.losses, 'losses');
  near(found.weights, expected.weights, 'true weights');
});

test('nesterov: the look-ahead form of the paper; passes read s updates beyond the look-ahead point', async () => {
  const staleness = [3, 1] as const;
  // w, its look-ahead d, and their sum y, which is stored: d = γ (w_t − w_{t−1}), w_{t+1} = y_t − η κ g, with a
  // learning rate that stays; w_{t+1} − w_t is the last update without the look-ahead.
  const w = [0.5, -0.75];
  const gammas = [1 - 0.5 / 2, 1 - 0.5 / Math.SQRT2];
  const rule: ByHand['rule'] = (weight, gradient, _rate, stage) => {
    const gamma = gammas[stage] as number;
    const share = (1 - gamma) / (1 - 0.5);
    const next = weight - 0.125 * share * gradient;
    const update = next - (w[stage] as number);
    w[stage] = next;
    const stored = next + gamma * update;
    return [stored, stored + (staleness[stage] as number) * update];
  };
  const config = {
    firstRound: 0,
    endRound: roundCount,
    batchSize: 1,
    learningRate: () => 0.125,
    gradientScale: () => 1,
  };
  const found = await scalarRun({ staleness, correction: 'nesterov', config });
  const expected = byHand({ staleness, rule });
  near(found.losses, expected.losses, 'losses');
  near(found.weights, expected.weights, 'weights');
});

test('where nothing is stale, a correction changes nothing', async () => {
  const plain = await scalarRun({ staleness: [0, 0] });
  for (const correction of ['predict', 'nesterov'] as const)
    assert.deepEqual(await scalarRun({ staleness: [0, 0], correction }), plain);
});

test('a run that goes on from a version begins with it as the first one', async () => {
  const half1 = await scalarRun({ staleness: [0, 0] });
  assert.equal(half1.losses.length, roundCount);
  const run = scalarSubject(half);
  const middle = 4;
  const config = { batchSize: 1, learningRate: rateOf, gradientScale: () => 1 };
  const common = {
    batch: (round: number) => ({
      inputs: [tensor('float32', [1, 1], [sample(round).x])],
      labels: tensor('float32', [1, 1], [sample(round).y]),
    }),
    microBatchSize: 1,
    stages: [{ layers: [0, 2] as const, staleness: 0 }],
  };
  const engine = createReferenceEngine();
  const first = await trainDelayed(engine, {
    ...common,
    subject: run,
    config: { ...config, firstRound: 0, endRound: middle },
  });
  const second = await trainDelayed(engine, {
    ...common,
    subject: { ...run, state: first.state },
    config: { ...config, firstRound: middle, endRound: roundCount },
  });
  await engine.close();
  assert.deepEqual([...first.losses, ...second.losses], half1.losses);
});

const adam: TrainingSpec['optimizer'] = { ...sgd, kind: 'adam' };
for (const [what, net, training] of [
  ['dropout and clipping', dropoutNet(), { clipNorm: 0.5, optimizer: adam }],
  ['batch normalization', batchNormNet(), {}],
] as const) {
  test(`without staleness it is training on one device: ${what}`, async () => {
    const subject = subjectOf(net, 8, training);
    const { clipNorm } = subject.training;
    const config = {
      firstRound: 0,
      endRound: 4,
      batchSize: 8,
      learningRate: (round: number) => 0.1 / (round + 1),
      gradientScale: (squaredNorm: number) => (clipNorm === null ? 1 : clipScale(squaredNorm, clipNorm)),
    };
    const run: MemoryRun = { subject, batch: batches(net, subject), machine: config };
    const single = await runAlone({ ...run, microBatchSize: 4 });
    const engine = createReferenceEngine();
    const stages: DelayedStage[] = [{ layers: [0, subject.sequence.layers.length], staleness: 0 }];
    const delayed = await trainDelayed(engine, { ...run, config, microBatchSize: 4, stages });
    await engine.close();
    const { loss, weight, worst } = difference({ ...single, ...delayed }, single);
    assert.ok(loss < 1e-6, `losses differ by ${loss}`);
    assert.ok(weight < 1e-6, `${worst} differs by ${weight}`);
  });
}
