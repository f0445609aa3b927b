// Ring AllReduce (reduce-scatter, then all-gather) over a group of devices: each sends 2(|G|−1)/|G| of the gradients
// (Asteroid, eq. 5). The vector is cut into |G| chunks; in step s a member sends the chunk that it received (and
// summed) in step s−1 to its successor.
//
//   step        0      1      2      3        4 members, chunk sent by member 0
//   sends       c0     c3     c2   | c1 …     first |G|−1 steps sum, the rest copy
//
// Every member sums each chunk in the same ring order, so all end with the same bits. Chunks travel in pieces, and each
// piece goes on as soon as it is summed: the steps overlap, no link waits for the end of a step, and nothing blocks the
// thread for long.

import { assert } from '../../assert.ts';
import { ProtocolError } from '../../errors.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { Frame } from '../../transport/link.ts';
import { giveMemory } from '../../transport/tensor-memory.ts';
import type { PieceCodec } from './codec.ts';
import type { SegmentedVector } from './segmented-vector.ts';

/**
 * Elements of one piece: 256 KiB, about 50 µs of summing. Smaller chunks are cut into at least `leastPieces`, so that
 * their steps overlap too.
 */
const pieceElements = 65_536;
const leastPieces = 4;
/** No piece of fewer elements (16 KiB), for which a frame of its own would be a waste. */
const leastPieceElements = 4_096;

/**
 * How a member reaches its neighbours on the ring. Pieces are numbered; each number is sent and received once in a
 * round.
 */
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

/**
 * Sums `vector` over all members in place. Returns the number after the last piece's. Rejects when a link fails or a
 * piece does not fit. What arrives is summed where it arrived and sent from there; only final sums are written into
 * the vector.
 */
export async function ringAllReduce(vector: SegmentedVector, ring: Ring, port: RingPort): Promise<number> {
  const { memberCount, memberIndex, codec, firstPiece = 0 } = ring;
  assert(memberIndex >= 0 && memberIndex < memberCount, 'the member is on the ring');
  if (memberCount === 1 || vector.length === 0) return firstPiece;
  const pieceCount = piecesPerChunk(vector.length, memberCount);
  const [stepCount, sumCount] = [2 * (memberCount - 1), memberCount - 1];
  const rangeOf = (step: number, piece: number): readonly [number, number] =>
    pieceRange(vector.length, memberCount, modulo(memberIndex - step, memberCount), piece, pieceCount);
  const sends: Promise<void>[] = [];
  const send = (step: number, piece: number, tensors: readonly Tensor[], onSent: () => void): void => {
    const sending = port.send(firstPiece + step * pieceCount + piece, tensors).then(onSent);
    sending.catch(() => {}); // seen below, or the receiving side fails before
    sends.push(sending);
  };
  for (let piece = 0; piece < pieceCount; piece++) {
    const [first, end] = rangeOf(0, piece);
    // A view may travel: its elements change only when their sum comes back round the ring, which the successor makes
    // of what it received here.
    const views = vector.views(first, end);
    const view = views.length === 1 ? views[0] : undefined;
    const values = view ?? vector.copy(first, end);
    send(0, piece, codec.encode(values, first), () => view === undefined && giveMemory(values));
  }
  for (let step = 0; step < stepCount; step++) {
    for (let piece = 0; piece < pieceCount; piece++) {
      const [first, end] = rangeOf(step + 1, piece);
      const { tensors = [] } = await port.receive(firstPiece + step * pieceCount + piece);
      const values = codec.decode(tensors, end - first);
      const isFinal = step >= sumCount;
      if (isFinal) vector.write(values, first);
      else vector.addTo(values, first);
      // A final sum goes round as it is, and the member that makes it keeps what all others will read.
      const next = isFinal ? tensors : codec.encode(values, first);
      if (step + 1 === sumCount) vector.write(codec.decode(next, end - first), first);
      const done = (): void => {
        giveMemory(values);
        giveAll(tensors);
      };
      if (step + 1 < stepCount) send(step + 1, piece, next, done);
      else done();
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

/** What a received piece holds. Throws ProtocolError if it is not `length` float32 elements. */
export function pieceData(frame: Frame, length: number): Float32Array {
  const data = frame.tensors?.[0]?.data;
  if (!(data instanceof Float32Array) || data.length !== length) {
    throw new ProtocolError(
      `An all-reduce piece should hold ${length} float32 elements, not ${data?.length ?? 'none'}.`,
    );
  }
  return data;
}

function pieceRange(
  length: number,
  memberCount: number,
  chunk: number,
  piece: number,
  piecesPerChunk: number,
): [number, number] {
  const chunkFirst = Math.floor((length * chunk) / memberCount);
  const chunkLength = Math.floor((length * (chunk + 1)) / memberCount) - chunkFirst;
  return [
    chunkFirst + Math.floor((chunkLength * piece) / piecesPerChunk),
    chunkFirst + Math.floor((chunkLength * (piece + 1)) / piecesPerChunk),
  ];
}

/** Lets go of received pieces, which are this device's own. */
function giveAll(tensors: readonly Tensor[]): void {
  for (const { data } of tensors) giveMemory(data);
}

function modulo(value: number, divisor: number): number {
  return ((value % divisor) + divisor) % divisor;
}
