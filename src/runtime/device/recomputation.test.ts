import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import { differentiate } from '../../autodiff/differentiate.ts';
import { processMiB } from '../../cluster/memory.ts';
import { createOnnxRuntimeNodeEngine } from '../../engine/node/onnxruntime-node.ts';
import { runMemory } from '../../engine/onnxruntime-memory.ts';
import { parameterBytes } from '../../graph/layers.ts';
import { extractStage } from '../../graph/stage.ts';
import { elementCount } from '../../graph/tensor.ts';
import { program } from '../../schedule/generate.ts';
import type { BucketReduction } from '../../schedule/program.ts';
import { difference, runAlone, runCluster } from '../../testing/memory-cluster.ts';
import {
  batches,
  regressionNet,
  residualNet,
  sgd,
  subjectOf,
  transformerNet,
} from '../../testing/training-subjects.ts';
import { bufferBytes } from './memory-need.ts';
import { forwardsInFlight, recomputeWithin, savedBudgetBytes } from './recomputation.ts';
import { designStage } from './stage-design.ts';
import { type StageForm, wholeForm } from './stage-form.ts';

const plan = {
  planner: 'hand',
  schedule: '1f1b',
  batchSize: 8,
  microBatchSize: 2,
  microBatchCount: 4,
  stages: [
    { layers: [0, 2] as const, devices: ['a'], samples: [2], inFlight: 3 },
    { layers: [2, 4] as const, devices: ['b'], samples: [2], inFlight: 1 },
  ],
};

test('the budget of a micro-batch is a share of what is given, or of what the device has left', () => {
  const subject = subjectOf(regressionNet(), 8, { optimizer: { ...sgd, momentum: 0.9 } });
  const { sequence, training } = subject;
  const [a, b] = program(plan).devices;
  const budget = (
    recompute: 'auto' | number | undefined,
    memoryBytes: number | undefined,
    device = a,
  ): number | undefined =>
    savedBudgetBytes({
      sequence,
      program: defined(device, 'the device'),
      training: { ...training, recompute },
      memoryBytes,
    });
  assert.deepEqual(
    [a, b].map((device) => forwardsInFlight(defined(device, 'the device'))),
    [3, 1],
  );
  assert.equal(budget(undefined, 1000), undefined);
  assert.equal(budget('auto', undefined), undefined);
  assert.equal(budget(3000, undefined), 1000);
  assert.equal(budget(3000, undefined, b), 3000);
  // two layers of 5·7 + 7 and 7·7 + 7 weights, each three times: itself, its gradient, its momentum
  const stage = sequence.layers
    .slice(...defined(a, 'the device').layers)
    .map((layer) => ({ weightBytes: parameterBytes(sequence, layer) }));
  const buffers = stage.reduce((sum, layer) => sum + bufferBytes(layer, training), 0);
  assert.equal(budget('auto', processMiB * 2 ** 20 + 3 * 4 * 98 + buffers + 300), 100);
  assert.equal(budget('auto', 2 ** 20), 0);
});

test('nothing is computed again while all fits; with less, what is kept fits; with nothing, the least is kept', () => {
  const { sequence } = subjectOf(residualNet(), 4);
  const stage = extractStage(sequence, 0, sequence.layers.length, 4);
  const kept = (budgetBytes: number): readonly [bytes: number, again: number] => {
    let again = 0;
    const graphs = differentiate(stage, {
      inputs: [],
      recompute: (pass) => {
        const chosen = recomputeWithin(pass, budgetBytes);
        again = chosen.size;
        return chosen;
      },
    });
    return [[...graphs.saved, ...graphs.savedInputs].reduce((sum, { bytes }) => sum + bytes, 0), again];
  };
  const [all, none] = kept(Number.POSITIVE_INFINITY);
  assert.equal(none, 0);
  assert.deepEqual(kept(all), [all, 0]);
  const [half, some] = kept(all / 2);
  assert.ok(half <= all / 2 && half > 0 && some > 0, `${half} of ${all}`);
  const [least] = kept(0);
  assert.ok(least > 0 && least < half, `${least}`);
});

for (const [name, net] of [
  ['residual', residualNet()],
  ['transformer', transformerNet()],
] as const) {
  for (const engine of ['reference', 'onnxruntime']) {
    test(`${name} on ${engine}: activations computed again give the losses and weights of kept ones`, async () => {
      const subject = (recompute: number | undefined) =>
        subjectOf(net, 8, { optimizer: { ...sgd, momentum: 0.9 }, recompute });
      const create = engine === 'reference' ? {} : { createEngine: () => createOnnxRuntimeNodeEngine() };
      const run = (recompute: number | undefined) =>
        ({
          subject: subject(recompute),
          batch: batches(net, subject(recompute)),
          microBatchSize: 4,
          machine: { endRound: 4 },
          ...create,
        }) as const;
      const keeping = await runAlone(run(undefined));
      const again = await runAlone(run(0));
      assert.equal(again.losses.length, 4);
      const { loss, weight, worst } = difference(keeping, again);
      assert.ok(loss < 1e-6 && weight < 1e-5, `${loss} ${weight} ${worst}`);
    });
  }
}

