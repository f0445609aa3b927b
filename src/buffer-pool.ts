// Buffers that are written again instead of allocated anew: fresh ones cost their zeroes, page faults and searches for garbage, since V8 counts them against its
// heap. Whoever takes a buffer owns it until it gives it back, and gives it back once, when nothing reads or writes it any more: its bytes change afterwards.

import { assert } from './assert.ts';

/** Where buffers come from. */
export interface BufferSource {
  /** A buffer of exactly so many bytes, which hold anything. */
  take(byteLength: number): ArrayBuffer;
}

/**
 * Free buffers by size. Free ones and those that are out never take more together than those that were out at once at the peak since `trim`: what does not
 * fit goes, the longest unused first.
 */
export class BufferPool implements BufferSource {
  readonly #free = new Map<number, ArrayBuffer[]>();
  /** The free buffers, the longest unused first. */
  readonly #order = new Set<ArrayBuffer>();
  readonly #discard: (buffer: ArrayBuffer) => void;
  #freeBytes = 0;
  #outBytes = 0;
  #peakBytes = 0;

  /** `discard`: frees a buffer's memory at once. Default: it is left to the garbage collector. */
  constructor(discard: (buffer: ArrayBuffer) => void = () => {}) {
    this.#discard = discard;
  }

  /** Bytes of the free buffers. */
  get freeBytes(): number {
    return this.#freeBytes;
  }

  take(byteLength: number): ArrayBuffer {
    const found = this.#free.get(byteLength)?.pop();
    if (found !== undefined) this.#forget(found);
    this.adopt(byteLength);
    return found ?? new ArrayBuffer(byteLength);
  }

  /** A buffer that was made elsewhere is out, and will be given back or leave. */
  adopt(byteLength: number): void {
    this.#outBytes += byteLength;
    this.#peakBytes = Math.max(this.#peakBytes, this.#outBytes);
    this.#makeRoom();
  }

  /** A buffer that was out is gone for good. */
  leave(byteLength: number): void {
    assert(byteLength <= this.#outBytes, `${byteLength} bytes leave of ${this.#outBytes}`);
    this.#outBytes -= byteLength;
  }

  /** Takes a buffer back. */
  give(buffer: ArrayBuffer): void {
    assert(!this.#order.has(buffer), 'a buffer was given back twice');
    this.leave(buffer.byteLength);
    if (buffer.byteLength === 0) return;
    const sameSize = this.#free.get(buffer.byteLength) ?? [];
    this.#free.set(buffer.byteLength, sameSize);
    sameSize.push(buffer);
    this.#order.add(buffer);
    this.#freeBytes += buffer.byteLength;
    this.#makeRoom();
  }

  /** Lets go of all free buffers, and begins the peak anew. */
  trim(): void {
    this.#peakBytes = this.#outBytes;
    this.#makeRoom();
  }

  #makeRoom(): void {
    for (const buffer of this.#order) {
      if (this.#outBytes + this.#freeBytes <= this.#peakBytes) return;
      const { byteLength } = buffer;
      const sameSize = this.#free.get(byteLength) ?? [];
      sameSize.splice(sameSize.indexOf(buffer), 1);
      if (sameSize.length === 0) this.#free.delete(byteLength);
      this.#forget(buffer);
      this.#discard(buffer);
    }
  }

  #forget(buffer: ArrayBuffer): void {
    this.#order.delete(buffer);
    this.#freeBytes -= buffer.byteLength;
  }
}
