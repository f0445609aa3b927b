// The Link over anything that carries messages in order (a Wire): queueing, cutting into pieces, pacing, putting
// together, acknowledging, ending. All adapters are a Wire plus this. Whatever the peer sends wrongly ends the link
// with ProtocolError's sentence as the reason, nothing more.

import { type Clock, systemClock } from '../clock.ts';
import { ProtocolError, RunError } from '../errors.ts';
import { uninitialized } from '../memory.ts';
import { Assembler } from './assembler.ts';
import { defaultFrameLimits, encodeFrame, type FrameLimits } from './frame.ts';
import type { Frame, Link, LinkEnd, LinkRate, Priority } from './link.ts';
import { acknowledging, controlReserveBytes, maxWindowBytes, Pacer } from './pacer.ts';
import {
  type Announcement,
  type Carrier,
  checkTrailing,
  decodeMessage,
  encodeAcknowledgement,
  encodePiece,
} from './piece.ts';
import { SendQueue } from './queue.ts';

/** An ordered, reliable carrier of messages to one peer. */
export interface Wire extends Partial<Carrier> {
  /**
   * Takes messages to be sent in this order; `done` is called later, when their memory is no longer needed. Never
   * throws.
   */
  send(messages: readonly Uint8Array[], done: () => void): void;
  /** See Link. */
  expectSilence?(isExpected: boolean): void;
  /** Ends the wire after what was sent, telling the peer; the link's `wireEnded` follows in bounded time. */
  close(end: LinkEnd): void;
}

/** Bounds of a link's memory. */
export interface LinkLimits {
  readonly frame: FrameLimits;
  /**
   * What may wait in the outgoing queue, in bytes; a sender that queues more without waiting ends the link. Default 1
   * GiB.
   */
  readonly queueBytes: number;
  /**
   * Frames kept while there is no receiver, in bytes; beyond it nothing is acknowledged, so that the peer pauses.
   * Default 8 MiB.
   */
  readonly backlogBytes: number;
}

/** Limits that a training run does not meet. */
export const defaultLinkLimits: LinkLimits = { frame: defaultFrameLimits, queueBytes: 2 ** 30, backlogBytes: 2 ** 23 };

/** Options of a link over a wire. */
export interface WireLinkOptions {
  /** The peer's name. */
  readonly peer: string;
  /** Default: defaultLinkLimits. */
  readonly limits?: LinkLimits;
  /** Default: the system's. */
  readonly clock?: Clock;
}

/** What a peer may have sent beyond the last acknowledgement: its windows, and a little. */
const maxUnacknowledgedBytes = 2 * (maxWindowBytes + controlReserveBytes);
/** Bytes handed to the wire and not yet taken over by the operating system. */
const maxUnflushedBytes = 2 ** 21;
/** How long `close` waits for the queue to become shorter. */
const flushMs = 10_000;

/** A frame of which pieces have come. */
interface Arriving {
  readonly assembler: Assembler;
  byteCount: number;
}

interface Backlogged {
  readonly frame: Frame;
  readonly byteCount: number;
}

/** The one implementation of Link. Adapters call `message` and, once everything is closed, `wireEnded`. */
export class WireLink implements Link {
  readonly peer: string;
  readonly ended: Promise<LinkEnd>;
  readonly #wire: Wire;
  readonly #carrier: Carrier;
  readonly #limits: LinkLimits;
  readonly #clock: Clock;
  readonly #queue = new SendQueue();
  readonly #pacer = new Pacer();
  readonly #assemblers = new Map<Priority, Arriving>();
  #settle: (end: LinkEnd) => void = () => {};
  #state: 'open' | 'closing' | 'ended' = 'open';
  #closeReason = '';
  #end: LinkEnd | undefined;
  #cancelFlush: () => void = () => {};
  #cancelPump: () => void = () => {};
  #sentCount = 0;
  #receivedCount = 0;
  #unflushedBytes = 0;
  #receivedBytes = 0;
  #receivedAtMs = 0;
  #acknowledgedBytes = 0;
  #acknowledgedAtMs = Number.NEGATIVE_INFINITY;
  #cancelAcknowledge: (() => void) | undefined;
  #announced: { readonly piece: Announcement & { kind: 'piece' }; readonly arriving: Arriving } | undefined;
  /** Where messages with a header are read. */
  #headerRoom: Uint8Array = new Uint8Array(0);
  #handler: ((frame: Frame) => void) | undefined;
  #backlog: Backlogged[] = [];
  #backlogBytes = 0;

  constructor(wire: Wire, options: WireLinkOptions) {
    this.#wire = wire;
    this.#carrier = { isProven: wire.isProven ?? false };
    this.peer = options.peer;
    this.#limits = options.limits ?? defaultLinkLimits;
    this.#clock = options.clock ?? systemClock;
    this.ended = new Promise((resolve) => {
      this.#settle = resolve;
    });
  }

