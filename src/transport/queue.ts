// The outgoing queue of a link: one lane for each priority, a limit in bytes, and frames cut into pieces as they leave.
// Pure state: it knows no socket and no clock. The link (wire-link.ts) asks it for the next piece and informs it when a
// piece's memory is free again.

import { assert } from '../assert.ts';
import type { Priority } from './link.ts';
import { lanes, maxMessageBytes, type Piece } from './piece.ts';

/**
 * Parts shorter than this are copied into the message with the header: below it a second message costs as much as the
 * copy (bench/results).
 */
const inlineBelowBytes = 16_384;
/** Room for small parts in one message; the header needs a little. */
const maxInlineBytes = maxMessageBytes - 1024;

/** A frame in the queue. */
interface Entry {
  readonly lane: Priority;
  readonly parts: readonly Uint8Array[];
  partIndex: number;
  partOffset: number;
  started: boolean;
  /** Pieces handed out whose memory is still in use. */
  heldPieceCount: number;
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
}

/** A piece on its way out. */
export interface OutgoingPiece {
  readonly piece: Piece;
  /** Bytes of the frame in it. */
  readonly byteCount: number;
  /** To be called once, when the piece has been handed to the operating system. */
  readonly done: () => void;
}

/** Frames waiting to be sent, the most urgent first, each lane in its own order. */
export class SendQueue {
  readonly #waiting: Record<Priority, Entry[]> = { control: [], pipeline: [], bulk: [] };
  /** Frames whose promises are still open. */
  readonly #open = new Set<Entry>();
  #bytes = 0;
  #cleared = false;

  /** Bytes accepted and not yet done. */
  get bytes(): number {
    return this.#bytes;
  }

  /** The most urgent lane that has something. */
  get nextLane(): Priority | undefined {
    return lanes.find((lane) => this.#waiting[lane].length > 0);
  }

  /**
   * Adds an encoded frame. Settles when the frame's memory is no longer needed: all of it copied or handed to the
   * operating system.
   */
  add(lane: Priority, parts: readonly Uint8Array[]): Promise<void> {
    for (const part of parts) this.#bytes += part.length;
    return new Promise((resolve, reject) => {
      const entry: Entry = {
        lane,
        parts,
        partIndex: 0,
        partOffset: 0,
        started: false,
        heldPieceCount: 0,
        resolve,
        reject,
      };
      this.#waiting[lane].push(entry);
      this.#open.add(entry);
    });
  }

  /**
   * Takes a piece from the front of a lane: at most `maxBytes` of small parts up to the first long one, and at most as
   * much of that.
   */
  take(lane: Priority, maxBytes: number): OutgoingPiece {
    const entry = this.#waiting[lane][0];
    assert(entry !== undefined, `the ${lane} lane has something to send`);
    const inline: Uint8Array[] = [];
    let inlineBytes = 0;
    const inlineLimit = Math.min(maxInlineBytes, maxBytes);
    let trailing: Uint8Array | undefined;
    while (trailing === undefined && inlineBytes < inlineLimit) {
      const part = entry.parts[entry.partIndex];
      if (part === undefined) break;
      const left = part.length - entry.partOffset;
      const isLong = left >= inlineBelowBytes && part !== entry.parts[0];
      const length = Math.min(left, isLong ? maxBytes : inlineLimit - inlineBytes);
      const slice = part.subarray(entry.partOffset, entry.partOffset + length);
      if (isLong) {
        trailing = slice;
      } else {
        inline.push(slice);
        inlineBytes += length;
      }
      entry.partOffset += length;
      if (entry.partOffset === part.length) {
        entry.partIndex++;
        entry.partOffset = 0;
      }
    }
    const first = !entry.started;
    const last = entry.partIndex === entry.parts.length;
    entry.started = true;
    if (last) this.#waiting[lane].shift();
    return this.#outgoing(
      entry,
      { lane, first, last, inline, ...(trailing && { trailing }) },
      inlineBytes + (trailing?.length ?? 0),
    );
  }

  #outgoing(entry: Entry, piece: Piece, byteCount: number): OutgoingPiece {
    // What is inline is copied by the caller before any promise continues; only a trailing part keeps the frame's
    // memory in use.
    const holds = piece.trailing !== undefined;
    if (holds) entry.heldPieceCount++;
    else if (piece.last) this.#settle(entry);
    const done = (): void => {
      if (this.#cleared) return;
      this.#bytes -= byteCount;
      if (holds) {
        entry.heldPieceCount--;
        this.#settle(entry);
      }
    };
    return { piece, byteCount, done };
  }

  #settle(entry: Entry): void {
    if (entry.heldPieceCount > 0 || entry.partIndex < entry.parts.length) return;
    if (this.#open.delete(entry)) entry.resolve();
  }

  /** Drops everything for good; the promises of all frames that were not done reject with `error`. */
  clear(error: Error): void {
    this.#cleared = true;
    for (const lane of lanes) this.#waiting[lane].length = 0;
    for (const entry of this.#open) entry.reject(error);
    this.#open.clear();
    this.#bytes = 0;
  }
}
