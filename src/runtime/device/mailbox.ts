// Where frames that arrive early wait for the instruction that wants them. Bounded in bytes; each key is delivered
// exactly once.

import { ProtocolError } from '../../errors.ts';
import type { Frame } from '../../transport/link.ts';

/** What a frame is filed under. */
export interface MailKey {
  readonly kind: string;
  readonly round: number;
  readonly microBatch: number;
  readonly from: string;
}

interface Waiting {
  readonly resolve: (frame: Frame) => void;
  readonly reject: (error: Error) => void;
}

/** Frames may be empty; their number is bounded too. */
const maxFrameCount = 100_000;

/** A keyed, bounded store of received frames. */
export class Mailbox {
  readonly #limitBytes: number;
  readonly #frames = new Map<string, Frame>();
  readonly #waiting = new Map<string, Waiting>();
  #bytes = 0;
  #room: { readonly count: number; readonly resolve: () => void } | undefined;
  #failure: Error | undefined;

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes;
  }

  /**
   * Files a frame, or gives it to the one who waits. Throws ProtocolError for a frame that came before or beyond the
   * limit.
   */
  put(key: MailKey, frame: Frame): void {
    const id = keyText(key);
    const waiting = this.#waiting.get(id);
    if (waiting !== undefined) {
      this.#waiting.delete(id);
      waiting.resolve(frame);
      return;
    }
    if (this.#frames.has(id))
      throw new ProtocolError(`${key.from} sent ${key.kind} ${key.microBatch} of round ${key.round} twice.`);
    const bytes = frameBytes(frame);
    if (this.#bytes + bytes > this.#limitBytes || this.#frames.size >= maxFrameCount) {
      throw new ProtocolError(
        `${key.from} sent more than the ${this.#limitBytes} bytes, or ${maxFrameCount} frames, that may wait here.`,
      );
    }
    this.#frames.set(id, frame);
    this.#bytes += bytes;
  }

  /** The frame filed under `key`, as soon as it is there. Rejects when the mailbox fails. */
  take(key: MailKey): Promise<Frame> {
    const id = keyText(key);
    const frame = this.#frames.get(id);
    if (frame !== undefined) {
      this.#frames.delete(id);
      this.#bytes -= frameBytes(frame);
      this.#makeRoom();
      return Promise.resolve(frame);
    }
    if (this.#failure !== undefined) return Promise.reject(this.#failure);
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#makeRoom();
    });
  }

  /**
   * For one sender that would else put everything here at once: resolves when fewer than `count` frames lie here, or
   * somebody waits for one that does not; undefined where that is so now.
   */
  room(count: number): Promise<void> | undefined {
    if (this.#hasRoom(count)) return undefined;
    return new Promise((resolve) => {
      this.#room = { count, resolve };
    });
  }

  #hasRoom(count: number): boolean {
    return this.#frames.size < count || this.#waiting.size > 0 || this.#failure !== undefined;
  }

  #makeRoom(): void {
    if (this.#room === undefined || !this.#hasRoom(this.#room.count)) return;
    this.#room.resolve();
    this.#room = undefined;
  }

  /** Rejects all who wait, now and later. */
  fail(error: Error): void {
    this.#failure ??= error;
    for (const waiting of this.#waiting.values()) waiting.reject(error);
    this.#waiting.clear();
    this.#frames.clear();
    this.#bytes = 0;
    this.#makeRoom();
  }

  /** Bytes that wait. */
  get bytes(): number {
    return this.#bytes;
  }
}

function keyText(key: MailKey): string {
  return `${key.kind}/${key.round}/${key.microBatch}/${key.from}`;
}

function frameBytes(frame: Frame): number {
  return (frame.tensors ?? []).reduce((sum, tensor) => sum + tensor.data.byteLength, 0);
}
