// The promise of asynchronous training: whatever the plan, every loss and the final weights are those of one device
// that computes the gradient of round t at version max(first, t − s) of the weights (delayed-training.ts). All of it
// runs for real, but for the network and the processes.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PlanLayout } from '../../cluster/cluster.ts';
import { createOnnxRuntimeNodeEngine } from '../../engine/node/onnxruntime-node.ts';
import { forwardOnlyCount } from '../../graph/layers.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import { program } from '../../schedule/generate.ts';
import type { DeviceProgram, Instruction } from '../../schedule/program.ts';
import { type StalenessWish, withStaleness } from '../../schedule/staleness.ts';
import { offsetsOf } from '../../schedule/stream-tick.ts';
import { delayedOracle } from '../../testing/delayed-oracle.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { difference, type MemoryRun, type Outcome, runCluster, startCluster } from '../../testing/memory-cluster.ts';
import {
  batches,
  batchNormNet,
  dropoutNet,
  residualNet,
  sgd,
  subjectOf,
  type TestNet,
  transformerNet,
} from '../../testing/training-subjects.ts';
import { clipScale } from '../../training/clipping.ts';
import type { MachineConfig } from '../coordinator/machine-types.ts';
import { sliceSamples } from '../device/samples.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';
import { StreamParts } from './delayed-streams.ts';

const timeout = 300_000;
const endRound = 8;

/** A plan, how it is trained, and when it pauses. */
interface Case extends Partial<TrainingSpec> {
  readonly shares: readonly (readonly number[])[];
  readonly microBatchCount: number;
  readonly wish?: StalenessWish;
  readonly machine?: Partial<MachineConfig>;
  readonly net?: TestNet;
  /** Samples of every third round, where it has fewer than the others. */
  readonly restSize?: number;
  readonly compression?: PlanLayout['compression'];
  /** The largest relative difference. Default 1e-5. */
  readonly tolerance?: number;
}

/** Forward gradients: each stage is as many rounds ahead as stages come after it. */
const tangents: NonNullable<TrainingSpec['forwardGradient']> = {
  ...{ tangentCount: 2, kind: 'rademacher', scales: {}, roundsPerEpoch: 4 },
};

const cutsOf: Readonly<Record<number, readonly number[]>> = { 1: [], 2: [2], 3: [2, 5], 4: [1, 2, 5] };

function runOf(given: Case): MemoryRun {
  const { shares, microBatchCount, wish = {}, machine, net = residualNet(), compression, ...more } = given;
  const { tolerance: _, restSize, ...training } = more;
  const batchSize = (shares[0] as number[]).reduce((sum, share) => sum + share, 0) * microBatchCount;
  const subject = subjectOf(net, batchSize, training);
  const cuts = net.graph.name === 'dropout' ? [1, 2].slice(0, shares.length - 1) : (cutsOf[shares.length] as number[]);
  const { forwardGradient } = training;
  const schedule = forwardGradient === undefined ? 'async' : 'forward-gradient';
  const plan = {
    ...handPlan({ schedule, cuts, shares, microBatchCount }, subject.sequence.layers.length),
    ...(forwardGradient === undefined ? {} : { tangentCount: forwardGradient.tangentCount }),
  };
  const { clipNorm } = subject.training;
  const batch = batches(net, subject);
  const countAt = (round: number): number => (restSize !== undefined && round % 3 === 2 ? restSize : batchSize);
  return {
    subject,
    batch: (round) => {
      const { inputs, labels } = batch(round);
      const cut = (value: Tensor): Tensor => sliceSamples(value, 0, 0, countAt(round));
      return restSize === undefined ? { inputs, labels } : { inputs: inputs.map(cut), labels: cut(labels) };
    },
    plan: withStaleness(
      {
        ...plan,
        forwardOnlyLayers: forwardOnlyCount(subject.sequence),
        ...(compression === undefined ? {} : { compression }),
      },
      wish,
    ),
    machine: {
      endRound,
      batchAt: (round) => ({ sampleCount: countAt(round), factor: batchSize / countAt(round) }),
      learningRate: (round) => (training.optimizer?.kind?.startsWith('adam') ? 0.01 : 0.1) / (round + 1),
      gradientScale: (squaredNorm) => (clipNorm === null ? 1 : clipScale(squaredNorm, clipNorm)),
      ...machine,
    },
  };
}

