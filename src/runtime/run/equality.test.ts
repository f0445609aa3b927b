// The promise of synchronous training: however a plan cuts the net and shares out the samples, every loss and the final
// weights are those of one device, within the rounding of sums in another order. All of it runs for real, but for the
// network and the processes.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import type { PlanLayout } from '../../cluster/cluster.ts';
import { createOnnxRuntimeNodeEngine } from '../../engine/node/onnxruntime-node.ts';
import type { Graph } from '../../graph/graph.ts';
import { forwardOnlyCount } from '../../graph/layers.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { program } from '../../schedule/generate.ts';
import { type HandPlan, handPlan, randomHandPlan } from '../../testing/hand-plans.ts';
import { difference, type MemoryRun, type Outcome, runAlone, runCluster } from '../../testing/memory-cluster.ts';
import {
  batches,
  batchNormNet,
  dropoutNet,
  regressionNet,
  residualNet,
  sequenceFirstNet,
  sgd,
  subjectOf,
  type TestNet,
  transformerNet,
} from '../../testing/training-subjects.ts';
import { clipScale } from '../../training/clipping.ts';
import type { RunEvent } from '../protocol/events.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';

const timeout = 300_000;

function runOf(net: TestNet, plan: HandPlan, training: Partial<TrainingSpec> = {}): MemoryRun {
  const batchSize = (plan.shares[0] as number[]).reduce((sum, share) => sum + share, 0) * plan.microBatchCount;
  const subject = subjectOf(net, batchSize, training);
  const { clipNorm } = subject.training;
  return {
    subject,
    batch: batches(net, subject),
    plan: handPlan(plan, subject.sequence.layers.length),
    machine: {
      learningRate: (round) => (training.optimizer?.kind?.startsWith('adam') ? 0.01 : 0.1) / (round + 1),
      gradientScale: (squaredNorm) => (clipNorm === null ? 1 : clipScale(squaredNorm, clipNorm)),
    },
  };
}

/** Runs of one device, by everything that they depend on. */
const alone = new Map<string, Promise<Outcome>>();

async function compareWithOne(run: MemoryRun, tolerance: number, what: string, engine = 'reference'): Promise<void> {
  const { microBatchSize = 0 } = run.plan ?? {};
  const key = JSON.stringify([run.subject.modelName, run.subject.training, microBatchSize, engine]);
  if (!alone.has(key)) alone.set(key, runAlone({ ...run, microBatchSize }));
  const single = await (alone.get(key) as Promise<Outcome>);
  const distributed = await runCluster(run);
  const { loss, weight, worst } = difference(distributed, single);
  assert.equal(distributed.losses.length, 3);
  assert.ok(loss <= tolerance, `${what}: losses differ by ${loss}: ${distributed.losses} and ${single.losses}`);
  assert.ok(weight <= tolerance, `${what}: ${worst} differs by ${weight}`);
  assert.deepEqual(distributed.correctCounts, single.correctCounts, what);
}

const adam: TrainingSpec['optimizer'] = { ...sgd, kind: 'adam' };
const adamw: TrainingSpec['optimizer'] = { ...sgd, kind: 'adamw', weightDecay: 0.05 };

/**
 * Shares of the shapes that must hold: 1, 2 and 3 stages, straight and hybrid, unequal, with a device that only keeps
 * its weights in step.
 */
const hybrids: readonly (Pick<HandPlan, 'schedule' | 'shares' | 'microBatchCount'> & Partial<TrainingSpec>)[] = [
  { schedule: '1f1b', shares: [[3, 1]], microBatchCount: 2 },
  { schedule: 'gpipe', shares: [[5, 2, 1]], microBatchCount: 1, optimizer: adam },
  { schedule: '1f1b', shares: [[4], [4]], microBatchCount: 4, clipNorm: 0.5 },
  {
    schedule: 'gpipe',
    shares: [[2, 2], [4]],
    microBatchCount: 2,
    optimizer: { ...sgd, nesterov: true, weightDecay: 0.01 },
  },
  { schedule: '1f1b', shares: [[4], [1, 3]], microBatchCount: 4 },
  {
    schedule: '1f1b',
    shares: [
      [1, 3],
      [2, 2],
    ],
    microBatchCount: 2,
    clipNorm: 0.5,
  },
  { schedule: 'gpipe', shares: [[4], [3, 1], [4]], microBatchCount: 4, optimizer: adamw },
  { schedule: 'zb-h1', shares: [[4], [4], [4]], microBatchCount: 4, optimizer: adam },
  {
    schedule: 'zb-h1',
    shares: [
      [3, 1],
      [2, 2],
      [1, 3],
    ],
    microBatchCount: 4,
    clipNorm: 0.5,
  },
  { schedule: 'zb-h1', shares: [[4], [4, 0]], microBatchCount: 1 },
  { schedule: '1f1b-overlap', shares: [[3, 1]], microBatchCount: 2, clipNorm: 0.5 },
  { schedule: '1f1b-overlap', shares: [[5, 2, 1]], microBatchCount: 1, optimizer: adam },
  { schedule: '1f1b-overlap', shares: [[1, 3, 0], [4]], microBatchCount: 4 },
  {
    schedule: 'zb-h1-overlap',
    shares: [
      [3, 1],
      [2, 2],
      [1, 3],
    ],
    microBatchCount: 4,
    optimizer: adamw,
  },
  {
    schedule: '1f1b',
    shares: [
      [4, 0],
      [0, 4],
    ],
    microBatchCount: 1,
  },
];

