// How a run ends early: with one sentence that says what went wrong, on every device, with a checkpoint of the last
// committed round.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import type { Engine, Value } from '../../engine/engine.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { RunError } from '../../errors.ts';
import { type Tensor, tensor } from '../../graph/tensor.ts';
import { expectNothingLost, hybridRun, measuredRun, runFailure } from '../../testing/losing-run.ts';
import { difference, type MemoryRun, runAlone, startCluster } from '../../testing/memory-cluster.ts';
import { defaultFrameLimits } from '../../transport/frame.ts';
import { defaultLinkLimits } from '../../transport/wire-link.ts';
import { NotFinite } from '../protocol/not-finite.ts';

const timeout = 60_000;

test('a loss that is not finite ends the run, on all devices, before anything of the round is committed', {
  timeout,
}, async () => {
  const run = hybridRun();
  const cluster = await startCluster({
    ...run,
    machine: { endRound: 4, checkpointEvery: 1 },
    batch: (round) => {
      const { inputs, labels } = run.batch(round);
      return round < 2
        ? { inputs, labels }
        : { inputs, labels: { ...labels, data: new Float32Array(labels.data.length).fill(Number.NaN) } };
    },
  });
  const { message, ends } = await runFailure(cluster);
  const sentence =
    'the loss or a gradient of round 2 is not a finite number: ' +
    'lower the learning rate (--lr) or clip gradients (--clip-norm)';
  assert.equal(message, `Training ended: ${sentence}; the last checkpoint is after round 2; continue with --resume.`);
  assert.deepEqual([...cluster.checkpoints.keys()], [1, 2]);
  assert.equal(cluster.losses.length, 2);
  for (const end of ends.values()) assert.deepEqual(end, { clean: true, reason: sentence });
  for (const state of cluster.checkpoints.values()) {
    for (const { data } of state.parameter.values()) assert.ok((data as Float32Array).every(Number.isFinite));
  }
});

test('a learning rate that lets the weights overflow ends the same way', { timeout }, async () => {
  const run = hybridRun();
  const diverging = { endRound: 20, learningRate: () => 1e20 };
  const cluster = await startCluster({ ...run, machine: diverging });
  const { message } = await runFailure(cluster);
  const found =
    /^Training ended: the loss or a gradient of round (\d+) is not a finite number: lower the learning rate/;
  const round = Number(found.exec(message)?.[1]);
  const error = await cluster.outcome().catch((reason: unknown) => reason);
  assert.ok(error instanceof NotFinite && error.round === round);
  // The state before that round, which nobody had asked for, becomes a checkpoint.
  assert.ok(round > 0);
  assert.deepEqual([...cluster.checkpoints.keys()], [round]);
  assert.equal(cluster.losses.length, round);
  const alone = await runAlone({ ...run, machine: { ...diverging, endRound: round }, microBatchSize: 4 });
  const state = defined(cluster.checkpoints.get(round), 'the checkpoint');
  const { weight, worst } = difference({ ...alone, state }, alone);
  assert.ok(weight < 1e-5, `${worst} differs by ${weight}`);
});

test('a stop while training commits started rounds, writes a checkpoint and ends all; before, it ends at once', {
  timeout,
}, async () => {
  const run = hybridRun();
  const training = await startCluster({
    ...run,
    machine: { endRound: 1000 },
    observe: (event, { coordinator }) => {
      if (event.kind === 'trace' && event.round === 2) coordinator.stop();
    },
  });
  const { end, losses, checkpoints } = await training.outcome();
  assert.equal(end.stopped, true);
  assert.equal(losses.length, end.round);
  assert.ok(end.round >= 3 && end.round <= 5, String(end.round));
  assert.deepEqual([...checkpoints.keys()], [end.round]);
  for (const worker of training.workers.values())
    assert.deepEqual(await worker.end, { clean: true, reason: 'the run was stopped' });

  const early = await startCluster({
    ...run,
    observe: (event, { coordinator }) => event.kind === 'phase' && event.phase === 'connecting' && coordinator.stop(),
  });
  assert.deepEqual(await early.coordinator.end, { round: 0, stopped: true });
  await early.workersEnd();
});

