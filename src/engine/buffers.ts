// Buffers that change hands. A buffer is moved only where one array fills it: others may hold views of the rest.

import type { ElementArray } from '../graph/tensor.ts';

/** True where the array fills its buffer and the buffer can be moved: no shared memory, nothing else in it. */
export function fillsBuffer(data: ElementArray): data is ElementArray & { readonly buffer: ArrayBuffer } {
  return data.buffer instanceof ArrayBuffer && data.byteLength === data.buffer.byteLength;
}

/** The array itself where it may be moved, else a copy that may. */
export function movable<A extends ElementArray>(data: A): A & { readonly buffer: ArrayBuffer } {
  return (fillsBuffer(data) ? data : data.slice()) as A & { readonly buffer: ArrayBuffer };
}

/**
 * Never touched, so it costs nothing. The GNU C library returns the pages of every large block to the system until it
 * has seen one of this size freed (its limit is 32 MiB); from then on it keeps them. A run with 1 MiB in and out took
 * 950 µs before and 88 µs after.
 */
const largestFreed = 31 * 2 ** 20;

let drain: InstanceType<typeof MessageChannel>['port1'] | undefined;

/**
 * Frees the memory of an array now; the array is empty afterwards. Does nothing where the array shares its buffer with
 * others. Waiting for the garbage collector instead holds tens of megabytes more and makes the next run fault in new
 * pages (1.1 ms instead of 0.4 for a run with an output of 4 MiB). A message to a port whose other end is closed is
 * dropped at once, and what it carried with it.
 */
export function discard(data: ElementArray): void {
  if (fillsBuffer(data)) discardBuffer(data.buffer);
}

/** Frees the memory of a buffer that nobody else uses, at once. */
export function discardBuffer(buffer: ArrayBuffer): void {
  if (buffer.byteLength === 0) return;
  if (drain === undefined) {
    const channel = new MessageChannel();
    channel.port2.close();
    drain = channel.port1;
    drain.postMessage(undefined, [new ArrayBuffer(largestFreed)]);
  }
  drain.postMessage(undefined, [buffer]);
}
