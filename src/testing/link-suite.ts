// The acceptance suite that every adapter of Link runs: what the rest of Asteroid may rely on. Time passes by frames
// going back and forth, never by sleeping.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { crc32 } from 'node:zlib';
import { RunError } from '../errors.ts';
import { allocate, elementTypes, scalar, type Tensor, tensor, tensorBytes } from '../graph/tensor.ts';
import { createRandom } from '../random.ts';
import { defaultFrameLimits } from '../transport/frame.ts';
import type { Frame, Link, Priority } from '../transport/link.ts';
import type { LinkLimits } from '../transport/wire-link.ts';
import { type LinkPair, type MakeLinkPair, runOnPair } from './link-pair.ts';

const mebibyte = 2 ** 20;

/** A frame that is known by its number. */
function numbered(microBatch: number, tensors: readonly Tensor[] = []): Frame {
  return { kind: 'activation', epoch: 1, round: 0, microBatch, ...(tensors.length > 0 && { tensors }) };
}

function randomBytes(byteCount: number, seed: number): Tensor {
  const value = { type: 'uint8', shape: [byteCount], data: new Uint8Array(byteCount) } as const;
  const words = new Uint32Array(value.data.buffer, 0, byteCount >> 2);
  for (let index = 0, word = seed; index < words.length; index++) {
    word = (Math.imul(word, 1_664_525) + 1_013_904_223) >>> 0;
    words[index] = word;
  }
  return value;
}

/** Collects frames; `until(n)` resolves when n have come, and rejects when the link ends before. */
function collect(link: Link): { readonly frames: Frame[]; until(count: number): Promise<Frame[]> } {
  const frames: Frame[] = [];
  let check = (): void => {};
  link.receive((frame) => {
    frames.push(frame);
    check();
  });
  const until = (count: number): Promise<Frame[]> =>
    new Promise((resolve, reject) => {
      check = () => frames.length >= count && resolve(frames);
      check();
      void link.ended.then(({ reason }) =>
        reject(new Error(`the link ended after ${frames.length} of ${count} frames: ${reason}`)),
      );
    });
  return { frames, until };
}

/** Registers a test of a connected pair. */
type OnPair = (title: string, run: (pair: LinkPair) => Promise<void>, limits?: Partial<LinkLimits>) => void;

/** Registers the suite. */
export function linkSuite(name: string, makePair: MakeLinkPair): void {
  const onPair: OnPair = (title, run, limits) =>
    void test(title, { timeout: 60_000 }, () => runOnPair(makePair, run, limits));
  describe(name, () => {
    arrivalTests(onPair);
    largeFrameTests(onPair);
    backpressureTests(onPair);
    endTests(onPair);
    failureTests(onPair);
    randomTrafficTests(onPair);
  });
}

/** What is sent arrives whole, in order, in memory of its own. */
function arrivalTests(onPair: OnPair): void {
  onPair('names the peer', async ({ a, b }) => {
    assert.deepEqual([a.peer, b.peer], ['b', 'a']);
    assert.deepEqual([a.queuedBytes(), b.queuedBytes()], [0, 0]);
  });

  onPair('frames arrive whole and in order, both ways at once', async ({ a, b }) => {
    const [fromA, fromB] = [collect(b), collect(a)];
    for (let index = 0; index < 500; index++) {
      void a.send(numbered(index, [randomBytes(index * 100, index)]));
      void b.send({ ...numbered(index), control: { index } }, 'control');
    }
    assert.deepEqual(
      (await fromA.until(500)).map(({ microBatch }) => microBatch),
      Array.from({ length: 500 }, (_, index) => index),
    );
    assert.deepEqual(fromA.frames[499], numbered(499, [randomBytes(49_900, 499)]));
    assert.deepEqual(
      (await fromB.until(500)).map(({ control }) => control),
      Array.from({ length: 500 }, (_, index) => ({ index })),
    );
  });

  onPair('all element types, scalars and empty tensors arrive, each in memory of its own', async ({ a, b }) => {
    const tensors = elementTypes.flatMap((type): Tensor[] => [
      scalar(type, 1),
      tensor(type, [3, 1], [1, 0, 1]),
      { type, shape: [0, 7], data: allocate(type, 0) },
      tensor(type, [40_000], new Uint8Array(40_000).fill(1)),
    ]);
    const sent = [
      numbered(0, tensors),
      numbered(1, [tensors[2] as Tensor]),
      numbered(2, [tensors[3] as Tensor]),
      { ...numbered(3), control: null },
    ];
    const received = collect(b);
    for (const frame of sent) await a.send(frame);
    assert.deepEqual(await received.until(4), sent);
    const buffers = new Set<unknown>();
    for (const { data } of received.frames.flatMap((frame) => frame.tensors ?? [])) {
      assert.equal(data.byteOffset, 0);
      assert.equal(data.byteLength, data.buffer.byteLength);
      assert.equal(buffers.has(data.buffer), false, 'two tensors share memory');
      buffers.add(data.buffer);
    }
  });
}

