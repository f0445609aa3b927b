import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRandom } from '../random.ts';
import { Assembler } from './assembler.ts';
import { defaultFrameLimits, encodeFrame } from './frame.ts';
import type { Frame } from './link.ts';

function frameOf(lengths: readonly number[], random: ReturnType<typeof createRandom>): Frame {
  const tensors = lengths.map((length) => ({
    type: 'uint8' as const,
    shape: [length],
    data: Uint8Array.from({ length }, () => random.integer(256)),
  }));
  return { kind: 'activation', epoch: 1, round: 2, microBatch: 3, control: { some: 'thing' }, tensors };
}

test('a frame is the same however its bytes come: copied, or written where there is room', () => {
  const random = createRandom(20261121, 9);
  for (let round = 0; round < 200; round++) {
    const frame = frameOf([0, random.integer(5_000), 1, 8 + random.integer(20_000)], random);
    const bytes = Buffer.concat(encodeFrame(frame));
    const assembler = new Assembler(defaultFrameLimits);
    for (let at = 0; at < bytes.length; ) {
      const part = bytes.subarray(at, at + 1 + random.integer(6_000));
      const room = random.integer(2) === 0 ? undefined : assembler.room(part.length);
      room?.set(part);
      assembler.write(room ?? part);
      at += part.length;
    }
    const result = assembler.finish();
    assert.deepEqual(result, frame);
    for (const { data } of result.tensors ?? []) assert.equal(data.byteLength, data.buffer.byteLength);
  }
});

test('there is room only within one tensor whose head has come', () => {
  const random = createRandom(1, 9);
  const bytes = Buffer.concat(encodeFrame(frameOf([100, 50], random)));
  const headBytes = bytes.length - 104 - 50;
  const assembler = new Assembler(defaultFrameLimits);
  assert.equal(assembler.room(8), undefined);
  assembler.write(bytes.subarray(0, headBytes));
  assert.equal(assembler.room(101), undefined);
  assert.equal(assembler.room(100)?.byteLength, 100);
  assembler.write(bytes.subarray(headBytes, headBytes + 60));
  assert.equal(assembler.room(41), undefined);
  const room = assembler.room(40);
  assert.deepEqual([room?.byteOffset, room?.buffer.byteLength], [60, 100]);
});
