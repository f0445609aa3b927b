// A run that only infers, over real workers on memory links: outputs are those of the model on one device, each request
// answered once and in order, whatever the plan and whoever leaves.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { outputError } from '../../cluster/activation-bits.ts';
import type { Compression } from '../../cluster/compression.ts';
import { evaluateGraph } from '../../graph/evaluate.ts';
import { inferenceMode } from '../../graph/onnx/modes.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { type HandPlan, handPlan } from '../../testing/hand-plans.ts';
import { inferenceRun } from '../../testing/inference-run.ts';
import { type MemoryCluster, type MemoryRun, startCluster } from '../../testing/memory-cluster.ts';
import {
  batches,
  batchNormNet,
  regressionNet,
  residualNet,
  subjectOf,
  type TestNet,
  transformerNet,
  wideNet,
} from '../../testing/training-subjects.ts';
import { sliceSamples } from '../device/samples.ts';
import { InferenceRounds } from './inference-rounds.ts';

interface InferenceRun {
  readonly run: MemoryRun;
  readonly rounds: InferenceRounds;
  /** A batch of the plan's size. */
  inputs(round: number, sampleCount?: number): readonly Tensor[];
  expected(inputs: readonly Tensor[]): Tensor;
}

function runOf(net: TestNet, hand: HandPlan, window = 4, compression?: Compression): InferenceRun {
  const graph = inferenceMode(net.graph);
  const { batchSize } = handPlan(hand, 1);
  const subject = subjectOf({ ...net, graph }, batchSize, { isInference: true });
  const layout = handPlan(hand, subject.sequence.layers.length);
  const plan = compression === undefined ? layout : { ...layout, compression };
  const every = compression?.exactEvery;
  const rounds = new InferenceRounds(every === undefined ? undefined : { every, sampleCount: 2 });
  const batch = batches(net, subject);
  return {
    rounds,
    run: { ...inferenceRun(subject, rounds, window), plan },
    inputs: (round, sampleCount = batchSize) =>
      batch(round).inputs.map((value) => sliceSamples(value, 0, 0, sampleCount)),
    expected: (inputs) => {
      const named = graph.inputs.map(({ name }, index) => [name, inputs[index] as Tensor] as const);
      return [...evaluateGraph(graph, new Map(named)).values()][0] as Tensor;
    },
  };
}

function assertClose(found: Tensor | undefined, wanted: Tensor, what: string): void {
  assert.deepEqual(found?.shape, wanted.shape, what);
  const scale = Math.max(...Array.from(wanted.data as Float32Array, Math.abs));
  for (const [index, value] of (wanted.data as Float32Array).entries())
    assert.ok(Math.abs(Number(found?.data[index]) - value) <= 1e-5 * scale, `${what}, element ${index}`);
}

const cases: readonly (readonly [string, TestNet, HandPlan])[] = [
  ['two stages', batchNormNet(), { schedule: 'inference', cuts: [2], shares: [[4], [4]], microBatchCount: 1 }],
  [
    'a replicated stage between two others, in several micro-batches',
    residualNet(),
    { schedule: 'inference', cuts: [1, 3], shares: [[4], [3, 1], [4]], microBatchCount: 2 },
  ],
  [
    'unequal shares at both ends, one of them empty',
    transformerNet(),
    {
      schedule: 'inference',
      cuts: [3],
      shares: [
        [1, 2, 0],
        [2, 1],
      ],
      microBatchCount: 3,
    },
  ],
];

for (const [name, net, hand] of cases)
  test(`outputs are those of the whole model: ${name}`, async () => {
    const { run, rounds, inputs, expected } = runOf(net, hand);
    const { batchSize } = run.plan ?? assert.fail('a plan');
    const cluster = await startCluster(run);
    cluster.coordinator.end.catch((error: Error) => rounds.fail(error));
    const sizes = [batchSize, batchSize, 1, batchSize - 1, batchSize];
    const answered: number[] = [];
    const answers = sizes.map(async (size, round) => {
      const [output] = await rounds.submit(inputs(round, size));
      answered.push(round);
      return output;
    });
    rounds.end();
    for (const [round, size] of sizes.entries())
      assertClose(await answers[round], expected(inputs(round, size)), `round ${round}`);
    assert.deepEqual(answered, [0, 1, 2, 3, 4]);
    assert.deepEqual(await cluster.coordinator.end, { round: 5, stopped: false });
    await cluster.workersEnd();
  });

