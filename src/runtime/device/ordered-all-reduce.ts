// The sum over a group whose bits do not depend on how its members share the work, for strict runs: every member holds the gradients of its parts of the
// micro-batch apart, and they are added one after the other in the order of the samples, whoever has them.
//
//   first member     p0            →  sum so far goes along the ring, each member adds its parts in order
//   second member    p0+p1+p2      →
//   last member      … + p7        →  the total goes round once more, to all but the last
//
// Vectors travel in pieces, so that the members work at the same time. A link carries the vector up to twice, where the ring of all-reduce.ts carries 2(n−1)/n of
// it: as much with two members, half as much again with three, and ever closer to the same with more.

import { assert } from '../../assert.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { giveMemory } from '../../transport/tensor-memory.ts';
import { pieceData, type RingPort } from './all-reduce.ts';
import { addTo } from './float-sum.ts';

/** Elements of one piece: 256 KiB. */
const pieceElements = 65_536;

/** How many numbers of frames such a sum takes. */
export function orderedFrameCount(length: number): number {
  return 2 * Math.ceil(length / pieceElements);
}

/**
 * The sum of all members' `parts` (vectors of `length`, in the order of the samples; none for a member without samples). Members stand on the ring in the
 * order of their samples. `parts` are changed. Rejects when a link fails or a piece does not fit.
 */
export async function orderedAllReduce(
  parts: readonly Float32Array[],
  length: number,
  { memberIndex, memberCount, port }: { readonly memberIndex: number; readonly memberCount: number; readonly port: RingPort },
): Promise<Float32Array> {
  assert(memberIndex >= 0 && memberIndex < memberCount, 'the member is on the ring');
  const pieceCount = Math.ceil(length / pieceElements);
  // −0 is what adds nothing to any number, zeros of either sign included.
  const total = parts[0] ?? new Float32Array(length).fill(-0);
  const isLast = memberIndex === memberCount - 1;
  const sends: Promise<void>[] = [];
  const send = (number: number, first: number, end: number): void => {
    const sending = port.send(number, [floats(total.subarray(first, end))]);
    sending.catch(() => {}); // seen below, or the receiving side fails before
    sends.push(sending);
  };
  const range = (piece: number): [number, number] => [piece * pieceElements, Math.min(length, (piece + 1) * pieceElements)];
  for (let piece = 0; piece < pieceCount; piece++) {
    const [first, end] = range(piece);
    if (memberIndex > 0) {
      const before = pieceData(await port.receive(piece), end - first);
      addTo(total.subarray(first, end), before); // the order of two does not matter
      giveMemory(before);
    }
    for (const part of parts.slice(1)) addTo(total.subarray(first, end), part.subarray(first, end));
    if (memberCount > 1) send(isLast ? pieceCount + piece : piece, first, end);
  }
  if (isLast) {
    await Promise.all(sends);
    return total;
  }
  // What was sent must be gone before the total takes its place.
  const result = new Float32Array(length);
  for (let piece = 0; piece < pieceCount; piece++) {
    const [first, end] = range(piece);
    const received = pieceData(await port.receive(pieceCount + piece), end - first);
    result.set(received, first);
    giveMemory(received);
    if (memberIndex < memberCount - 2) {
      const sending = port.send(pieceCount + piece, [floats(result.subarray(first, end))]);
      sending.catch(() => {}); // seen below
      sends.push(sending);
    }
  }
  await Promise.all(sends);
  return result;
}

function floats(data: Float32Array): Tensor {
  return { type: 'float32', shape: [data.length], data };
}
