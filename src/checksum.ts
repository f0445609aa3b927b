// CRC-32, as zip, gzip and PNG have it (polynomial 0xEDB88320): Node's, which is several times faster, where there is
// one.

import { builtinModule } from './builtin.ts';

/** The CRC-32 of bytes, continued from the sum of those before them (default: none). */
export type Crc32 = (bytes: Uint8Array, sum?: number) => number;

const table: Uint32Array = Uint32Array.from({ length: 256 }, (_, index) => {
  let value = index;
  for (let bit = 0; bit < 8; bit++) value = (value & 1) === 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

/** CRC-32 by a table of bytes. */
export const portableCrc32: Crc32 = (bytes, sum = 0) => {
  let crc = ~sum;
  for (let index = 0; index < bytes.length; index++)
    crc = (table[(crc ^ (bytes[index] as number)) & 0xff] as number) ^ (crc >>> 8);
  return ~crc >>> 0;
};

const native = builtinModule<{ readonly crc32: Crc32 }>('node:zlib')?.crc32;

// zlib's starts anew at an empty array, whatever sum it is given.
const nativeCrc32 =
  (own: Crc32): Crc32 =>
  (bytes, sum = 0) =>
    bytes.length === 0 ? sum : own(bytes, sum);

export const crc32: Crc32 = native === undefined ? portableCrc32 : nativeCrc32(native);
