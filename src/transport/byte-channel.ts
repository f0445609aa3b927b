// A two-way stream of bytes, as far as links need one: a socket, or what a relay passes on.

/** What a channel brings. */
export interface ChannelReceiver {
  /** The next bytes, which the receiver may keep. */
  bytes(bytes: Uint8Array): void;
  /** Nothing comes any more, and nothing can be sent. */
  ended(reason: string): void;
}

/** Bytes in order, to one other end and from it. */
export interface ByteChannel {
  /** Sends bytes; `done` is called later, when their memory is no longer needed. Never throws. */
  write(bytes: Uint8Array, done: () => void): void;
  /** Sets the one receiver. What came before is kept for it. */
  receive(receiver: ChannelReceiver): void;
  /** Ends both directions after what was written; `ended` follows. */
  close(): void;
}
