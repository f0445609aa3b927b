// Records in a stream of bytes: a kind, a length, and so many bytes.
//
//   0 kind   1 bytes after the head (big-endian)   5 the bytes

import { ProtocolError } from '../errors.ts';

/** Bytes before a record's own. */
export const recordHeadBytes = 5;

/** What a stream is made of. */
export interface StreamRecord {
  readonly kind: number;
  /** As it came. */
  readonly head: Uint8Array;
  readonly body: Uint8Array;
}

/** The head of a record. */
export function recordHead(kind: number, byteCount: number): Uint8Array {
  const head = new Uint8Array(recordHeadBytes);
  head[0] = kind;
  new DataView(head.buffer).setUint32(1, byteCount);
  return head;
}

/** Cuts a stream into its records, whatever the pieces in which it comes. It keeps one record at most. */
export class RecordReader {
  readonly #maxBytes: number;
  #head = new Uint8Array(recordHeadBytes);
  #body: Uint8Array | undefined;
  /** Bytes of the head, or of the body if there is one, that have come. */
  #filled = 0;

  /** `maxBytes`: of a record's body. */
  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  /** Takes the next bytes; `onRecord` gets what they complete. Throws ProtocolError for a record that is too long. */
  take(bytes: Uint8Array, onRecord: (record: StreamRecord) => void): void {
    for (let at = 0; at < bytes.length || this.#isBodyWhole(); ) {
      if (this.#body === undefined) {
        at += this.#fill(this.#head, bytes, at);
        if (this.#filled === recordHeadBytes) this.#begin();
      } else {
        at += this.#fill(this.#body, bytes, at);
        if (this.#isBodyWhole()) this.#finish(onRecord);
      }
    }
  }

  #fill(target: Uint8Array, bytes: Uint8Array, at: number): number {
    const part = bytes.subarray(at, at + target.length - this.#filled);
    target.set(part, this.#filled);
    this.#filled += part.length;
    return part.length;
  }

  #begin(): void {
    const byteCount = new DataView(this.#head.buffer).getUint32(1);
    if (byteCount > this.#maxBytes)
      throw new ProtocolError(`a record announces ${byteCount} bytes, above the limit of ${this.#maxBytes}`);
    this.#body = new Uint8Array(byteCount);
    this.#filled = 0;
  }

  #isBodyWhole(): boolean {
    return this.#body !== undefined && this.#filled === this.#body.length;
  }

  #finish(onRecord: (record: StreamRecord) => void): void {
    const [head, body] = [this.#head, this.#body as Uint8Array];
    this.#head = new Uint8Array(recordHeadBytes);
    this.#body = undefined;
    this.#filled = 0;
    onRecord({ kind: head[0] as number, head, body });
  }
}