/** Long frames, and the frames that overtake them. */
function largeFrameTests(onPair: OnPair): void {
  onPair('the memory of a sent frame is free when send resolves', async ({ a, b }) => {
    const received = collect(b);
    for (const byteCount of [8, 100_000, 3 * mebibyte]) {
      const value = randomBytes(byteCount, 5);
      await a.send(numbered(0, [value]));
      value.data.fill(0 as never);
    }
    const frames = await received.until(3);
    assert.deepEqual(frames[0]?.tensors?.[0], randomBytes(8, 5));
    for (const [index, byteCount] of [8, 100_000, 3 * mebibyte].entries()) {
      assert.equal(checksumOf(frames[index]), crc32(tensorBytes(randomBytes(byteCount, 5))));
    }
  });

  onPair('a frame of 64 MiB arrives', async ({ a, b }) => {
    const received = collect(b);
    const value = randomBytes(64 * mebibyte, 9);
    const sending = a.send(numbered(0, [value, scalar('float32', 1)]), 'bulk');
    assert.ok(a.queuedBytes() > 32 * mebibyte, 'queuedBytes counts what waits');
    await sending;
    const [frame] = await received.until(1);
    assert.equal(checksumOf(frame), crc32(tensorBytes(value)));
    assert.deepEqual(frame?.tensors?.[1], scalar('float32', 1));
  });

  onPair('urgent frames overtake, even in the middle of a long one', async ({ a, b }) => {
    const received = collect(b);
    const lanes: readonly (readonly [number, Priority, number])[] = [
      [0, 'bulk', 16 * mebibyte],
      [1, 'bulk', 10],
      [2, 'pipeline', 4 * mebibyte],
      [3, 'pipeline', 10],
      [4, 'control', 0],
      [5, 'control', 10],
    ];
    for (const [index, priority, byteCount] of lanes)
      void a.send(numbered(index, [randomBytes(byteCount, 1)]), priority);
    await received.until(6);
    assert.deepEqual(
      received.frames.map(({ microBatch }) => microBatch),
      [4, 5, 2, 3, 0, 1],
    );
    assert.equal(checksumOf(received.frames[4]), crc32(tensorBytes(randomBytes(16 * mebibyte, 1))));
  });
}

/** Frames without a receiver, and a sender that must wait. */
function backpressureTests(onPair: OnPair): void {
  onPair('frames that came before the receiver are kept, in order', async ({ a, b }) => {
    for (let index = 0; index < 20; index++) await a.send(numbered(index));
    await roundTrips(b, a, 3);
    const received = collect(b);
    await a.send(numbered(20));
    assert.deepEqual(
      (await received.until(21)).map(({ microBatch }) => microBatch),
      Array.from({ length: 21 }, (_, index) => index),
    );
  });

  onPair(
    'send waits while the peer takes nothing, and memory stays bounded on both sides',
    async ({ a, b }) => {
      const frameCount = 320;
      let resolvedCount = 0;
      const sending = (async () => {
        for (let index = 0; index < frameCount; index++) {
          await a.send(numbered(index, [randomBytes(mebibyte / 8, index)]));
          resolvedCount++;
        }
      })();
      // Until some were accepted, and a hundred frames the other way have changed nothing.
      for (let seen = -1; seen !== resolvedCount || resolvedCount === 0; ) {
        seen = resolvedCount;
        await roundTrips(b, a, 100);
      }
      assert.ok(
        resolvedCount >= 1 && resolvedCount <= 96,
        `${resolvedCount} frames of 128 KiB were accepted, not about the window of 8 MiB`,
      );
      assert.ok(a.queuedBytes() > 0 && a.queuedBytes() < mebibyte, `${a.queuedBytes()} bytes wait`);
      const received = collect(b);
      await sending;
      assert.deepEqual(
        (await received.until(frameCount)).map(({ microBatch }) => microBatch),
        Array.from({ length: frameCount }, (_, index) => index),
      );
      assert.equal(a.queuedBytes(), 0);
    },
    { backlogBytes: 65_536 },
  );
}

