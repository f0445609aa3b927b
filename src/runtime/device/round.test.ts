// A round that is given up in its middle leaves stage and mail alone: both belong to the round that comes in its place.
// What a round has sent is free for what comes.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Failure } from '../../failure.ts';
import { wrap } from '../../graph/tensor.ts';
import type { DeviceProgram } from '../../schedule/program.ts';
import type { Frame } from '../../transport/link.ts';
import { takeMemory } from '../../transport/tensor-memory.ts';
import type { MailKey } from './mailbox.ts';
import type { MicroBatchId } from './pieces.ts';
import { runRound } from './round.ts';
import { SegmentedVector } from './segmented-vector.ts';
import type { StagePort } from './stage.ts';

const program: DeviceProgram = {
  device: 'a',
  stage: 0,
  layers: [0, 1],
  samples: [0, 1],
  instructions: [{ kind: 'all-reduce', group: ['a', 'b'] }, { kind: 'update' }],
};

const piece: Frame = {
  kind: 'all-reduce',
  epoch: 1,
  round: 0,
  microBatch: 0,
  tensors: [wrap('float32', [1], Float32Array.of(1))],
};

/** A round that waits for the first piece of its AllReduce, and what it has done by then. */
function start() {
  const did: string[] = [];
  const arrivals: ((frame: Frame) => void)[] = [];
  const failure = new Failure();
  const stage = {
    takeBusyMs: () => 0,
    computed: () => undefined,
    beginRound: () => did.push('begin'),
    takeGradients: async () => {
      did.push('take');
      return new SegmentedVector([Float32Array.of(1, 2)]);
    },
    putGradients: () => {
      did.push('put');
    },
    finishRound: async () => {
      did.push('finish');
      return { lossSum: 0, correctCount: 0, squaredNorm: 0, finite: true };
    },
  } as unknown as StagePort;
  const running = runRound(program, stage, 0, {
    clock: { now: () => 0, after: () => () => {} },
    send: async () => {
      did.push('send');
    },
    receive: (key: MailKey) =>
      new Promise((resolve) => {
        did.push(`receive ${key.microBatch}`);
        arrivals.push(resolve);
      }),
    failure,
    updates: { due: async () => undefined },
  });
  return { did, arrivals, failure, running };
}

const atRest = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

test('a round that goes on takes both pieces and puts the sums in place', async () => {
  const { did, arrivals, running } = start();
  await atRest();
  arrivals[0]?.(piece);
  await atRest();
  arrivals[1]?.(piece);
  await (await running).outcome;
  assert.deepEqual(did, ['begin', 'take', 'send', 'receive 0', 'send', 'receive 1', 'put', 'finish']);
});

test('a round that was given up does nothing more, whatever still arrives', async () => {
  const { did, arrivals, failure, running } = start();
  await atRest();
  const before = [...did];
  assert.deepEqual(before, ['begin', 'take', 'send', 'receive 0']);
  failure.fail(new Error('another layout'));
  await assert.rejects(running, /another layout/);
  arrivals[0]?.(piece);
  await atRest();
  assert.deepEqual(did, before);
});

test('what was sent is used again for what is received, once the last of its receivers has it', async () => {
  const outputs = [{ name: 'y', type: 'float32', shape: ['N', 1501], batchAxis: 0, differentiable: true }];
  const result = wrap('float32', [2, 1501], new Float32Array(2 * 1501).fill(3));
  const stage = {
    inputs: [],
    outputs,
    takeBusyMs: () => 0,
    computed: () => undefined,
    beginRound: () => {},
    forward: async () => [result],
    finishRound: async () => ({ lossSum: 0, correctCount: 0, squaredNorm: 0, finite: true }),
  } as unknown as StagePort;
  const sendsTo: DeviceProgram['instructions'] = ['b', 'c'].map((to, index) => {
    return { kind: 'send', payload: 'activation', microBatch: 0, to, samples: [index, index + 1] };
  });
  const instructions: DeviceProgram['instructions'] = [
    { kind: 'receive', payload: 'input', microBatch: 0, from: null, samples: [0, 2] },
    { kind: 'forward', microBatch: 0 },
    ...sendsTo,
  ];
  const sent = new Map<string, () => void>();
  const running = runRound({ device: 'a', stage: 0, layers: [0, 1], samples: [0, 2], instructions }, stage, 0, {
    clock: { now: () => 0, after: () => () => {} },
    send: (to) => new Promise((resolve) => sent.set(to, resolve)),
    receive: async () => ({ kind: 'input', epoch: 1, round: 0, microBatch: 0, tensors: [] }),
    failure: new Failure(),
    updates: { due: async () => undefined },
  });
  const isFree = (): boolean => takeMemory(result.data.byteLength).buffer === result.data.buffer;
  while (sent.size < 2) await atRest();
  assert.equal(isFree(), false, 'nobody has it');
  sent.get('c')?.();
  await atRest();
  assert.equal(isFree(), false, 'one of two has it');
  sent.get('b')?.();
  await (await running).outcome;
  assert.equal(isFree(), true);
  assert.equal(isFree(), false, 'it is given once');
});

test('no more than sixteen passes of a sequence are queued before the engine has computed them', async () => {
  const stepCount = 40;
  const computing: (() => void)[] = [];
  const queued: number[] = [];
  const stage = {
    ...{ inputs: [], outputs: [], isLast: true, takeBusyMs: () => 0, computed: () => undefined },
    label: { name: 'label', type: 'float32', shape: ['N'], batchAxis: 0, differentiable: false },
    beginRound: () => {},
    forward: ({ index }: MicroBatchId) =>
      new Promise((resolve) => {
        queued.push(index);
        computing.push(() => resolve([wrap('float32', [1], Float32Array.of(1))]));
      }),
    tangents: { count: 1, estimate: () => {} },
    finishRound: async () => ({ lossSum: 0, correctCount: 0, squaredNorm: 0, finite: true }),
    update: () => {},
  } as unknown as StagePort;
  const steps = Array.from({ length: stepCount }, (_, microBatch) => microBatch);
  const instructions = steps.flatMap((microBatch): DeviceProgram['instructions'] => [
    { kind: 'receive', payload: 'input', microBatch, samples: [0, 1], from: null },
    { kind: 'receive', payload: 'label', microBatch, samples: [0, 1], from: null },
    { kind: 'tangent', microBatch },
  ]);
  const running = runRound({ ...program, instructions: [...instructions, { kind: 'update' }] }, stage, 0, {
    clock: { now: () => 0, after: () => () => {} },
    send: async () => {},
    receive: async ({ kind }) => ({ ...piece, kind, tensors: kind === 'label' ? (piece.tensors ?? []) : [] }),
    failure: new Failure(),
    updates: { planned: undefined, due: async () => undefined },
  });
  const seen: number[] = [];
  while (queued.length < stepCount || computing.length > 0) {
    await atRest();
    seen.push(computing.length);
    for (const compute of computing.splice(0)) compute();
  }
  await (await running).outcome;
  assert.deepEqual(queued, steps);
  assert.equal(Math.max(...seen), 16);
});
