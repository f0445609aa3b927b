// Buffers that are written again instead of allocated anew: fresh ones cost their zeroes, page faults and searches for
// garbage, since V8 counts them against its heap. Whoever takes a buffer owns it until it gives it back, and gives it
// back once, when nothing reads or writes it any more: its bytes change afterwards.

import { assert } from './assert.ts';

/** Buffers that nobody uses, by size and by how long they have been here. */
export class FreeBuffers {
  readonly #bySize = new Map<number, ArrayBuffer[]>();
  /** The longest unused first. */
  readonly #order = new Set<ArrayBuffer>();
  #bytes = 0;

  /** Of all of them. */
  get bytes(): number {
    return this.#bytes;
  }

  has(buffer: ArrayBuffer): boolean {
    return this.#order.has(buffer);
  }

  /** The buffer of exactly so many bytes that came last; undefined where there is none. It is not here any more. */
  take(byteLength: number): ArrayBuffer | undefined {
    const buffer = this.#bySize.get(byteLength)?.pop();
    if (buffer === undefined) return undefined;
    this.#forget(buffer, byteLength);
    assert(buffer.byteLength === byteLength, 'memory was moved elsewhere after it had been given back');
    return buffer;
  }

  /** A buffer that is not here comes. */
  give(buffer: ArrayBuffer): void {
    const sameSize = this.#bySize.get(buffer.byteLength) ?? [];
    this.#bySize.set(buffer.byteLength, sameSize);
    sameSize.push(buffer);
    this.#order.add(buffer);
    this.#bytes += buffer.byteLength;
  }

  /** Lets the longest unused go until no more than so many bytes are left; `discard` is called with each. */
  shrink(mostBytes: number, discard: (buffer: ArrayBuffer) => void = () => {}): void {
    for (const buffer of this.#order) {
      if (this.#bytes <= mostBytes) return;
      const { byteLength } = buffer;
      const sameSize = this.#bySize.get(byteLength) ?? [];
      sameSize.splice(sameSize.indexOf(buffer), 1);
      if (sameSize.length === 0) this.#bySize.delete(byteLength);
      this.#forget(buffer, byteLength);
      discard(buffer);
    }
  }

  #forget(buffer: ArrayBuffer, byteLength: number): void {
    this.#order.delete(buffer);
    this.#bytes -= byteLength;
  }
}

/**
 * Free buffers by size. Free ones and those that are out never take more together than those that were out at once at
 * the peak since `trim`: what does not fit goes, the longest unused first.
 */
export class BufferPool {
  readonly #free = new FreeBuffers();
  readonly #discard: (buffer: ArrayBuffer) => void;
  #outBytes = 0;
  #peakBytes = 0;

  /** `discard`: frees a buffer's memory at once. Default: it is left to the garbage collector. */
  constructor(discard: (buffer: ArrayBuffer) => void = () => {}) {
    this.#discard = discard;
  }

  /** Bytes of the free buffers. */
  get freeBytes(): number {
    return this.#free.bytes;
  }

  /** A buffer of exactly so many bytes, which hold anything. */
  take(byteLength: number): ArrayBuffer {
    const found = this.#free.take(byteLength);
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
    assert(!this.#free.has(buffer), 'a buffer was given back twice');
    this.leave(buffer.byteLength);
    if (buffer.byteLength === 0) return;
    this.#free.give(buffer);
    this.#makeRoom();
  }

  /** Lets go of all free buffers, and begins the peak anew; unless they take fewer than `leastBytes`. */
  trim(leastBytes = 0): void {
    if (this.#free.bytes < leastBytes) return;
    this.#peakBytes = this.#outBytes;
    this.#makeRoom();
  }

  #makeRoom(): void {
    this.#free.shrink(this.#peakBytes - this.#outBytes, this.#discard);
  }
}