async function compareWithOracle(given: Case): Promise<void> {
  const run = runOf(given);
  const parts = new StreamParts();
  const observe: MemoryRun['observe'] = (event, cluster) => parts.observe(event, cluster.losses.length);
  const found = await runCluster({ ...run, observe });
  const { aggregate: aggregateEvery = 0, stalenessCorrection: correction = 'none', tolerance = 1e-5 } = given;
  const oracle = await delayedOracle(run, parts.parts, endRound, { aggregateEvery, correction });
  const { loss, weight, worst } = difference(found, { ...found, ...oracle });
  assert.equal(found.losses.length, endRound);
  assert.ok(loss <= tolerance, `losses differ by ${loss}: ${found.losses} and ${oracle.losses}`);
  assert.ok(weight <= tolerance, `${worst} differs by ${weight}`);
}

const adam: TrainingSpec['optimizer'] = { ...sgd, kind: 'adam' };
const adamw: TrainingSpec['optimizer'] = { ...sgd, kind: 'adamw', weightDecay: 0.05 };

const float16: PlanLayout['compression'] = { activation: 'float16', gradient: 'float16', allReduce: 'float16' };

const cases: readonly (readonly [title: string, given: Case])[] = [
  ['two stages', { shares: [[4], [4]], microBatchCount: 1 }],
  ['two stages, two micro-batches, Adam', { shares: [[4], [4]], microBatchCount: 2, optimizer: adam }],
  ['three stages', { shares: [[4], [4], [4]], microBatchCount: 1 }],
  ['three stages, two micro-batches', { shares: [[4], [4], [4]], microBatchCount: 2 }],
  ['three stages, eight micro-batches, AdamW', { shares: [[2], [2], [2]], microBatchCount: 8, optimizer: adamw }],
  ['four stages', { shares: [[4], [4], [4], [4]], microBatchCount: 1, optimizer: adam }],
  ['four stages, two micro-batches, clipping', { shares: [[4], [4], [4], [4]], microBatchCount: 2, clipNorm: 0.5 }],
  ['three stages, no vertical sync', { shares: [[4], [4], [4]], microBatchCount: 1, wish: { verticalSync: false } }],
  ['more staleness than needed', { shares: [[4], [4]], microBatchCount: 1, wish: { staleness: 3 } }],
  [
    'replicated stages',
    {
      shares: [
        [3, 1],
        [2, 2],
      ],
      microBatchCount: 1,
    },
  ],
  ['replicated stages, Adam', { shares: [[3, 1], [4], [2, 2]], microBatchCount: 2, optimizer: adam }],
  ['replicated stages, eight micro-batches, clipping', { shares: [[2], [1, 1]], microBatchCount: 8, clipNorm: 0.5 }],
  [
    'a device without samples',
    {
      shares: [
        [4, 0],
        [1, 3],
      ],
      microBatchCount: 2,
    },
  ],
  ['a pause every third round', { shares: [[4], [4], [4]], microBatchCount: 1, machine: { checkpointEvery: 3 } }],
  ['aggregation', { shares: [[4], [4], [4]], microBatchCount: 1, aggregate: 1 }],
  ['aggregation 2, replicated', { shares: [[3, 1], [4], [4]], microBatchCount: 1, aggregate: 2, optimizer: adam }],
  ['aggregation of more versions than lag', { shares: [[2], [2], [2]], microBatchCount: 8, aggregate: 1 }],
  [
    'predicted weights',
    { shares: [[4], [4], [4]], microBatchCount: 1, stalenessCorrection: 'predict', optimizer: adam },
  ],
  [
    'predicted weights, Lion',
    {
      ...{ shares: [[3, 1], [4]], microBatchCount: 1, stalenessCorrection: 'predict' },
      optimizer: { ...sgd, kind: 'lion', weightDecay: 0.1 },
    },
  ],
  [
    'predicted weights and aggregation',
    { shares: [[4], [4], [4]], microBatchCount: 1, stalenessCorrection: 'predict', aggregate: 1 },
  ],
  ["Nesterov's method", { shares: [[4], [4], [4]], microBatchCount: 1, stalenessCorrection: 'nesterov' }],
  [
    "Nesterov's method, Adam, four stages",
    {
      ...{ shares: [[4], [4], [4], [4]], microBatchCount: 1, stalenessCorrection: 'nesterov' },
      ...{ optimizer: adam, rampRounds: 4 },
    },
  ],
  [
    "Nesterov's method, AdamW, replicated, three rounds late",
    {
      ...{ shares: [[3, 1], [4], [2, 2]], microBatchCount: 1, wish: { staleness: 3 } },
      ...{ stalenessCorrection: 'nesterov', optimizer: adamw, rampRounds: 6 },
    },
  ],
  ['smaller rounds', { shares: [[4], [4], [4]], microBatchCount: 2, restSize: 3 }],
  [
    'smaller rounds, replicated, clipping',
    {
      shares: [
        [3, 1],
        [2, 2],
      ],
      microBatchCount: 4,
      restSize: 9,
      clipNorm: 0.5,
    },
  ],
  [
    'forward gradients, smaller rounds',
    { shares: [[4], [3, 1], [4]], microBatchCount: 2, restSize: 3, forwardGradient: tangents },
  ],
  [
    'forward gradients, smaller rounds without samples for some devices of the last stage',
    { shares: [[4], [2, 1, 1]], microBatchCount: 2, restSize: 5, forwardGradient: tangents, clipNorm: 0.5 },
  ],
  ['batch normalization', { net: batchNormNet(), shares: [[4], [4]], microBatchCount: 2 }],
  ['compression', { shares: [[3, 1], [4]], microBatchCount: 2, compression: float16, tolerance: 2e-2 }],
  ['recomputation', { net: transformerNet(), shares: [[4], [4]], microBatchCount: 2, recompute: 0 }],
  [
    'frozen first layers',
    { shares: [[4], [4], [4]], microBatchCount: 1, frozen: ['stem.weight', 'stem.norm.weight', 'stem.norm.bias'] },
  ],
  ['dropout', { net: dropoutNet(), shares: [[4], [4], [4]], microBatchCount: 2 }],
];

