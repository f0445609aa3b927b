// Memory that is about to be written whole: not cleared first where the platform can do without.

interface MaybeNode {
  readonly Buffer?: { allocUnsafeSlow(byteLength: number): Uint8Array };
}

/** So many bytes of any contents, in a buffer of their own. */
export function uninitialized(byteLength: number): Uint8Array<ArrayBuffer> {
  const { Buffer } = globalThis as MaybeNode;
  return (Buffer?.allocUnsafeSlow(byteLength) ?? new Uint8Array(byteLength)) as Uint8Array<ArrayBuffer>;
}
