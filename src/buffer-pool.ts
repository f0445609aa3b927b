// Pools of reusable buffers: fresh ones cost zeroing, page faults and garbage collections, since V8 counts them against
// its heap. A caller owns a buffer from `take` until `give`, and must give it back exactly once, when nothing reads or
// writes it any more: its bytes change afterwards.

import { assert } from './assert.ts';

/** Free buffers, by size and by how long they have been unused. */
export class FreeBuffers {
  readonly #bySize = new Map<number, ArrayBuffer[]>();
  /** The longest unused first. */
  readonly #order = new Set<ArrayBuffer>();
  #bytes = 0;

  /** Bytes of all buffers together. */
  get bytes(): number {
    return this.#bytes;
  }

  has(buffer: ArrayBuffer): boolean {
    return this.#order.has(buffer);
  }

  /** Removes and returns the most recently added buffer of exactly this size; undefined if there is none. */
  take(byteLength: number): ArrayBuffer | undefined {
    const buffer = this.#bySize.get(byteLength)?.pop();
    if (buffer === undefined) return undefined;
    this.#forget(buffer, byteLength);
    assert(buffer.byteLength === byteLength, 'memory was moved elsewhere after it had been given back');
    return buffer;
  }

  /** Adds a buffer; it must not be present. */
  give(buffer: ArrayBuffer): void {
    const sameSize = this.#bySize.get(buffer.byteLength) ?? [];
    this.#bySize.set(buffer.byteLength, sameSize);
    sameSize.push(buffer);
    this.#order.add(buffer);
    this.#bytes += buffer.byteLength;
  }

  /** Removes the longest unused buffers until at most `mostBytes` are left; calls `discard` with each. */
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
 * Free buffers by size. Free and used buffers together never exceed the peak of used ones since `trim`: the longest
 * unused ones beyond that are dropped.
 */
export class BufferPool {
  readonly #free = new FreeBuffers();
  readonly #discard: (buffer: ArrayBuffer) => void;
  #outBytes = 0;
  #peakBytes = 0;

  /** `discard` frees a buffer's memory at once. Default: it is left to the garbage collector. */
  constructor(discard: (buffer: ArrayBuffer) => void = () => {}) {
    this.#discard = discard;
  }

  /** Bytes of the free buffers. */
  get freeBytes(): number {
    return this.#free.bytes;
  }

  /** A buffer of exactly this size with arbitrary contents. */
  take(byteLength: number): ArrayBuffer {
    const found = this.#free.take(byteLength);
    this.adopt(byteLength);
    return found ?? new ArrayBuffer(byteLength);
  }

  /** Counts a buffer that was allocated elsewhere as used; the caller must call `give` or `leave` for it. */
  adopt(byteLength: number): void {
    this.#outBytes += byteLength;
    this.#peakBytes = Math.max(this.#peakBytes, this.#outBytes);
    this.#makeRoom();
  }

  /** Counts a used buffer as gone; it will not be given back. */
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

  /** Drops all free buffers and resets the peak, unless the free ones take fewer than `leastBytes`. */
  trim(leastBytes = 0): void {
    if (this.#free.bytes < leastBytes) return;
    this.#peakBytes = this.#outBytes;
    this.#makeRoom();
  }

  #makeRoom(): void {
    this.#free.shrink(this.#peakBytes - this.#outBytes, this.#discard);
  }
}
