// Writes a picture as PNG: 8 bits, grey or colour, without filters.

import { deflateSync } from 'node:zlib';
import { crc32 } from '../../checksum.ts';

/** Rows of pixels, with their channels side by side. */
export interface Pixels {
  readonly width: number;
  readonly height: number;
  readonly channels: 1 | 3;
  readonly data: Uint8Array;
}

const signature = Uint8Array.of(0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a);

/** The file's bytes (PNG specification, sections 5, 9 and 11.2). */
export function writePng({ width, height, channels, data }: Pixels): Uint8Array {
  const header = new Uint8Array(13);
  const view = new DataView(header.buffer);
  view.setUint32(0, width);
  view.setUint32(4, height);
  // 8 bits; colour type 0 is grey, 2 red, green and blue
  header.set([8, channels === 1 ? 0 : 2], 8);
  const size = width * channels;
  // Each row begins with its filter, of which 0 is none.
  const rows = new Uint8Array(height * (size + 1));
  for (let row = 0; row < height; row++) rows.set(data.subarray(row * size, (row + 1) * size), row * (size + 1) + 1);
  return Buffer.concat([
    signature,
    chunk('IHDR', header),
    chunk('IDAT', deflateSync(rows, { level: 9 })),
    chunk('IEND', new Uint8Array(0)),
  ]);
}

function chunk(name: string, data: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(12 + data.length);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, data.length);
  bytes.set(new TextEncoder().encode(name), 4);
  bytes.set(data, 8);
  view.setUint32(8 + data.length, crc32(bytes.subarray(4, 8 + data.length)));
  return bytes;
}