for (const [title, given] of cases)
  test(`as the delayed oracle: ${title}`, { timeout }, () => compareWithOracle(given));

test('traces: when a device computed the passes of a tick, one after the other, since the stream began', {
  timeout,
}, async () => {
  const run = runOf({ net: dropoutNet(), shares: [[4], [4], [4]], microBatchCount: 1 });
  const entries = new Map(program(run.plan as PlanLayout).devices.map((entry) => [entry.device, entry]));
  const found = new Map<string, { readonly pass: string; readonly startMs: number; readonly endMs: number }[]>();
  await runCluster({
    ...run,
    observe: (event) => {
      if (event.kind !== 'trace') return;
      const { instructions, device } = entries.get(event.device) as DeviceProgram;
      const [, most] = offsetsOf(entries.get(event.device) as DeviceProgram);
      for (const { instruction, startMs, endMs } of event.times) {
        const { kind, round = 0 } = instructions[instruction] as Instruction;
        const pass = `${kind} ${event.round - most + round}`;
        if (kind === 'forward' || kind === 'backward')
          found.set(device, [...(found.get(device) ?? []), { pass, startMs, endMs }]);
      }
    },
  });
  for (const [device, passes] of found) {
    const inOrder = passes.toSorted((a, b) => a.startMs - b.startMs || a.endMs - b.endMs);
    for (const [index, { startMs, endMs }] of inOrder.entries())
      assert.ok(endMs >= startMs && startMs >= (inOrder[index - 1]?.endMs ?? 0) - 1e-6, `${device}, pass ${index}`);
  }
  const passesOf = (device: string): readonly string[] => found.get(device)?.map(({ pass }) => pass) ?? [];
  const steady = ['forward 3', 'backward 1', 'forward 4', 'backward 2'];
  assert.deepEqual(passesOf('a'), ['forward 0', 'forward 1', 'forward 2', 'backward 0', ...steady]);
  assert.deepEqual(passesOf('c'), ['forward 0', 'backward 0', 'forward 1', 'backward 1', 'forward 2', 'backward 2']);
});

/** Plans of three or fewer stages that share and cut the same micro-batches of four samples in every way. */
const strictShares: readonly Case['shares'][] = [
  [[4], [4]],
  [
    [3, 1],
    [2, 2],
  ],
  [[4], [1, 0, 3], [4]],
];

async function outcomesOf(
  plans: readonly Case['shares'][],
  given: Omit<Case, 'shares'>,
  more: Pick<MemoryRun, 'createEngine'>,
): Promise<readonly Outcome[]> {
  const found: Outcome[] = [];
  for (const shares of plans) found.push(await runCluster({ ...runOf({ ...given, shares }), ...more }));
  return found;
}

