// Ring AllReduce (reduce-scatter, then all-gather) over a group of devices: each sends 2(|G|−1)/|G| of the gradients (Asteroid, eq. 5).
// The vector is cut into |G| chunks; in step s a member sends the chunk that it received (and summed) in step s−1 to its successor.
//
//   step        0      1      2      3        4 members, chunk sent by member 0
//   sends       c0     c3     c2   | c1 …     first |G|−1 steps sum, the rest copy
//
// Every member sums each chunk in the same ring order, so all end with the same bits. Chunks travel in pieces, and each piece goes on as soon as
// it is summed: the steps overlap, no link waits for the end of a step, and nothing blocks the thread for long.

import { assert } from '../../assert.ts';
import { ProtocolError } from '../../errors.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { Frame } from '../../transport/link.ts';
import { giveMemory } from '../../transport/tensor-memory.ts';
import type { PieceCodec } from './codec.ts';
import { addTo } from './float-sum.ts';

/** Elements of one piece: 256 KiB, about 50 µs of summing. Smaller chunks are cut into at least `leastPieces`, so that their steps overlap too. */
const pieceElements = 65_536;
const leastPieces = 4;
/** No piece of fewer elements (16 KiB), for which a frame of its own would be a waste. */
const leastPieceElements = 4_096;

/** How a member reaches its neighbours on the ring. Pieces are numbered; each number is sent and received once in a round. */
export interface RingPort {
  /** Resolves when the tensors' memory is no longer needed. They may be views of the vector. */
  send(piece: number, tensors: readonly Tensor[]): Promise<void>;
  /** The tensors are the caller's from here on: their memory is used again. */
  receive(piece: number): Promise<Frame>;
}

export interface Ring {
  readonly memberCount: number;
  /** This device's place on the ring. */
  readonly memberIndex: number;
  /** How pieces travel. Each element of the vector is encoded once on each device. */
  readonly codec: PieceCodec;
  /** The number of the first piece. Default 0. */
  readonly firstPiece?: number;
}

/** Sums `values` over all members in place. Returns the number after the last piece's. Rejects when a link fails or a piece does not fit. */
export async function ringAllReduce(values: Float32Array, ring: Ring, port: RingPort): Promise<number> {
  const { memberCount, memberIndex, codec, firstPiece = 0 } = ring;
  assert(memberIndex >= 0 && memberIndex < memberCount, 'the member is on the ring');
  if (memberCount === 1 || values.length === 0) return firstPiece;
  const pieceCount = piecesPerChunk(values.length, memberCount);
  const [stepCount, sumCount] = [2 * (memberCount - 1), memberCount - 1];
  const rangeOf = (step: number, piece: number): readonly [number, number] =>
    pieceRange(values.length, memberCount, modulo(memberIndex - step, memberCount), piece, pieceCount);
  const sends: Promise<void>[] = [];
  const send = (step: number, piece: number, tensors: readonly Tensor[], onSent: () => void = () => {}): void => {
    const sending = port.send(firstPiece + step * pieceCount + piece, tensors).then(onSent);
    sending.catch(() => {}); // seen below, or the receiving side fails before
    sends.push(sending);
  };
  // A view of the vector may travel: its elements change again only when their sum comes back round the ring, which the successor makes of what it
  // received here.
  const encoded = (step: number, piece: number): readonly Tensor[] => {
    const [first, end] = rangeOf(step, piece);
    return codec.encode(values.subarray(first, end), first);
  };
  for (let piece = 0; piece < pieceCount; piece++) send(0, piece, encoded(0, piece));
  for (let step = 0; step < stepCount; step++) {
    for (let piece = 0; piece < pieceCount; piece++) {
      const [first, end] = rangeOf(step + 1, piece);
      const { tensors = [] } = await port.receive(firstPiece + step * pieceCount + piece);
      const received = codec.decode(tensors, end - first);
      if (step < sumCount) addTo(values.subarray(first, end), received);
      else values.set(received, first);
      if (step + 1 > sumCount && step + 1 < stepCount) {
        send(step + 1, piece, tensors, () => giveAll(tensors)); // a final sum goes round as it is
        continue;
      }
      giveAll(tensors);
      if (step + 1 === stepCount) continue;
      const next = encoded(step + 1, piece);
      // The one that has the whole sum keeps what all others will read.
      if (step + 1 === sumCount) keep(values, first, codec.decode(next, end - first));
      send(step + 1, piece, next);
    }
  }
  await Promise.all(sends);
  return firstPiece + stepCount * pieceCount;
}

/** How many frames each member sends, and receives, for the sum of vectors of this length: their numbers are below. */
export function ringFrameCount(length: number, memberCount: number): number {
  return memberCount === 1 || length === 0 ? 0 : 2 * (memberCount - 1) * piecesPerChunk(length, memberCount);
}

function piecesPerChunk(length: number, memberCount: number): number {
  const chunk = Math.ceil(length / memberCount);
  return Math.max(1, Math.ceil(chunk / pieceElements), Math.min(leastPieces, Math.floor(chunk / leastPieceElements)));
}

/** What a received piece holds. Throws ProtocolError where it is not so many float32 elements. */
export function pieceData(frame: Frame, length: number): Float32Array {
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

/** Copies a piece to its place, unless it lies there. */
function keep(values: Float32Array, first: number, piece: Float32Array): void {
  if (piece.buffer !== values.buffer) values.set(piece, first);
}

/** Lets go of received pieces, which are this device's own. */
function giveAll(tensors: readonly Tensor[]): void {
  for (const { data } of tensors) giveMemory(data);
}

function modulo(value: number, divisor: number): number {
  return ((value % divisor) + divisor) % divisor;
}