/** How a link ends, and what is still sent. */
function endTests(onPair: OnPair): void {
  onPair(
    'a sender that never waits ends the link before memory does',
    async ({ a, b }) => {
      const sends = Array.from({ length: 40 }, (_, index) => a.send(numbered(index, [randomBytes(mebibyte, 1)])));
      const end = await a.ended;
      assert.deepEqual(end, { clean: false, reason: 'more than 4194304 bytes wait to be sent to b' });
      assert.ok((await Promise.allSettled(sends)).some(({ status }) => status === 'rejected'));
      assert.equal((await b.ended).clean, false);
    },
    { queueBytes: 4 * mebibyte, frame: { ...defaultFrameLimits, frameBytes: 2 * mebibyte } },
  );

  onPair('close sends the queue first, and both ends learn the reason', async ({ a, b }) => {
    const received = collect(b);
    for (let index = 0; index < 10; index++) void a.send(numbered(index, [randomBytes(mebibyte, index)]), 'bulk');
    const closing = a.close('the run is over');
    assert.deepEqual(await b.ended, { clean: true, reason: 'the run is over' });
    assert.deepEqual(await a.ended, { clean: true, reason: 'the run is over' });
    await closing;
    assert.equal(received.frames.length, 10);
    await a.close('again');
  });

  onPair('both ends may close at once', async ({ a, b }) => {
    await Promise.all([a.close('left'), b.close('right')]);
    assert.equal((await a.ended).clean, true);
    assert.equal((await b.ended).clean, true);
  });

  onPair('a long reason is cut, not lost', async ({ a, b }) => {
    await a.close('ü'.repeat(500));
    assert.match((await b.ended).reason, /^ü{50,500}…?$/);
  });

  onPair('send rejects once the link has ended, and so do the frames that waited', async ({ a, b }) => {
    const waiting = [a.send(numbered(0, [randomBytes(32 * mebibyte, 1)])), a.send(numbered(1))];
    await b.close('b leaves');
    for (const sending of waiting)
      await assert.rejects(
        sending,
        (error) => error instanceof RunError && /link to b has ended: b leaves/.test(error.message),
      );
    await a.ended;
    await assert.rejects(a.send(numbered(2)), RunError);
    await assert.rejects(b.send(numbered(2)), RunError);
    assert.deepEqual([a.queuedBytes(), b.queuedBytes()], [0, 0]);
  });
}

/** Changed bytes, and receivers that throw, send or close. */
function failureTests(onPair: OnPair): void {
  onPair('a changed bit ends the link on both sides with a reason', async ({ a, b, corrupt }) => {
    const received = collect(b);
    await a.send(numbered(0, [randomBytes(100_000, 1)]));
    await received.until(1);
    corrupt();
    void a.send(numbered(1, [randomBytes(100_000, 2)]));
    const [endOfA, endOfB] = await Promise.all([a.ended, b.ended]);
    assert.equal(endOfB.clean, false);
    assert.match(endOfB.reason, /^the (checksum|seal) of a message is wrong: bytes were changed on the way$/);
    assert.deepEqual(endOfA, endOfB);
    assert.equal(received.frames.length, 1);
  });

  onPair('a receiver that throws ends the link with its message', async ({ a, b }) => {
    b.receive(() => {
      throw new Error('round 7 is not the current one');
    });
    await a.send(numbered(0));
    const expected = { clean: false, reason: 'round 7 is not the current one' };
    assert.deepEqual(await b.ended, expected);
    assert.deepEqual(await a.ended, expected);
  });

  onPair('a receiver may send and close', async ({ a, b }) => {
    const received = collect(a);
    b.receive((frame) => {
      void b.send(frame);
      if (frame.microBatch === 2) void b.close('enough');
    });
    for (let index = 0; index < 3; index++) await a.send(numbered(index, [randomBytes(30_000, index)]));
    assert.deepEqual(await a.ended, { clean: true, reason: 'enough' });
    assert.deepEqual(
      received.frames.map(({ microBatch }) => microBatch),
      [0, 1, 2],
    );
  });
}

/** All lanes at once. */
function randomTrafficTests(onPair: OnPair): void {
  onPair('random traffic in all lanes: each lane keeps its order, nothing is lost', async ({ a, b }) => {
    const random = createRandom(20261121, 5);
    const priorities: readonly Priority[] = ['control', 'pipeline', 'bulk'];
    const count = 1500;
    const collected = [collect(a), collect(b)];
    for (let index = 0; index < count; index++) {
      for (const link of [a, b]) {
        const lane = random.integer(3);
        const tensors = Array.from({ length: random.integer(3) }, () =>
          randomBytes(random.integer(random.integer(20) === 0 ? 400_000 : 2_000), index),
        );
        const sending = link.send(
          { ...numbered(index, tensors), round: lane, control: tensors.map((value) => crc32(tensorBytes(value))) },
          priorities[lane] as Priority,
        );
        if (random.integer(10) === 0) await sending;
      }
    }
    for (const { until } of collected) {
      const last = [-1, -1, -1];
      for (const { round, microBatch, control, tensors } of await until(count)) {
        assert.ok(microBatch > (last[round] as number));
        last[round] = microBatch;
        assert.deepEqual(
          (tensors ?? []).map((value) => crc32(tensorBytes(value))),
          control,
        );
      }
    }
  });
}

/** Lets time pass: `count` frames in turn from one end to the other, which need not reach a receiver to come back. */
async function roundTrips(from: Link, to: Link, count: number): Promise<void> {
  const received = collect(to);
  for (let index = 1; index <= count; index++) {
    await from.send(numbered(index), 'control');
    await received.until(index);
  }
}

function checksumOf(frame: Frame | undefined): number {
  const value = frame?.tensors?.[0];
  assert.ok(value !== undefined, 'the frame has a tensor');
  return crc32(tensorBytes(value));
}
