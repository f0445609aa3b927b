// Memory of tensors that come from links and go to them, used again: new memory costs page faults, and V8 counts it against its heap until it has searched
// that for garbage, which took more time than receiving. Whoever has used up a tensor of its own may give its memory back; nobody has to.

import { assert } from '../assert.ts';
import type { ElementArray } from '../graph/tensor.ts';

/** Smaller memory is cheaper to make than to keep. */
const leastBytes = 4_096;
/** What may lie here unused; beyond it the longest unused goes to the garbage collector. */
const mostBytes = 32 * 2 ** 20;

/** Free memory by size, and in the order in which it came. */
const freeBySize = new Map<number, ArrayBuffer[]>();
const free = new Map<ArrayBuffer, number>();
let freeBytes = 0;

function forget(buffer: ArrayBuffer): void {
  freeBytes -= free.get(buffer) ?? 0;
  free.delete(buffer);
}

/** Exactly so many bytes in a buffer of their own, which hold anything. */
export function takeMemory(byteLength: number): Uint8Array<ArrayBuffer> {
  const buffer = freeBySize.get(byteLength)?.pop();
  if (buffer === undefined) return Buffer.allocUnsafeSlow(byteLength) as Uint8Array<ArrayBuffer>;
  forget(buffer);
  assert(buffer.byteLength === byteLength, 'memory was moved elsewhere after it had been given back');
  return new Uint8Array(buffer);
}

/** Gives back the memory of an array that fills its buffer, which nobody reads or writes from here on; of others nothing happens. */
export function giveMemory({ buffer, byteLength }: ElementArray): void {
  if (!(buffer instanceof ArrayBuffer) || byteLength < leastBytes || byteLength > mostBytes || byteLength !== buffer.byteLength) return;
  if (free.has(buffer)) return;
  const sameSize = freeBySize.get(byteLength) ?? [];
  freeBySize.set(byteLength, sameSize);
  sameSize.push(buffer);
  free.set(buffer, byteLength);
  freeBytes += byteLength;
  for (const [oldest, size] of free) {
    if (freeBytes <= mostBytes) return;
    const others = freeBySize.get(size) ?? [];
    others.splice(others.indexOf(oldest), 1);
    if (others.length === 0) freeBySize.delete(size);
    forget(oldest);
  }
}
