// Pieces put together into frames again, one frame of a lane at a time. Each tensor ends up in memory of its own that
// nothing else shares, so that its receiver may hand it on (detach it) freely. A carrier may read a tensor's bytes
// straight into that memory (`room`); other bytes are copied once. Memory is allocated for a tensor when its first byte
// comes, never for an announced size alone.

import { ProtocolError } from '../errors.ts';
import { allocate, type Tensor, viewBytes } from '../graph/tensor.ts';
import {
  decodeFixedHead,
  decodeHead,
  type FixedHead,
  type FrameHead,
  type FrameLimits,
  fixedHeadBytes,
  type TensorLayout,
} from './frame.ts';
import type { Frame } from './link.ts';
import { takeMemory } from './tensor-memory.ts';

/** One frame as it grows. */
export class Assembler {
  readonly #limits: FrameLimits;
  #fixed: FixedHead | undefined;
  /** The bytes of the head so far: first the fixed part, then all of it. */
  #headBytes = new Uint8Array(fixedHeadBytes);
  #head: FrameHead | undefined;
  readonly #tensors: Tensor[] = [];
  /** The tensor under way. */
  #current: { readonly tensor: Tensor; readonly bytes: Uint8Array } | undefined;
  /** Bytes of the frame so far. */
  #position = 0;

  constructor(limits: FrameLimits) {
    this.#limits = limits;
  }

  /**
   * The place of the frame's next `byteCount` bytes, if one tensor has them all: to be filled and then written. Changes
   * nothing that counts.
   */
  room(byteCount: number): Uint8Array | undefined {
    const layout = this.#head?.layouts[this.#tensors.length];
    const filled = layout === undefined ? -1 : this.#position - layout.offset;
    if (layout === undefined || filled < 0 || filled + byteCount > layout.byteLength) return undefined;
    this.#current ??= tensorOf(layout);
    return this.#current.bytes.subarray(filled, filled + byteCount);
  }

  /** Adds the frame's next bytes. Throws ProtocolError. */
  write(bytes: Uint8Array): void {
    let rest = bytes;
    while (rest.length > 0) {
      const used = this.#head === undefined ? this.#writeHead(rest) : this.#writeTensor(this.#head, rest);
      this.#position += used;
      rest = rest.subarray(used);
      if (this.#head === undefined && this.#position === this.#headBytes.length) this.#growHead();
    }
  }

  /** The whole frame. Throws ProtocolError when bytes are missing. */
  finish(): Frame {
    const head = this.#head;
    if (head === undefined || this.#position < head.totalBytes)
      throw new ProtocolError(`a frame ended after ${this.#position} bytes, before its announced end`);
    if (head.layouts.length === 0) return head.frame;
    for (const layout of head.layouts.slice(this.#tensors.length)) this.#tensors.push(empty(layout));
    return { ...head.frame, tensors: this.#tensors };
  }

  #writeHead(bytes: Uint8Array): number {
    const used = Math.min(bytes.length, this.#headBytes.length - this.#position);
    this.#headBytes.set(bytes.subarray(0, used), this.#position);
    return used;
  }

  #growHead(): void {
    if (this.#fixed === undefined) {
      this.#fixed = decodeFixedHead(this.#headBytes, this.#limits);
      const whole = new Uint8Array(this.#fixed.headBytes);
      whole.set(this.#headBytes);
      this.#headBytes = whole;
    }
    if (this.#position === this.#fixed.headBytes) this.#head = decodeHead(this.#headBytes, this.#limits);
  }

  #writeTensor(head: FrameHead, bytes: Uint8Array): number {
    const layout = head.layouts[this.#tensors.length];
    if (layout === undefined) throw new ProtocolError(`a frame of ${head.totalBytes} bytes goes on beyond its end`);
    if (this.#position < layout.offset) return Math.min(bytes.length, layout.offset - this.#position); // padding
    if (layout.byteLength === 0) {
      this.#tensors.push(empty(layout));
      return 0;
    }
    const filled = this.#position - layout.offset;
    this.#current ??= tensorOf(layout);
    const used = Math.min(bytes.length, layout.byteLength - filled);
    if (!isAt(bytes, this.#current.bytes, filled)) this.#current.bytes.set(bytes.subarray(0, used), filled);
    if (filled + used === layout.byteLength) {
      this.#tensors.push(this.#current.tensor);
      this.#current = undefined;
    }
    return used;
  }
}

/** A tensor whose memory holds whatever was there: it is handed out when all of it has been written. */
function tensorOf({ type, shape, byteLength }: TensorLayout): { readonly tensor: Tensor; readonly bytes: Uint8Array } {
  const bytes = takeMemory(byteLength);
  return { tensor: { type, shape, data: viewBytes(type, bytes) }, bytes };
}

/** True for bytes that lie at this place already. */
function isAt(bytes: Uint8Array, target: Uint8Array, offset: number): boolean {
  return bytes.buffer === target.buffer && bytes.byteOffset === target.byteOffset + offset;
}

function empty({ type, shape }: TensorLayout): Tensor {
  return { type, shape, data: allocate(type, 0) };
}
