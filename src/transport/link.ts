// The one way in which devices talk: framed messages over an ordered, reliable, authenticated link. Adapters:
// memory.ts, websocket.ts. All adapters run testing/link-suite.ts.

import type { Tensor } from '../graph/tensor.ts';

/**
 * Order on a busy link: control first, then pipeline tensors, then replication. Frames of one priority keep their
 * order.
 */
export type Priority = 'control' | 'pipeline' | 'bulk';

/** One message. `control` is JSON for the receiver to validate; tensors travel as raw bytes. */
export interface Frame {
  /**
   * What the frame is, such as 'hello', 'activation', 'all-reduce': a lower-case letter, then letters, digits and
   * dashes; at most 32.
   */
  readonly kind: string;
  /** Membership epoch of the sender; frames of another epoch are dropped by the receiver's state machine. */
  readonly epoch: number;
  /** Round, or −1. */
  readonly round: number;
  /** Micro-batch (or piece), or −1. */
  readonly microBatch: number;
  /** JSON; at most 1 MiB of text and 32 levels deep by default. */
  readonly control?: unknown;
  /**
   * At most rank 8. Each received tensor has an ArrayBuffer of its own, which holds nothing else: the receiver may
   * detach it. An empty list arrives as no list.
   */
  readonly tensors?: readonly Tensor[];
}

/** Why a link ended. */
export interface LinkEnd {
  /** True when either side closed it on purpose. */
  readonly clean: boolean;
  /** One sentence; over a network it may have been cut to about 120 bytes. */
  readonly reason: string;
}

/** What a link carries. */
export interface LinkRate {
  readonly mbps: number;
  /** Milliseconds over which that was measured so far: those in which the link was busy. */
  readonly measuredMs: number;
}

/** Silence for which a peer is given up: usually, and one that may keep its thread with what it was asked for. */
export const silenceLimitsMs = { usual: 10_000, busy: 30_000 } as const;

/** A bidirectional link to one peer. */
export interface Link {
  /** The peer's name, for messages. */
  readonly peer: string;
  /**
   * Queues a frame; the default priority is 'pipeline'. Resolves when its memory is no longer needed (copied, or handed
   * to the operating system), so that awaiting it is back-pressure; until then its tensors must not change. Rejects
   * with RunError when the link has ended, or the frame is beyond the link's limits. Who does not await it learns of a
   * lost link from `ended`.
   */
  send(frame: Frame, priority?: Priority): Promise<void>;
  /**
   * Sets the one receiver, or replaces it. Frames that came before are kept (bounded: then the peer has to wait) and
   * delivered first. It must not throw: a throw ends the link with the error's message as the reason.
   */
  receive(handler: (frame: Frame) => void): void;
  /** Bytes accepted by send and not yet handed to the operating system. */
  queuedBytes(): number;
  /** What this end sent of late while the link was busy. Absent where nothing measures it. */
  rate?(): LinkRate;
  /**
   * The peer may keep its thread for a while (it reads a model, or compiles), or no more, from now on: how long it may
   * be silent before it is given up, `silenceLimitsMs`. Default: no. Absent where silence does not end links.
   */
  expectSilence?(isExpected: boolean): void;
  /**
   * Ends the link after the queue is flushed; `reason` reaches the peer. Resolves when the link has ended, in bounded
   * time.
   */
  close(reason: string): Promise<void>;
  /** Settles (never rejects) when the link has ended and nothing of it is open any more. */
  readonly ended: Promise<LinkEnd>;
}
