// The one way in which devices talk: framed messages over an ordered, reliable, authenticated link. Adapters: memory.ts, websocket.ts.
// All adapters run testing/link-suite.ts.

import type { Tensor } from '../graph/tensor.ts';

/** Order on a busy link: control first, then pipeline tensors, then replication. */
export type Priority = 'control' | 'pipeline' | 'bulk';

/** One message. `control` is JSON for the receiver to validate; tensors travel as raw bytes and arrive as views, without copies. */
export interface Frame {
  /** What the frame is, such as 'hello', 'activation', 'gradient', 'all-reduce', 'weights'. At most 32 ASCII characters. */
  readonly kind: string;
  /** Membership epoch of the sender; frames of another epoch are dropped by the receiver's state machine. */
  readonly epoch: number;
  /** Round, or −1. */
  readonly round: number;
  /** Micro-batch (or piece), or −1. */
  readonly microBatch: number;
  readonly control?: unknown;
  readonly tensors?: readonly Tensor[];
}

/** Why a link ended. */
export interface LinkEnd {
  /** True when either side closed it on purpose. */
  readonly clean: boolean;
  readonly reason: string;
}

/** A bidirectional link to one peer. */
export interface Link {
  /** The peer's name, for messages. */
  readonly peer: string;
  /**
   * Queues a frame. Resolves when the link will take more (its queue is below the limit in bytes), so that awaiting it is back-pressure.
   * Rejects with RunError once the link has ended. The frame's tensors must not change until then.
   */
  send(frame: Frame, priority?: Priority): Promise<void>;
  /** Sets the one receiver. Frames that came before are kept (bounded) and delivered first. It must not throw: a throw ends the link with ProtocolError's message. */
  receive(handler: (frame: Frame) => void): void;
  /** Bytes accepted by send and not yet handed to the operating system. */
  queuedBytes(): number;
  /** Ends the link after the queue is flushed; `reason` reaches the peer. */
  close(reason: string): Promise<void>;
  /** Settles (never rejects) when the link has ended. */
  readonly ended: Promise<LinkEnd>;
}
