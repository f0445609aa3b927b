// Ring AllReduce (reduce-scatter, then all-gather) over a group of devices: each sends 2(|G|−1)/|G| of the gradients (Asteroid, eq. 5).
// The vector is cut into |G| chunks; in step s a member sends the chunk that it received (and summed) in step s−1 to its successor.
//
//   step        0      1      2      3        4 members, chunk sent by member 0
//   sends       c0     c3     c2   | c1 …     first |G|−1 steps sum, the rest copy
//
// Every member sums each chunk in the same ring order, so all end with the same bits. Chunks travel in pieces, so that summing one overlaps
// receiving the next and nothing blocks the thread for long.

import { assert } from '../../assert.ts';
import { ProtocolError } from '../../errors.ts';
import type { Frame } from '../../transport/link.ts';

/** Elements of one piece: 256 KiB, about 50 µs of summing. */
const pieceElements = 65_536;

/** How a member reaches its neighbours on the ring. Pieces are numbered; each number is sent and received once in a round. */
export interface RingPort {
  send(piece: number, data: Float32Array): Promise<void>;
  receive(piece: number): Promise<Frame>;
}

/** Sums `values` over all members in place. `memberIndex` is this device's place on the ring. Rejects when a link fails or a piece does not fit. */
export async function ringAllReduce(values: Float32Array, memberIndex: number, memberCount: number, port: RingPort): Promise<void> {
  assert(memberIndex >= 0 && memberIndex < memberCount, 'the member is on the ring');
  if (memberCount === 1 || values.length === 0) return;
  const piecesPerChunk = Math.max(1, Math.ceil(Math.ceil(values.length / memberCount) / pieceElements));
  const stepCount = 2 * (memberCount - 1);
  const sends: Promise<void>[] = [];
  for (let step = 0; step < stepCount; step++) {
    const sendChunk = modulo(memberIndex - step, memberCount);
    const receiveChunk = modulo(memberIndex - step - 1, memberCount);
    for (let piece = 0; piece < piecesPerChunk; piece++) {
      const number = step * piecesPerChunk + piece;
      const [first, end] = pieceRange(values.length, memberCount, sendChunk, piece, piecesPerChunk);
      // A copy: the next steps change these elements while the frame may still wait in the link's queue.
      sends.push(port.send(number, values.slice(first, end)));
    }
    for (let piece = 0; piece < piecesPerChunk; piece++) {
      const number = step * piecesPerChunk + piece;
      const [first, end] = pieceRange(values.length, memberCount, receiveChunk, piece, piecesPerChunk);
      const received = pieceData(await port.receive(number), end - first);
      if (step < memberCount - 1) add(values, first, received);
      else values.set(received, first);
    }
    await Promise.all(sends.splice(0));
  }
}

function pieceData(frame: Frame, length: number): Float32Array {
  const data = frame.tensors?.[0]?.data;
  if (!(data instanceof Float32Array) || data.length !== length) {
    throw new ProtocolError(`An all-reduce piece should hold ${length} float32 elements, not ${data?.length ?? 'none'}.`);
  }
  return data;
}

function pieceRange(length: number, memberCount: number, chunk: number, piece: number, piecesPerChunk: number): [number, number] {
  const chunkFirst = Math.floor((length * chunk) / memberCount);
  const chunkLength = Math.floor((length * (chunk + 1)) / memberCount) - chunkFirst;
  return [
    chunkFirst + Math.floor((chunkLength * piece) / piecesPerChunk),
    chunkFirst + Math.floor((chunkLength * (piece + 1)) / piecesPerChunk),
  ];
}

function add(target: Float32Array, first: number, source: Float32Array): void {
  for (let index = 0; index < source.length; index++) {
    target[first + index] = (target[first + index] as number) + (source[index] as number);
  }
}

function modulo(value: number, divisor: number): number {
  return ((value % divisor) + divisor) % divisor;
}
