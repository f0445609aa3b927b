// Memory of tensors that come from links and go to them, used again: new memory costs page faults, and V8 counts it
// against its heap until it has searched that for garbage, which took more time than receiving. Whoever has used up a
// tensor of its own may give its memory back; nobody has to.

import { FreeBuffers } from '../buffer-pool.ts';
import type { ElementArray } from '../graph/tensor.ts';
import { uninitialized } from '../memory.ts';

/** Smaller memory is cheaper to make than to keep. */
const leastBytes = 4_096;
/** What may lie here unused; beyond it the longest unused goes to the garbage collector. */
const mostBytes = 32 * 2 ** 20;

const free = new FreeBuffers();

/** Exactly so many bytes in a buffer of their own, which hold anything. */
export function takeMemory(byteLength: number): Uint8Array<ArrayBuffer> {
  const buffer = free.take(byteLength);
  return buffer === undefined ? uninitialized(byteLength) : new Uint8Array(buffer);
}

/**
 * Gives back the memory of an array that fills its buffer, which nobody reads or writes from here on; of others nothing
 * happens.
 */
export function giveMemory({ buffer, byteLength }: ElementArray): void {
  if (
    !(buffer instanceof ArrayBuffer) ||
    byteLength < leastBytes ||
    byteLength > mostBytes ||
    byteLength !== buffer.byteLength
  )
    return;
  if (free.has(buffer)) return;
  free.give(buffer);
  free.shrink(mostBytes);
}