const cuts: Readonly<Record<string, readonly [two: number, three: readonly [number, number]]>> = {
  residual: [2, [2, 5]], // inside the first block; inside both
  transformer: [2, [1, 6]], // between key and query; behind the tokens and inside the perceptron
  dropout: [1, [1, 2]],
  'sequence-first': [1, [1, 2]],
  regression: [3, [1, 3]],
};

for (const net of [residualNet(), transformerNet(), dropoutNet(), sequenceFirstNet(), regressionNet()]) {
  const { name } = net.graph;
  test(`${name}: pipelines, shares, schedules and optimizers give what one device gives`, { timeout }, async () => {
    const [two, three] = cuts[name] as (typeof cuts)[string];
    for (const { schedule, shares, microBatchCount, ...training } of hybrids) {
      const own = shares.length === 1 ? [] : shares.length === 2 ? [two] : three;
      const run = runOf(net, { schedule, shares, microBatchCount, cuts: own }, training);
      await compareWithOne(run, 1e-5, `${schedule} ${JSON.stringify(shares)} × ${microBatchCount}`);
    }
  });
}

// By the signs of momenta: a net with weights that nothing depends on, such as a bias of attention's keys, whose
// gradients are rounding alone, would not compare.
test('Lion: replicated stages give what one device gives', { timeout }, async () => {
  const plan: HandPlan = { schedule: '1f1b', cuts: [2], shares: [[3, 1], [4]], microBatchCount: 2 };
  for (const clipNorm of [null, 0.5]) {
    const run = runOf(residualNet(), plan, { clipNorm, optimizer: { ...sgd, kind: 'lion', weightDecay: 0.1 } });
    await compareWithOne(run, 1e-5, `clipped to ${clipNorm}`);
  }
});

test('a straight pipeline gives the very same bits, batch normalization included', { timeout }, async () => {
  for (const net of [residualNet(), transformerNet(), batchNormNet()]) {
    for (const schedule of ['gpipe', '1f1b', 'zb-h1'] as const) {
      const plan: HandPlan = { schedule, cuts: [1, 3], shares: [[4], [4], [4]], microBatchCount: 4 };
      await compareWithOne(runOf(net, plan), 0, `${net.graph.name} ${schedule}`);
    }
  }
});

test('frozen layers: as on one device, frozen statistics bit for bit, neither weights nor gradients sent', {
  timeout,
}, async () => {
  const cases: readonly [TestNet, readonly string[], Partial<HandPlan>, number][] = [
    [
      batchNormNet(),
      ['stem.weight', 'stem.bn.weight', 'stem.bn.bias', 'a.weight', 'a.bn.weight', 'a.bn.bias'],
      { cuts: [1, 2], shares: [[1, 3], [4], [4]] },
      2,
    ],
    [
      residualNet(),
      ['stem.weight', 'stem.norm.weight', 'stem.norm.bias'],
      { cuts: [1, 3], shares: [[3, 1], [2, 2], [4]] },
      1,
    ],
    [regressionNet(), ['b.weight', 'b.bias'], { cuts: [1, 2], shares: [[4], [1, 3], [4]] }, 0],
  ];
  for (const [net, frozen, plan, count] of cases) {
    const run = runOf(net, { schedule: '1f1b', microBatchCount: 4, cuts: [], shares: [], ...plan }, { frozen });
    assert.equal(forwardOnlyCount(run.subject.sequence), count, net.graph.name);
    const layout = { ...(run.plan as PlanLayout), forwardOnlyLayers: count };
    const times: string[] = [];
    const observe = (event: RunEvent): void => {
      if (event.kind !== 'trace') return;
      const { instructions = [] } = program(layout).devices.find(({ device }) => device === event.device) ?? {};
      for (const { instruction } of event.times) times.push(`${event.device} ${instructions[instruction]?.kind}`);
    };
    await compareWithOne({ ...run, plan: layout, observe }, 1e-5, net.graph.name);
    assert.equal(times.includes('a forward'), true);
    assert.equal(times.includes('a backward'), count === 0, net.graph.name);
    const { state } = await runCluster({ ...run, plan: layout });
    for (const name of frozen) assert.equal(state.parameter.has(name), false, `${name} stays the model's`);
    for (const [name, value] of state.buffer) {
      const isFrozen = frozen.includes(name.replace(/running_.*/, 'weight'));
      assert.equal(Buffer.compare(bytes(value), bytes(run.subject.state.buffer.get(name))) === 0, isFrozen, name);
    }
  }
});

