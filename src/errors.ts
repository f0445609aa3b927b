// The errors a caller can act on. Every message is one sentence: what is wrong, where, and the fix.
// Mistakes of our own are not here: they are `assert` (assert.ts).

/** The user's input is wrong: a file, a flag, a model, a shape. The CLI exits with 2 and prints only the message. */
export class InputError extends Error {
  override readonly name = 'InputError';
}

/**
 * The run failed for a reason outside the input: a worker died, a port is taken, a disk is full. The CLI exits with 1.
 */
export class RunError extends Error {
  override readonly name = 'RunError';
}

/** A peer sent something that the protocol does not allow. It costs that peer its connection, never the process. */
export class ProtocolError extends Error {
  override readonly name = 'ProtocolError';
  /** Who sent it, where that is not the one whose link is at hand. */
  readonly peer: string | undefined;

  constructor(message: string, { peer }: { readonly peer?: string } = {}) {
    super(message);
    this.peer = peer;
  }
}
