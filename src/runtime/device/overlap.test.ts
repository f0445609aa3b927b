// AllReduce in buckets is hidden behind the backward pass: two members run a real round on a virtual clock, their
// engines and links taking known times.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PlanLayout } from '../../cluster/cluster.ts';
import { Failure } from '../../failure.ts';
import { program } from '../../schedule/generate.ts';
import { createVirtualClock, type VirtualClock } from '../../testing/virtual-clock.ts';
import type { Frame } from '../../transport/link.ts';
import { Mailbox } from './mailbox.ts';
import { runRound } from './round.ts';
import { SegmentedVector } from './segmented-vector.ts';
import type { StagePort } from './stage.ts';

/** Milliseconds of a whole backward pass; a link carries an element in one. */
const backwardMs = 400;
const elementCount = 320;
const bucketCount = 4;

/** A stage whose backward takes its time on an engine that does one thing after the other. */
function slowStage(clock: VirtualClock): { readonly stage: StagePort; readonly sums: Float32Array[] } {
  let freeMs = 0;
  const sums: Float32Array[] = [];
  const busyFor = (ms: number): Promise<void> => {
    freeMs = Math.max(freeMs, clock.now()) + ms;
    return new Promise((resolve) => clock.after(freeMs - clock.now(), resolve));
  };
  const stage = {
    inputs: [],
    outputs: [],
    isLast: true,
    label: { name: 'label', type: 'int64', shape: ['N'], batchAxis: 0, differentiable: false },
    takeBusyMs: () => 0,
    computed: () => undefined,
    beginRound: () => {},
    forward: async () => [],
    backward: async (_microBatch: number, _gradients: unknown, bucket?: number) => {
      await busyFor(bucket === undefined ? backwardMs : backwardMs / bucketCount);
      return [];
    },
    takeGradients: async (bucket?: number) => {
      await busyFor(0);
      return new SegmentedVector([
        new Float32Array(bucket === undefined ? elementCount : elementCount / bucketCount).fill(1),
      ]);
    },
    putGradients: ({ segments }: SegmentedVector) => {
      sums.push(...segments);
    },
    finishRound: async () => ({ lossSum: 0, correctCount: 0, squaredNorm: 0, finite: true }),
  };
  return { stage: stage as unknown as StagePort, sums };
}

/**
 * When both members have updated, the bytes that each has sent, the sums, and what the AllReduce behind all passes
 * cost.
 */
interface Ended {
  readonly endMs: number;
  readonly sentBytes: readonly number[];
  readonly sums: readonly Float32Array[];
  readonly reducingMs: readonly (number | undefined)[];
}

/** One stage on two members. */
function planOf(schedule: string): PlanLayout {
  return {
    planner: 'test',
    schedule,
    batchSize: 2,
    microBatchSize: 2,
    microBatchCount: 1,
    stages: [{ layers: [0, bucketCount], devices: ['a', 'b'], samples: [1, 1], inFlight: 1 }],
  };
}

async function roundOf(schedule: string): Promise<Ended> {
  const clock = createVirtualClock();
  const devices = program(planOf(schedule), { feed: false }).devices.map((device) => ({
    ...device,
    instructions: device.instructions.filter(({ kind }) => kind !== 'forward'),
  }));
  const mail = new Map(devices.map(({ device }) => [device, new Mailbox(1e6)]));
  const freeMs = new Map(devices.map(({ device }) => [device, 0]));
  const sentBytes = devices.map(() => 0);
  const sums: Float32Array[] = [];
  const reducingMs: (number | undefined)[] = [];
  const rounds = devices.map(async (device, index) => {
    const member = slowStage(clock);
    const { outcome } = await runRound(device, member.stage, 0, {
      clock,
      failure: new Failure(),
      receive: (key) => (mail.get(device.device) as Mailbox).take(key),
      send: async (to, frame) => {
        // The link: one frame after the other.
        const count = frame.tensors?.[0]?.data.length ?? 0;
        sentBytes[index] = (sentBytes[index] ?? 0) + 4 * count;
        const copy = {
          ...frame,
          epoch: 0,
          tensors: frame.tensors?.map((tensor) => ({ ...tensor, data: tensor.data.slice() })),
        } as Frame;
        const atMs = Math.max(clock.now(), freeMs.get(device.device) ?? 0) + count;
        freeMs.set(device.device, atMs);
        await new Promise<void>((resolve) => clock.after(atMs - clock.now(), resolve));
        (mail.get(to) as Mailbox).put(
          { kind: frame.kind, round: 0, microBatch: frame.microBatch, from: device.device },
          copy,
        );
      },
      updates: { due: async () => undefined },
      // Half of all time.
      processWorkMs: () => clock.now() / 2,
    });
    reducingMs.push((await outcome).result.reducingMs);
    sums.push(...member.sums);
  });
  await clock.runUntil(Promise.all(rounds));
  return { endMs: clock.now(), sentBytes, sums, reducingMs };
}

test('all but the last bucket of an AllReduce is hidden behind the backward pass, for the same bytes', async () => {
  const [plain, overlapped] = [await roundOf('1f1b'), await roundOf('1f1b-overlap')];
  // Two members: 2(n−1)/n is 1, each sends the vector once, in 320 ms; each bucket takes 80 ms, less than the 100 ms of
  // a piece of the backward pass.
  assert.equal(plain.endMs, backwardMs + elementCount);
  assert.equal(overlapped.endMs, backwardMs + elementCount / bucketCount);
  for (const { sentBytes, sums } of [plain, overlapped]) {
    assert.deepEqual(sentBytes, [4 * elementCount, 4 * elementCount]);
    for (const sum of sums) assert.ok(sum.every((value) => value === 2));
  }
  assert.deepEqual(
    plain.reducingMs,
    [elementCount / 2, elementCount / 2],
    'the work meanwhile, without that of the passes before',
  );
  assert.deepEqual(overlapped.reducingMs, [undefined, undefined], 'passes meanwhile work too');
});