function bytes(value: Tensor | undefined): Uint8Array {
  const { buffer, byteOffset = 0, byteLength } = value?.data ?? new Uint8Array();
  return new Uint8Array(buffer as ArrayBuffer, byteOffset, byteLength);
}

test('a model exported for one batch size trains in micro-batches of that size, straight through', {
  timeout,
}, async () => {
  const net = dropoutNet();
  const fix = (shape: readonly (number | string)[]): readonly number[] =>
    shape.map((dimension) => (dimension === 'N' ? 4 : dimension)) as number[];
  const graph: Graph = {
    ...net.graph,
    inputs: net.graph.inputs.map((input) => ({ ...input, shape: fix(input.shape) })),
    outputs: net.graph.outputs.map((output) => ({ ...output, shape: fix(output.shape) })),
    fixedBatch: 4,
  };
  const plan: HandPlan = { schedule: '1f1b', cuts: [1, 3], shares: [[4], [4], [4]], microBatchCount: 2 };
  const [open, fixed] = [await runCluster(runOf(net, plan)), await runCluster(runOf({ ...net, graph }, plan))];
  assert.deepEqual(difference(fixed, open), { loss: 0, weight: 0, worst: 'head.bias' });
});

test('replicated batch normalization trains on its own shares and averages its statistics by samples', {
  timeout,
}, async () => {
  const net = batchNormNet();
  const plan: HandPlan = { schedule: '1f1b', cuts: [], shares: [[3, 1, 0]], microBatchCount: 1 };
  const run = { ...runOf(net, plan), machine: { endRound: 1, learningRate: () => 0 } };
  const outcome = await runCluster(run);
  // The running mean that each replica would have alone: 0.1 · the mean of its samples' stem convolution, from zeros.
  const single = async (first: number, end: number): Promise<Float32Array> => {
    const part = subjectOf(net, end - first);
    const { inputs, labels } = run.batch(0);
    const slice = (value: (typeof inputs)[number]) => {
      const size = value.data.length / 4;
      return {
        ...value,
        shape: [end - first, ...value.shape.slice(1)],
        data: value.data.slice(first * size, end * size),
      };
    };
    const batch = () => ({ inputs: inputs.map(slice), labels: slice(labels) });
    const { state } = await runAlone({ subject: part, batch, microBatchSize: end - first, machine: run.machine });
    return state.buffer.get('stem.bn.running_mean')?.data as Float32Array;
  };
  const [large, small] = [await single(0, 3), await single(3, 4)];
  const found = outcome.state.buffer.get('stem.bn.running_mean')?.data as Float32Array;
  found.forEach((value, index) => {
    const expected = 0.75 * (large[index] as number) + 0.25 * (small[index] as number);
    assert.ok(Math.abs(value - expected) < 1e-6, `${value} and ${expected}`);
  });
  assert.ok(found.some((value) => Math.abs(value) > 1e-3));
});

test('50 random plans give what one device gives', { timeout }, async () => {
  const net = transformerNet();
  const layerCount = subjectOf(net, 8).sequence.layers.length;
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 0, max: 2 ** 31 - 1 }), async (seed) => {
      const plan = randomHandPlan(seed, layerCount, 8);
      await compareWithOne(runOf(net, plan), 1e-5, JSON.stringify(plan));
    }),
    { seed: 20261121, numRuns: 50, endOnFailure: true },
  );
});