  send(frame: Frame, priority: Priority = 'pipeline'): Promise<void> {
    const sending = this.#send(frame, priority);
    // Whoever does not wait for a frame learns of the link's end from `ended`; that must not kill the process.
    sending.catch(() => {});
    return sending;
  }

  async #send(frame: Frame, priority: Priority): Promise<void> {
    if (this.#state !== 'open') throw this.#endedError();
    const parts = encodeFrame(frame, { limits: this.#limits.frame, checksum: false });
    const sending = this.#queue.add(priority, parts);
    if (this.#queue.bytes > Math.max(this.#limits.queueBytes, this.#limits.frame.frameBytes)) {
      this.#fail(`more than ${this.#limits.queueBytes} bytes wait to be sent to ${this.peer}`);
    }
    this.#pump();
    return sending;
  }

  receive(handler: (frame: Frame) => void): void {
    this.#handler = handler;
    if (this.#backlog.length > 0) queueMicrotask(() => this.#drainBacklog());
  }

  queuedBytes(): number {
    return this.#queue.bytes;
  }

  rate(): LinkRate {
    return this.#pacer.rate;
  }

  expectSilence(isExpected: boolean): void {
    this.#wire.expectSilence?.(isExpected);
  }

  async close(reason: string): Promise<void> {
    if (this.#state === 'open') {
      this.#state = 'closing';
      this.#closeReason = reason;
      this.#watchFlush();
      this.#closeWhenFlushed();
    }
    await this.ended;
  }

  /** While the link is closing: the queue has to become shorter all the time. */
  #watchFlush(): void {
    const byteCount = this.#queue.bytes;
    this.#cancelFlush = this.#clock.after(flushMs, () => {
      if (this.#queue.bytes < byteCount) this.#watchFlush();
      else this.#fail(`${this.peer} took nothing of the rest of the queue for ${flushMs / 1000} s`);
    });
  }

  /**
   * Memory for the next message, which then comes to `message`: where it is (part of) a tensor, the tensor's own. It is
   * good until the message after begins. Undefined where the message is not wanted any more.
   */
  room(byteCount: number): Uint8Array | undefined {
    if (this.#state === 'ended') return undefined;
    if (this.#announced?.piece.trailingBytes === byteCount)
      return this.#announced.arriving.assembler.room(byteCount) ?? uninitialized(byteCount);
    if (this.#headerRoom.length < byteCount) this.#headerRoom = uninitialized(Math.max(1024, 2 * byteCount));
    return this.#headerRoom.subarray(0, byteCount);
  }

  /** A message has come over the wire. */
  message(message: Uint8Array): void {
    if (this.#state === 'ended') return;
    try {
      this.#take(message);
      this.#acknowledge();
    } catch (error) {
      this.#fail(error instanceof Error ? error.message : String(error));
    }
  }

  /** The wire has ended, by whomever; nothing of it is open any more. */
  wireEnded(end: LinkEnd): void {
    this.#stop(end);
    this.#settle(this.#end ?? end);
  }

  /**
   * Ends the link because something is wrong on it: at once for its users, and for `ended` when the wire has closed.
   */
  #fail(reason: string): void {
    if (this.#state === 'ended') return;
    const end = { clean: false, reason };
    this.#stop(end);
    this.#wire.close(end);
  }

  #stop(end: LinkEnd): void {
    if (this.#state === 'ended') return;
    this.#state = 'ended';
    this.#end = end;
    this.#cancelFlush();
    this.#cancelPump();
    this.#cancelAcknowledge?.();
    this.#assemblers.clear();
    this.#queue.clear(this.#endedError());
  }

  #endedError(): RunError {
    return new RunError(`the link to ${this.peer} has ended: ${this.#end?.reason ?? this.#closeReason}`);
  }

  #closeWhenFlushed(): void {
    if (this.#state !== 'closing' || this.#queue.bytes > 0) return;
    this.#cancelFlush();
    // One more numbered message, so that a lost last frame is noticed before the close.
    this.#sendAcknowledgement();
    this.#wire.close({ clean: true, reason: this.#closeReason });
  }

  #pump(): void {
    while (this.#state !== 'ended') {
      const lane = this.#queue.nextLane;
      if (lane === undefined) return;
      const waitMs = this.#pacer.waitMs(lane, this.#clock.now());
      if (waitMs > 0) {
        this.#pumpLater(waitMs);
        return;
      }
      if (this.#unflushedBytes >= maxUnflushedBytes + (lane === 'control' ? controlReserveBytes : 0)) return;
      const outgoing = this.#queue.take(lane, this.#pacer.pieceBytes(lane));
      const messages = encodePiece(outgoing.piece, this.#nextSequence(), this.#carrier);
      const byteCount = messages.reduce((sum, message) => sum + message.length, 0);
      this.#pacer.sent(byteCount, this.#clock.now());
      this.#unflushedBytes += byteCount;
      this.#wire.send(messages, () => {
        this.#unflushedBytes -= byteCount;
        outgoing.done();
        this.#pump();
        this.#closeWhenFlushed();
      });
    }
  }

  #pumpLater(waitMs: number): void {
    this.#cancelPump();
    this.#cancelPump = waitMs < Number.POSITIVE_INFINITY ? this.#clock.after(waitMs, () => this.#pump()) : () => {};
  }

  #nextSequence(): number {
    const sequence = this.#sentCount;
    this.#sentCount = (this.#sentCount + 1) >>> 0;
    return sequence;
  }

  #take(message: Uint8Array): void {
    const announced = this.#announced;
    if (announced !== undefined) {
      this.#announced = undefined;
      checkTrailing(announced.piece, message);
      this.#addToFrame(announced.arriving, announced.piece, message);
      return;
    }
    const decoded = decodeMessage(message, this.#receivedCount, this.#carrier);
    this.#receivedCount = (this.#receivedCount + 1) >>> 0;
    if (decoded.kind === 'acknowledgement') {
      this.#pacer.acknowledge(decoded, this.#clock.now());
      this.#pump();
    } else {
      const arriving = this.#arrivingFrame(decoded);
      if (decoded.trailingBytes === 0) {
        this.#addToFrame(arriving, decoded, decoded.inline);
      } else {
        arriving.assembler.write(decoded.inline);
        this.#announced = { piece: decoded, arriving };
      }
    }
    if (decoded.kind === 'piece') this.#receivedBytes += message.length + decoded.trailingBytes;
    if (this.#receivedBytes - this.#acknowledgedBytes > maxUnacknowledgedBytes)
      throw new ProtocolError(`${this.peer} sends more than it was allowed to`);
  }

  /** The frame that a piece belongs to: a new one, or the one under way in its lane. */
  #arrivingFrame({ lane, first, inline, trailingBytes }: Announcement & { kind: 'piece' }): Arriving {
    const current = this.#assemblers.get(lane);
    if (first !== (current === undefined))
      throw new ProtocolError(`a piece of the ${lane} lane does not continue the one before`);
    const arriving = current ?? { assembler: new Assembler(this.#limits.frame), byteCount: 0 };
    this.#assemblers.set(lane, arriving);
    arriving.byteCount += inline.length + trailingBytes;
    return arriving;
  }

  /** The last bytes of a piece, which may be the frame's. */
  #addToFrame(
    { assembler, byteCount }: Arriving,
    { lane, last }: Announcement & { kind: 'piece' },
    bytes: Uint8Array,
  ): void {
    this.#receivedAtMs = this.#clock.now();
    assembler.write(bytes);
    if (!last) return;
    this.#assemblers.delete(lane);
    this.#deliver(assembler.finish(), byteCount);
  }

  #deliver(frame: Frame, byteCount: number): void {
    if (this.#handler !== undefined && this.#backlog.length === 0) {
      this.#handler(frame);
    } else {
      this.#backlog.push({ frame, byteCount });
      this.#backlogBytes += byteCount;
    }
  }

  #drainBacklog(): void {
    try {
      for (let next = this.#backlog[0]; next !== undefined && this.#handler !== undefined; next = this.#backlog[0]) {
        this.#backlog.shift();
        this.#backlogBytes -= next.byteCount;
        this.#handler(next.frame);
      }
      this.#acknowledge();
    } catch (error) {
      this.#backlog = [];
      this.#fail(error instanceof Error ? error.message : String(error));
    }
  }

  #acknowledge(): void {
    const byteCount = this.#receivedBytes - this.#acknowledgedBytes;
    if (this.#state === 'ended' || this.#backlogBytes > this.#limits.backlogBytes) return;
    if (byteCount < acknowledging.leastBytes || this.#announced !== undefined) return;
    const atMs = this.#clock.now();
    const waitMs = this.#acknowledgedAtMs + acknowledging.intervalMs - atMs;
    if (waitMs > 0 && byteCount < acknowledging.mostBytes) {
      this.#cancelAcknowledge ??= this.#clock.after(waitMs, () => {
        this.#cancelAcknowledge = undefined;
        this.#acknowledge();
      });
      return;
    }
    this.#acknowledgedAtMs = atMs;
    this.#sendAcknowledgement();
  }

  #sendAcknowledgement(): void {
    this.#acknowledgedBytes = this.#receivedBytes;
    this.#wire.send(
      [encodeAcknowledgement({ byteCount: this.#receivedBytes, atMs: this.#receivedAtMs }, this.#nextSequence())],
      () => {},
    );
  }
}
