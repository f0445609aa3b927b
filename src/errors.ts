// Errors that a caller can act on. Every message is one sentence: what is wrong, where, and the fix. Internal errors
// are `assert` failures (assert.ts).

/** The user's input is wrong: a file, a flag, a model, a shape. The CLI exits with 2 and prints only the message. */
export class InputError extends Error {
  override readonly name = 'InputError';

  /** What a file or a flag says may be part of the message: its line breaks and control characters are escaped. */
  constructor(message = '', options: ErrorOptions = {}) {
    super(onOneLine(message), options);
  }
}

function onOneLine(message: string): string {
  return message.replace(/\p{Cc}/gu, (character) => JSON.stringify(character).slice(1, -1));
}

/**
 * The run failed for a reason outside the input: a worker died, a port is taken, a disk is full. The CLI exits with 1.
 */
export class RunError extends Error {
  override readonly name = 'RunError';
}

/** A peer violated the protocol. Its connection is closed; the process continues. */
export class ProtocolError extends Error {
  override readonly name = 'ProtocolError';
  /** The sender, if it is not the peer of the link at hand. */
  readonly peer: string | undefined;

  constructor(message: string, { peer }: { readonly peer?: string } = {}) {
    super(message);
    this.peer = peer;
  }
}