test('an error of the data, the plan, the checkpoint or an observer ends the run with that error', {
  timeout,
}, async () => {
  const broken = (what: string): never => {
    throw new RunError(`${what} is broken`);
  };
  const run = hybridRun();
  const runs: readonly (readonly [string, MemoryRun])[] = [
    ['the data', { ...run, batch: (round) => (round === 1 ? broken('the data') : run.batch(round)) }],
    ['the plan', { ...measuredRun(), choosePlan: () => broken('the plan') }],
    ['the disk', { ...run, onCheckpoint: async () => broken('the disk') }],
    ['the observer', { ...run, observe: (event) => event.kind === 'trace' && broken('the observer') }],
    [
      'the phase',
      { ...run, observe: (event) => event.kind === 'phase' && event.phase === 'deploying' && broken('the phase') },
    ],
  ];
  for (const [what, failing] of runs) {
    const cluster = await startCluster(failing);
    const { message, ends } = await runFailure(cluster);
    assert.match(message, new RegExp(`${what} is broken`));
    assert.equal(ends.size, 3);
  }
});

test('a message that no link takes ends the run with a sentence', { timeout }, async () => {
  const limits = { ...defaultLinkLimits, frame: { ...defaultFrameLimits, frameBytes: 600 } };
  const { message } = await runFailure(await startCluster({ ...hybridRun(), links: { limits } }));
  assert.match(
    message,
    /^Training ended: [abc] left while preparing \(a model frame has \d+ bytes, more than the 600 a link takes\); /,
  );
  assert.ok(message.endsWith('; nothing was saved yet.'), message);
  // Nor do weights that contradict their shape pass unnoticed.
  const run = hybridRun();
  const broken = { ...tensor('float32', [7], new Array(7).fill(0)), data: new Float32Array(3) };
  const state = {
    ...run.subject.state,
    parameter: new Map([...run.subject.state.parameter, ['c.bias', broken] as const]),
  };
  const end = await runFailure(await startCluster({ ...run, subject: { ...run.subject, state } }));
  assert.match(
    end.message,
    /^Training ended: [abc] left while deploying \(.*: state frame has a float32 tensor of shape \[7\] with 3 elements/,
  );
});

function brokenEngine(): Engine {
  const engine = createReferenceEngine();
  return Object.assign(Object.create(engine) as typeof engine, {
    name: engine.name,
    compile: () => Promise.reject(new RunError('out of memory')),
    settled: () => engine.settled(),
    computed: () => engine.computed(),
    valueBytes: () => engine.valueBytes(),
    busyMs: () => engine.busyMs(),
    upload: (value: Tensor) => engine.upload(value),
    download: (value: Value) => engine.download(value),
    take: (value: Value) => engine.take(value),
    release: (value: Value) => engine.release(value),
    trim: () => engine.trim(),
    close: () => engine.close(),
  });
}

test('a worker whose engine fails says why, and the others continue; if two fail alike, the run ends with that', {
  timeout,
}, async () => {
  const one = await startCluster({
    ...hybridRun(),
    createEngine: (device) => (device === 'b' ? brokenEngine() : createReferenceEngine()),
  });
  await expectNothingLost(one);
  assert.deepEqual((await one.workersEnd()).get('b'), { clean: false, reason: 'out of memory' });
  const two = await startCluster({
    ...hybridRun(),
    createEngine: (device) => (device === 'a' ? createReferenceEngine() : brokenEngine()),
  });
  const { message } = await runFailure(two);
  assert.match(message, /^Training ended: [bc] cannot go on: out of memory; nothing was saved yet\.$/);
});