test('stages on several workers that compute activations again agree with one device that keeps them', async () => {
  const net = transformerNet();
  const options = { batch: batches(net, subjectOf(net, 8)), microBatchSize: 2, machine: { endRound: 3 } };
  const count = subjectOf(net, 8).sequence.layers.length;
  const stages = [
    { layers: [0, 4] as const, devices: ['a'], samples: [2], inFlight: 3 },
    { layers: [4, count] as const, devices: ['b'], samples: [2], inFlight: 1 },
  ];
  const keeping = await runAlone({ subject: subjectOf(net, 8), ...options });
  const again = await runCluster({
    subject: subjectOf(net, 8, { recompute: 0 }),
    ...options,
    plan: { ...plan, stages },
  });
  const { loss, weight, worst } = difference(keeping, again);
  assert.ok(loss < 1e-6 && weight < 1e-5, `${loss} ${weight} ${worst}`);
});

test('what passes need besides what is kept fits, spread over the micro-batches in flight, in all forms', () => {
  const { sequence, training, label } = subjectOf(residualNet(), 64);
  const whole = [0, sequence.layers.length] as const;
  const pieces: BucketReduction = {
    buckets: [[4, whole[1]] as const, [0, 4] as const],
    pass: { kind: 'backward', microBatch: 3 } as const,
  };
  for (const form of [wholeForm, { ...wholeForm, passes: 'split' }, { ...wholeForm, pieces }] satisfies StageForm[]) {
    /** Bytes that a micro-batch keeps, and the most that a backward pass needs besides. */
    const memory = (
      budgetBytes: number | undefined,
      count: number | undefined,
    ): { keptBytes: number; runBytes: number } => {
      const stage = { sequence, layers: whole, sampleCount: 64, training, label, microBatchSize: 64, form };
      const { graphs, pass } = designStage(
        { blockSize: undefined },
        { ...stage, savedBudgetBytes: budgetBytes, budgetCount: count },
      );
      const kept = new Set([...defined(pass, 'a pass').saved, ...defined(pass, 'a pass').savedInputs]);
      const { forward, loss: _, update: __, squaredNorm: ___, zeros: ____, ...backward } = graphs;
      const all = [...defined(forward, 'the forward pass').inputs, ...defined(forward, 'the forward pass').outputs];
      const bytes = new Map(
        all.filter(({ name }) => kept.has(name)).map(({ name, shape }) => [name, 4 * elementCount(shape as number[])]),
      );
      const needs = Object.values(backward).map((graph) => runMemory(defined(graph, 'a graph')).runBytes);
      return { keptBytes: [...bytes.values()].reduce((sum, each) => sum + each, 0), runBytes: Math.max(...needs) };
    };
    const full = memory(undefined, undefined);
    const fullBytes = full.keptBytes + full.runBytes;
    for (const part of [1, 0.97, 0.95]) {
      const { keptBytes, runBytes } = memory(part * fullBytes, 1);
      assert.ok(keptBytes + runBytes <= part * fullBytes, `${keptBytes} + ${runBytes} of ${part} · ${fullBytes}`);
      assert.equal(keptBytes < full.keptBytes, part < 1);
    }
    // What is spread over two leaves each more; what was given as bytes to keep is all kept.
    const budgetBytes = full.keptBytes + full.runBytes / 2;
    assert.equal(memory(budgetBytes, 2).keptBytes, full.keptBytes);
    assert.ok(memory(budgetBytes, 1).keptBytes < full.keptBytes);
    assert.equal(memory(full.keptBytes, undefined).keptBytes, full.keptBytes);
  }
});

test('what a plan says that a device keeps is its budget, unless its own memory leaves less', () => {
  const subject = subjectOf(regressionNet(), 8);
  const { sequence, training } = subject;
  const stages = plan.stages.map((stage, index) => (index === 0 ? { ...stage, savedBytes: [70] } : stage));
  const [a, b] = program({ ...plan, stages }).devices.map(
    (device) => (recompute: 'auto' | number | undefined) =>
      savedBudgetBytes({ sequence, program: device, training: { ...training, recompute }, memoryBytes: undefined }),
  );
  assert.deepEqual([a?.(undefined), a?.('auto'), a?.(300), a?.(3000)], [140, 140, 100, 140]);
  assert.equal(b?.(undefined), undefined);
});

test('workers of a plan in which one keeps nothing it can compute again agree with one device', async () => {
  const net = transformerNet();
  const options = { batch: batches(net, subjectOf(net, 8)), microBatchSize: 2, machine: { endRound: 3 } };
  const count = subjectOf(net, 8).sequence.layers.length;
  const stages = [
    { layers: [0, 4] as const, devices: ['a'], samples: [2], inFlight: 3, savedBytes: [0] },
    { layers: [4, count] as const, devices: ['b'], samples: [2], inFlight: 1 },
  ];
  const keeping = await runAlone({ subject: subjectOf(net, 8), ...options });
  const again = await runCluster({ subject: subjectOf(net, 8), ...options, plan: { ...plan, stages } });
  const { loss, weight, worst } = difference(keeping, again);
  assert.ok(loss < 1e-6 && weight < 1e-5, `${loss} ${weight} ${worst}`);
});
