// The sum over a group whose bits do not depend on how its members share the work, for strict runs: every member holds
// the gradients of its parts of the micro-batch apart, and they are added one after the other in the order of the
// samples, whoever has them.
//
//   first member     p0            →  sum so far goes along the ring, each member adds its parts in order
//   second member    p0+p1+p2      →
//   last member      … + p7        →  the total goes round once more, to all but the last
//
// Vectors travel in pieces, so that the members work at the same time. A link carries the vector up to twice, where the
// ring of all-reduce.ts carries 2(n−1)/n of it: as much with two members, half as much again with three, and ever
// closer to the same with more.

import { assert } from '../../assert.ts';
import { giveMemory, takeMemory } from '../../transport/tensor-memory.ts';
import { pieceData, type RingPort } from './all-reduce.ts';
import type { SegmentedVector } from './segmented-vector.ts';

/** Elements of one piece: 256 KiB. */
const pieceElements = 65_536;

/** How many numbers of frames such a sum takes. */
export function orderedFrameCount(length: number): number {
  return 2 * Math.ceil(length / pieceElements);
}

/** What a member has to sum. */
export interface OrderedParts {
  /** In the order of the samples; none of a member without samples. */
  readonly parts: readonly SegmentedVector[];
  /** Where the sum comes: of the parts' length; it may be one of them. */
  readonly total: SegmentedVector;
}

/**
 * Puts the sum of all members' parts into `total`. Members stand on the ring in the order of their samples. Rejects
 * when a link fails or a piece does not fit. A piece is summed where it arrived, and sent from there.
 */
export async function orderedAllReduce(
  { parts, total }: OrderedParts,
  {
    memberIndex,
    memberCount,
    port,
  }: { readonly memberIndex: number; readonly memberCount: number; readonly port: RingPort },
): Promise<void> {
  assert(memberIndex >= 0 && memberIndex < memberCount, 'the member is on the ring');
  const { length } = total;
  const pieceCount = Math.ceil(length / pieceElements);
  const isLast = memberIndex === memberCount - 1;
  const sends: Promise<void>[] = [];
  /** `values` are nobody's but this call's. */
  const send = (number: number, values: Float32Array): void => {
    const sending = port
      .send(number, [{ type: 'float32', shape: [values.length], data: values }])
      .then(() => giveMemory(values));
    sending.catch(() => {}); // seen below, or the receiving side fails before
    sends.push(sending);
  };
  const range = (piece: number): [number, number] => [
    piece * pieceElements,
    Math.min(length, (piece + 1) * pieceElements),
  ];
  for (let piece = 0; piece < pieceCount; piece++) {
    const [first, end] = range(piece);
    const values = memberIndex > 0 ? pieceData(await port.receive(piece), end - first) : nothing(end - first);
    for (const part of parts) part.addTo(values, first);
    if (isLast) total.write(values, first);
    if (memberCount === 1) giveMemory(values);
    else send(isLast ? pieceCount + piece : piece, values);
  }
  for (let piece = 0; !isLast && piece < pieceCount; piece++) {
    const [first, end] = range(piece);
    const values = pieceData(await port.receive(pieceCount + piece), end - first);
    total.write(values, first);
    if (memberIndex < memberCount - 2) send(pieceCount + piece, values);
    else giveMemory(values);
  }
  await Promise.all(sends);
}

/** What adds nothing to any number, zeros of either sign included. */
function nothing(length: number): Float32Array {
  return new Float32Array(takeMemory(4 * length).buffer).fill(-0);
}