test('strict: the very same bits whatever the plan, where rounds are as late', { timeout }, async () => {
  const common = { microBatchCount: 2, wish: { staleness: 2 }, restSize: 5, optimizer: adam, machine: { endRound: 5 } };
  const subjects: readonly Pick<MemoryRun, 'createEngine'>[] = [
    {},
    { createEngine: () => createOnnxRuntimeNodeEngine() },
  ];
  for (const [index, engine] of subjects.entries()) {
    const net = index === 0 ? dropoutNet() : residualNet();
    const strict = { ...common, net, grain: 1, stalenessCorrection: 'nesterov' } as const;
    const [first, ...others] = await outcomesOf(strictShares, strict, engine);
    for (const other of others) {
      const { loss, weight, worst } = difference(other, first as Outcome);
      assert.deepEqual([loss, weight], [0, 0], worst);
    }
  }
  const [one, two] = await outcomesOf(strictShares, { ...common, net: dropoutNet() }, {});
  assert.ok(difference(one as Outcome, two as Outcome).weight > 0, 'without grains, shares that differ show');
});

/** A device is lost when the data of a round are asked for. */
interface Loss {
  readonly device: string;
  readonly atRound: number;
}

/** Runs with devices that are lost; what it comes to, and the streams that it had. */
async function runWithLosses(given: Case, losses: readonly Loss[]): Promise<void> {
  const run = runOf(given);
  const parts = new StreamParts();
  const due = [...losses];
  const cluster = await startCluster({
    ...run,
    observe: (event, { losses: recorded }) => parts.observe(event, recorded.length),
    batch: (round) => {
      const lost = due.findIndex(({ atRound }) => atRound <= round);
      for (const { device } of lost < 0 ? [] : due.splice(lost, 1)) queueMicrotask(() => cluster.kill(device));
      return run.batch(round);
    },
  });
  const found = await cluster.outcome();
  const oracle = await delayedOracle(run, parts.parts, endRound);
  const { loss, weight, worst } = difference(found, { ...found, ...oracle });
  const text = JSON.stringify(parts.parts.map(({ first, recorded, staleness }) => [first, recorded, staleness]));
  assert.ok(loss <= 1e-5, `losses differ by ${loss}: ${found.losses} and ${oracle.losses}, streams ${text}`);
  assert.ok(weight <= 1e-5, `${worst} differs by ${weight}, streams ${text}`);
}

test('20 seeded losses: the run is the oracle restarted where its events say', { timeout }, async () => {
  for (let seed = 0; seed < 20; seed++) {
    const random = createRandom(seed, 0x10e5);
    const shares = [
      [[4], [4], [4]],
      [[3, 1], [4]],
      [[4], [2, 2], [4]],
    ][random.integer(3)] as number[][];
    const names = shares.flat().map((_, index) => String.fromCharCode(97 + index));
    const device = names[random.integer(names.length)] as string;
    const losses = [{ device, atRound: 1 + random.integer(endRound - 2) }];
    const microBatchCount = 1 + random.integer(2);
    const clip = random.uniform() < 0.3 ? { clipNorm: 0.5 } : {};
    const given = { shares, microBatchCount, ...clip, machine: { checkpointEvery: 1 + random.integer(6) } };
    await runWithLosses(given, losses).catch((error: unknown) => {
      throw new Error(`seed ${seed}: ${error instanceof Error ? error.message : error}`, { cause: error });
    });
  }
});

test('6 seeded losses by forward gradients: what round t computes does not depend on who is lost', {
  timeout,
}, async () => {
  for (let seed = 0; seed < 6; seed++) {
    const random = createRandom(seed, 0x46474432);
    const shares = [[[4], [4], [4]], [[3, 1], [4]], [[2, 1, 1]]][random.integer(3)] as number[][];
    const names = shares.flat().map((_, index) => String.fromCharCode(97 + index));
    const device = names[random.integer(names.length)] as string;
    const losses = [{ device, atRound: 1 + random.integer(endRound - 2) }];
    const given = {
      ...{ shares, microBatchCount: 1 + random.integer(2), forwardGradient: tangents },
      machine: { checkpointEvery: 1 + random.integer(6), learningRate: () => 1e-3 },
      ...(seed % 2 === 0 ? { wish: { staleness: 0 } } : {}),
    };
    await runWithLosses(given, losses).catch((error: unknown) => {
      throw new Error(`seed ${seed}: ${error instanceof Error ? error.message : error}`, { cause: error });
    });
  }
});