test('in 4 bits, each third round is repeated as it is, and tells how far outputs were off', async () => {
  const hand: HandPlan = { schedule: 'inference', cuts: [1], shares: [[4], [2, 2]], microBatchCount: 2 };
  const compression = { activation: 'uint4', exactEvery: 3 } as const;
  const net = wideNet();
  const { run, rounds, inputs, expected } = runOf(net, hand, 4, compression);
  const cluster = await startCluster(run);
  cluster.coordinator.end.catch((error: Error) => rounds.fail(error));
  const requests = Array.from({ length: 7 }, (_, round) => inputs(round));
  const answers = await Promise.all(requests.map((request) => rounds.submit(request)));
  rounds.end();
  // Rounds 1, 4, 7 and 10 are repeated ones.
  assert.deepEqual(await cluster.coordinator.end, { round: 11, stopped: false });
  const errors = answers.map(([found], round) => {
    const first = ({ data }: Tensor): Float32Array => (data as Float32Array).slice(0, 2 * net.classCount);
    return outputError(first(expected(requests[round] ?? [])), first(found ?? assert.fail('an output')), 2);
  });
  const repeated = [0, 2, 4, 6].map((round) => errors[round]?.relative ?? 0);
  assert.ok(repeated.every((relative) => relative > 1e-3 && relative < 0.3));
  const mean = repeated.reduce((sum, relative) => sum + relative, 0) / 4;
  const { relative = 0, sampleCount } = rounds.compared ?? {};
  assert.ok(Math.abs(relative - mean) < 1e-4 * mean, `${relative} instead of ${mean}`);
  assert.equal(sampleCount, 8);
  await cluster.workersEnd();
});

test('10,000 inputs come out in order, each once, while two devices are killed and one returns', async () => {
  const hand: HandPlan = { schedule: 'inference', cuts: [1, 2], shares: [[16], [8, 8], [16]], microBatchCount: 1 };
  const { run, rounds, inputs, expected } = runOf(regressionNet(), hand);
  const order: number[] = [];
  const happenings = new Map<number, () => unknown>([
    [100, () => cluster.kill('b')],
    [150, () => cluster.addWorker('b')],
    [400, () => cluster.kill('d')],
  ]);
  let comeBack = (): void => {};
  const isBack = new Promise<void>((resolve) => {
    comeBack = resolve;
  });
  const cluster: MemoryCluster = await startCluster({
    ...run,
    onResults(round, outputs) {
      order.push(round);
      happenings.get(round)?.();
      rounds.results(round, outputs);
    },
    observe(event) {
      if (event.kind === 'recovered' && event.cause.startsWith('all devices of the given plan')) comeBack();
    },
  });
  cluster.coordinator.end.catch((error: Error) => rounds.fail(error));
  const requests = Array.from({ length: 7 }, (_, round) => inputs(round));
  const wanted = requests.map(expected);
  let next = 0;
  const client = async (): Promise<void> => {
    for (let round = next++; round < 625; round = next++) {
      if (round >= 300) await isBack;
      const [output] = await rounds.submit(requests[round % 7] as readonly Tensor[]);
      assertClose(output, wanted[round % 7] as Tensor, `round ${round}`);
    }
  };
  // While the device that came back cools down, only timers that keep no process alive are left.
  const alive = setInterval(() => {}, 1000);
  await Promise.all(Array.from({ length: 6 }, client)).finally(() => clearInterval(alive));
  rounds.end();
  assert.deepEqual(await cluster.coordinator.end, { round: 625, stopped: false });
  assert.deepEqual(
    order,
    Array.from({ length: 625 }, (_, round) => round),
  );
  const causes = cluster.events.flatMap((event) => (event.kind === 'recovered' ? [event.cause.slice(0, 11)] : []));
  assert.deepEqual(causes, ['b left in r', 'all devices', 'd left in r']);
  await cluster.workersEnd();
});

test('when nobody is left, what has not been answered fails with the reason', async () => {
  const hand: HandPlan = { schedule: 'inference', cuts: [1], shares: [[4], [4]], microBatchCount: 1 };
  const { run, rounds, inputs } = runOf(wideNet(), hand);
  const cluster = await startCluster(run);
  const reason = /^The run ended: [ab] left .*; what had not been answered is lost\.$/;
  cluster.coordinator.end.catch((error: Error) => rounds.fail(error));
  await rounds.submit(inputs(0));
  cluster.kill('a');
  cluster.kill('b');
  await assert.rejects(rounds.submit(inputs(1)), { message: reason });
  await assert.rejects(cluster.coordinator.end, { message: reason });
});
