// Shared by all file parsers: bytes with the name of their file, the common error for damaged files, and the type of
// the inflate function that the host passes in (node:zlib in storage/node/inflate.ts), which keeps parsing independent
// of the platform.

import { InputError } from '../../errors.ts';

/** A file's contents. `name` is its path, for messages. */
export interface Source {
  readonly name: string;
  readonly bytes: Uint8Array;
}

/**
 * Decompresses `bytes`. Throws (anything) if they are damaged or more than `maxBytes` would result. 'raw' is a bare
 * deflate stream (zip), 'gzip' a .gz file.
 */
export type Inflate = (bytes: Uint8Array, format: 'raw' | 'gzip', maxBytes: number) => Uint8Array;

/** Deflate's largest expansion (1,032 : 1); a larger claim is refused before any allocation. */
export const maxInflation = 1032;

/** The error for a file that violates its format. */
export function damaged(source: Source, format: string, offset: number, problem: string): InputError {
  return new InputError(
    `${source.name} is not a valid ${format} file: at byte ${offset} ${problem}; write or download it again.`,
  );
}

/** A name from a file, for a message: on one line, and shortened. */
export function shownName(name: string): string {
  const text = name.length > 100 ? `${name.slice(0, 100)}…` : name;
  return text.replace(/[\p{Cc}\u2028\u2029]/gu, '\ufffd');
}

/** The source over a plain Uint8Array: a Node Buffer's `slice` would not copy. */
export function plainSource(source: Source): Source {
  const { bytes } = source;
  if (Object.getPrototypeOf(bytes) === Uint8Array.prototype) return source;
  return { name: source.name, bytes: new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength) };
}

/** A DataView over the bytes. */
export function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** The product of dimensions, or undefined if it is not an exact integer. */
export function safeProduct(dimensions: readonly number[], factor: number): number | undefined {
  if (dimensions.includes(0)) return 0;
  let product = factor;
  for (const dimension of dimensions) {
    product *= dimension;
    if (!Number.isSafeInteger(product)) return undefined;
  }
  return product;
}

/** A copy with the bytes of each element reversed. */
export function swapBytes(bytes: Uint8Array, elementSize: number): Uint8Array {
  const swapped = new Uint8Array(bytes.length);
  for (let start = 0; start + elementSize <= bytes.length; start += elementSize) {
    for (let index = 0; index < elementSize; index++) {
      swapped[start + index] = bytes[start + elementSize - 1 - index] as number;
    }
  }
  return swapped;
}

/** True for a .gz file. */
export function isGzip(bytes: Uint8Array): boolean {
  return bytes.length >= 2 && bytes[0] === 0x1f && bytes[1] === 0x8b;
}

/** The contents of a .gz file (its name without the suffix), or the source itself if it is not compressed. */
export function gunzip(source: Source, inflate: Inflate): Source {
  const { name, bytes } = source;
  if (!isGzip(bytes)) return source;
  if (bytes.length < 18) throw damaged(source, 'gzip', bytes.length, `the file ends, and 18 bytes are the least`);
  // The last four bytes are the contents' length: a limit before inflating.
  const length = viewOf(bytes).getUint32(bytes.length - 4, true);
  if (length > bytes.length * maxInflation)
    throw damaged(source, 'gzip', bytes.length - 4, `the length ${length} is impossible`);
  let contents: Uint8Array;
  try {
    contents = inflate(bytes, 'gzip', Math.max(length, 1));
  } catch (error) {
    throw damaged(source, 'gzip', 0, `decompression failed (${(error as Error).message})`);
  }
  if (contents.length !== length)
    throw damaged(source, 'gzip', bytes.length - 4, `the length is ${length}, but ${contents.length} bytes came out`);
  return plainSource({ name, bytes: contents });
}
