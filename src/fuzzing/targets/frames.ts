// Frames as bytes: read whole, and put together from pieces.

import assert from 'node:assert/strict';
import { isDeepStrictEqual } from 'node:util';
import { crc32 } from 'node:zlib';
import { ProtocolError } from '../../errors.ts';
import { scalar, tensor } from '../../graph/tensor.ts';
import type { Random } from '../../random.ts';
import { Assembler } from '../../transport/assembler.ts';
import { decodeFrame, defaultFrameLimits, encodeFrame } from '../../transport/frame.ts';
import type { Frame } from '../../transport/link.ts';
import { damagedBytes } from '../inputs.ts';
import type { Target } from '../target.ts';

const plain: Frame = { kind: 'activation', epoch: 7, round: 12, microBatch: 3 };

/** Frames of all kinds. */
export const sampleFrames: readonly Frame[] = [
  plain,
  { kind: 'heartbeat', epoch: 0, round: -1, microBatch: -1, control: {} },
  { ...plain, control: { plan: [[0, 3], [3, 9]], text: '\\"[{' } }, // biome-ignore format: one line
  {
    ...plain,
    tensors: [
      tensor('float32', [2, 2], [1, 2, 3, 4]),
      scalar('int64', 3),
      tensor('bool', [3], [1, 0, 1]),
      tensor('uint16', [0, 4], []),
    ],
  },
  { ...plain, kind: 'all-reduce', control: [null], tensors: [tensor('int8', [9], [1, 2, 3, 4, 5, 6, 7, 8, 9])] },
];

function bytesOf(frame: Frame, checksum = true): Uint8Array {
  return Uint8Array.from(Buffer.concat(encodeFrame(frame, { checksum })));
}

/** Corrects the head's checksum, so that the checks after it are reached. */
export function repairHead(bytes: Uint8Array): void {
  if (bytes.length < 48) return;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const rest = bytes.subarray(48, Math.min(view.getUint32(20, true), bytes.length));
  const sum = crc32(bytes.subarray(0, 44));
  view.setUint32(44, rest.length === 0 ? sum : crc32(rest, sum), true);
}

/** A frame's bytes, and the lengths of the pieces in which they come. */
interface FrameInput {
  readonly bytes: Uint8Array;
  readonly pieces: readonly number[];
}

/** The frame from its pieces; undefined if it is refused. */
function assembled({ bytes, pieces }: FrameInput): Frame | undefined {
  try {
    const assembler = new Assembler(defaultFrameLimits);
    let at = 0;
    for (const length of [...pieces, bytes.length]) {
      const part = bytes.subarray(at, at + length);
      const room = assembler.room(part.length);
      room?.set(part);
      assembler.write(room ?? part);
      at += part.length;
    }
    return assembler.finish();
  } catch (error) {
    if (error instanceof ProtocolError) return undefined;
    throw error;
  }
}

/** Both ways of reading a frame give the same, and a frame that was read is written as it was. */
export function frameTarget(): Target<FrameInput> {
  const originals = sampleFrames.flatMap((frame) => [bytesOf(frame), bytesOf(frame, false)]);
  return {
    input(random: Random) {
      const bytes = damagedBytes(originals, random);
      if (random.integer(2) === 0) repairHead(bytes);
      return { bytes, pieces: Array.from({ length: random.integer(5) }, () => random.integer(100)) };
    },
    take(input) {
      const together = assembled(input);
      // Pieces have checksums of their own, so that the assembler does not look at the tensors'.
      const frame = decodeFrame(input.bytes, defaultFrameLimits, { verify: false });
      assert.ok(isDeepStrictEqual(together, frame), 'a frame in pieces is another than the whole one');
      assert.ok(isDeepStrictEqual(decodeFrame(bytesOf(frame)), frame), 'a frame that was encoded again is another');
      decodeFrame(input.bytes);
    },
  };
}