test('ONNX Runtime: a hybrid pipeline gives what one device gives', { timeout }, async () => {
  for (const net of [residualNet(), sequenceFirstNet(), batchNormNet()]) {
    const shares =
      net.graph.name === 'batch-norm'
        ? [[4], [4]]
        : [
            [1, 3],
            [2, 2],
          ];
    for (const schedule of ['1f1b', 'zb-h1', '1f1b-overlap', 'zb-h1-overlap']) {
      const run = runOf(net, { schedule, cuts: [2], shares, microBatchCount: 2 }, { seed: 8 });
      await compareWithOne(
        { ...run, createEngine: () => createOnnxRuntimeNodeEngine() },
        1e-5,
        `${net.graph.name} ${schedule}`,
      );
    }
  }
});

/** Plans that share, cut and schedule the same micro-batches of 4 samples in every way. */
const strictPlans: readonly HandPlan[] = [
  { schedule: '1f1b', cuts: [], shares: [[3, 1]], microBatchCount: 2 },
  { schedule: 'gpipe', cuts: [], shares: [[0, 1, 1, 2]], microBatchCount: 2 },
  { schedule: '1f1b', cuts: [2], shares: [[4], [4]], microBatchCount: 2 },
  {
    schedule: '1f1b',
    cuts: [1],
    shares: [
      [1, 3],
      [2, 2],
    ],
    microBatchCount: 2,
  },
  { schedule: 'zb-h1', cuts: [2], shares: [[3, 1], [4]], microBatchCount: 2 },
  { schedule: '1f1b-overlap', cuts: [2], shares: [[4], [2, 1, 1]], microBatchCount: 2 },
  {
    schedule: 'zb-h1-overlap',
    cuts: [1],
    shares: [
      [2, 2],
      [1, 3],
    ],
    microBatchCount: 2,
  },
];

const strictEngines = { reference: undefined, 'ONNX Runtime': () => createOnnxRuntimeNodeEngine() };

for (const [engine, createEngine] of Object.entries(strictEngines)) {
  test(`strict, on ${engine}: the very same bits whatever the plan, in grains of one and of two samples`, {
    timeout,
  }, async () => {
    for (const net of [residualNet(), transformerNet()]) {
      for (const grain of [1, 2]) {
        const fitting = strictPlans.filter(({ shares }) => shares.flat().every((share) => share % grain === 0));
        for (const plan of fitting) {
          const run = runOf(net, plan, { grain, optimizer: adam });
          await compareWithOne(
            { ...run, ...(createEngine && { createEngine }) },
            0,
            `${net.graph.name} ${JSON.stringify(plan)}`,
            engine,
          );
        }
      }
    }
  });
}

test('strict: without it, shares that differ give other bits', { timeout }, async () => {
  const [plan] = strictPlans;
  await assert.rejects(compareWithOne(runOf(residualNet(), plan as HandPlan), 0, 'not strict'), /not strict/);
});

test('compressed links: the loss stays near that of one device, and goes the same way', { timeout }, async () => {
  const cases: readonly [TestNet, Partial<HandPlan>, NonNullable<PlanLayout['compression']>, number][] = [
    [residualNet(), { cuts: [2], shares: [[4], [4]] }, { activation: 'float16', gradient: 'float16' }, 1e-3],
    [
      transformerNet(),
      {
        cuts: [2],
        shares: [
          [1, 3],
          [2, 2],
        ],
      },
      { activation: 'float16', gradient: 'float16', allReduce: 'float16' },
      1e-3,
    ],
    [residualNet(), { cuts: [2], shares: [[3, 1], [4]] }, { allReduce: 'int8' }, 0.02],
    [residualNet(), { cuts: [2], shares: [[4], [3, 1]] }, { activation: 'uint8' }, 0.02],
  ];
  for (const [net, plan, compression, tolerance] of cases) {
    const run = runOf(net, { schedule: '1f1b', microBatchCount: 2, cuts: [], shares: [], ...plan });
    const single = await runAlone({ ...run, microBatchSize: 4 });
    const distributed = await runCluster({ ...run, plan: { ...(run.plan as PlanLayout), compression } });
    const { loss, weight } = difference(distributed, single);
    assert.ok(loss > 0 && loss <= tolerance, `${net.graph.name}: losses differ by ${loss}`);
    assert.ok(weight > 0 && weight <= 10 * tolerance, `${net.graph.name}: weights differ by ${weight}`);
  }
});
