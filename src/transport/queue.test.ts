import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Priority } from './link.ts';
import { SendQueue } from './queue.ts';

const kib = 1024;

/** A frame of a head and further parts of these lengths. */
function parts(...lengths: readonly number[]): Uint8Array[] {
  return [64, ...lengths].map((length) => new Uint8Array(length));
}

/** Takes pieces until the queue is empty: lane, small bytes, long bytes, first (f) and last (l). */
function drain(queue: SendQueue, maxBytes: number): string[] {
  const taken: string[] = [];
  for (let lane = queue.nextLane; lane !== undefined; lane = queue.nextLane) {
    const { piece, byteCount, done } = queue.take(lane, maxBytes);
    const inlineBytes = piece.inline.reduce((sum, part) => sum + part.length, 0);
    assert.equal(byteCount, inlineBytes + (piece.trailing?.length ?? 0));
    const ends = `${piece.first ? 'f' : '-'}${piece.last ? 'l' : '-'}`;
    taken.push(`${lane} ${inlineBytes}+${(piece.trailing?.length ?? 0) / kib}K ${ends}`);
    done();
  }
  return taken;
}

test('small parts share a message, long ones follow as they are, cut to size', () => {
  const queue = new SendQueue();
  void queue.add('pipeline', parts());
  void queue.add('pipeline', parts(100, 4, 200));
  void queue.add('pipeline', parts(64 * kib));
  void queue.add('pipeline', parts(8, 600 * kib, 10, 16 * kib - 1, 16 * kib));
  assert.deepEqual(drain(queue, 256 * kib), [
    'pipeline 64+0K fl',
    'pipeline 368+0K fl',
    'pipeline 64+64K fl',
    'pipeline 72+256K f-',
    'pipeline 0+256K --',
    'pipeline 0+88K --',
    'pipeline 16393+16K -l',
  ]);
  assert.equal(queue.bytes, 0);
});

test('a long head is sent in messages of its own size', () => {
  const queue = new SendQueue();
  void queue.add('control', [new Uint8Array(150_000), new Uint8Array(32 * kib)]);
  assert.deepEqual(drain(queue, 256 * kib), ['control 64512+0K f-', 'control 64512+0K --', 'control 20976+32K -l']);
});

test('urgent lanes go first, also between the pieces of a frame', () => {
  const queue = new SendQueue();
  const lanes: Priority[] = [];
  const take = (): void => {
    const lane = queue.nextLane as Priority;
    lanes.push(lane);
    queue.take(lane, 16 * kib).done();
  };
  void queue.add('bulk', parts(48 * kib));
  take();
  void queue.add('pipeline', parts(32 * kib));
  take();
  void queue.add('control', parts());
  void queue.add('pipeline', parts());
  for (let count = 0; count < 5; count++) take();
  assert.deepEqual(lanes, ['bulk', 'pipeline', 'control', 'pipeline', 'pipeline', 'bulk', 'bulk']);
  assert.equal(queue.nextLane, undefined);
});

test('a frame is done when its last piece is, copied or handed over', async () => {
  const queue = new SendQueue();
  const log: string[] = [];
  const add = (name: string, ...lengths: readonly number[]): void =>
    void queue.add('bulk', parts(...lengths)).then(
      () => log.push(name),
      (error: Error) => log.push(`${name} ${error.message}`),
    );
  add('small', 10);
  add('long', 40 * kib);
  add('waiting', 10);
  assert.equal(queue.bytes, 64 + 10 + 64 + 40 * kib + 64 + 10);
  queue.take('bulk', 32 * kib);
  await Promise.resolve();
  assert.deepEqual(log, ['small']);
  const [first, second] = [queue.take('bulk', 32 * kib), queue.take('bulk', 32 * kib)];
  second.done();
  await Promise.resolve();
  assert.deepEqual(log, ['small']);
  first.done();
  await Promise.resolve();
  assert.deepEqual(log, ['small', 'long']);
  queue.clear(new Error('ended'));
  await Promise.resolve();
  assert.deepEqual(log, ['small', 'long', 'waiting ended']);
  assert.equal(queue.bytes, 0);
  first.done();
  assert.equal(queue.bytes, 0);
});
