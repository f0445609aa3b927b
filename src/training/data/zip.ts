// The part of the zip format that .npz files use: stored and deflated entries, zip64 sizes, CRC-32 checked. Read from
// the central directory; encrypted, split and otherwise compressed archives are refused.

import { crc32 } from '../../checksum.ts';
import { damaged, type Inflate, maxInflation, plainSource, type Source, shownName, viewOf } from './source.ts';

interface Entry {
  readonly name: string;
  readonly method: number;
  readonly crc: number;
  readonly packedBytes: number;
  readonly bytes: number;
  /** The position of its local header. */
  readonly offset: number;
}

/** All files of the archive by name, in its order. Stored entries are views of the archive. Throws InputError. */
export function readZip(file: Source, inflate: Inflate): Map<string, Uint8Array> {
  const source = plainSource(file);
  const contents = new Map<string, Uint8Array>();
  let packedTotal = 0;
  for (const entry of readDirectory(source)) {
    if (entry.name.endsWith('/')) continue;
    if (contents.has(entry.name))
      throw damaged(source, 'zip', entry.offset, `the entry ${shownName(entry.name)} occurs twice`);
    // Overlapping entries would multiply the unpacked size of a small file.
    packedTotal += entry.packedBytes;
    if (packedTotal > source.bytes.length) throw damaged(source, 'zip', entry.offset, 'the entries overlap');
    contents.set(entry.name, readEntry(source, entry, inflate));
  }
  return contents;
}

function readDirectory(source: Source): Entry[] {
  const { bytes } = source;
  const view = viewOf(bytes);
  const end = findEnd(source, view);
  let count = view.getUint16(end + 10, true);
  let offset = view.getUint32(end + 16, true);
  if (end >= 20 && view.getUint32(end - 20, true) === 0x07064b50) {
    // zip64: a locator before the end record points to a longer one.
    const at = Number(view.getBigUint64(end - 12, true));
    if (at + 56 > bytes.length || view.getUint32(at, true) !== 0x06064b50)
      throw damaged(source, 'zip', end - 12, 'the zip64 record is missing');
    count = Number(view.getBigUint64(at + 32, true));
    offset = Number(view.getBigUint64(at + 48, true));
  }
  const entries: Entry[] = [];
  for (let index = 0; index < count; index++) {
    if (offset + 46 > end || view.getUint32(offset, true) !== 0x02014b50) {
      throw damaged(
        source,
        'zip',
        Math.min(offset, bytes.length),
        `entry ${index + 1} of ${count} of the directory is missing`,
      );
    }
    const nameLength = view.getUint16(offset + 28, true);
    const extraLength = view.getUint16(offset + 30, true);
    const next = offset + 46 + nameLength + extraLength + view.getUint16(offset + 32, true);
    if (next > end) throw damaged(source, 'zip', offset, 'a directory entry is longer than the directory');
    entries.push(readDirectoryEntry(source, view, offset, nameLength, extraLength));
    offset = next;
  }
  return entries;
}

function findEnd(source: Source, view: DataView): number {
  // The end record is 22 bytes and a comment of at most 65,535.
  const last = source.bytes.length - 22;
  for (let at = last; at >= Math.max(0, last - 65_535); at--) {
    if (view.getUint32(at, true) === 0x06054b50 && at + 22 + view.getUint16(at + 20, true) === source.bytes.length)
      return at;
  }
  throw damaged(source, 'zip', source.bytes.length, 'the directory is missing (is the file cut off?)');
}

function readDirectoryEntry(
  source: Source,
  view: DataView,
  at: number,
  nameLength: number,
  extraLength: number,
): Entry {
  const flags = view.getUint16(at + 8, true);
  if ((flags & 1) !== 0) throw damaged(source, 'zip', at, 'an encrypted entry is not supported');
  const name = new TextDecoder().decode(source.bytes.subarray(at + 46, at + 46 + nameLength));
  const sizes = {
    bytes: view.getUint32(at + 24, true),
    packedBytes: view.getUint32(at + 20, true),
    offset: view.getUint32(at + 42, true),
  };
  readZip64Sizes(view, at + 46 + nameLength, extraLength, sizes);
  return { name, method: view.getUint16(at + 10, true), crc: view.getUint32(at + 16, true), ...sizes };
}

/** Reads sizes of 0xffffffff as 64-bit numbers from the extra field 1, in this order. */
function readZip64Sizes(
  view: DataView,
  start: number,
  length: number,
  sizes: { bytes: number; packedBytes: number; offset: number },
): void {
  let at = start;
  while (at + 4 <= start + length) {
    const fieldEnd = at + 4 + view.getUint16(at + 2, true);
    if (view.getUint16(at, true) === 1 && fieldEnd <= start + length) {
      let from = at + 4;
      for (const key of ['bytes', 'packedBytes', 'offset'] as const) {
        if (sizes[key] !== 0xffffffff || from + 8 > fieldEnd) continue;
        sizes[key] = Number(view.getBigUint64(from, true));
        from += 8;
      }
    }
    at = fieldEnd;
  }
}

function readEntry(source: Source, entry: Entry, inflate: Inflate): Uint8Array {
  const { bytes } = source;
  const view = viewOf(bytes);
  const { offset } = entry;
  if (offset + 30 > bytes.length || view.getUint32(offset, true) !== 0x04034b50) {
    throw damaged(source, 'zip', Math.min(offset, bytes.length), `the entry ${shownName(entry.name)} is missing`);
  }
  const start = offset + 30 + view.getUint16(offset + 26, true) + view.getUint16(offset + 28, true);
  if (start + entry.packedBytes > bytes.length)
    throw damaged(source, 'zip', bytes.length, `the file ends inside the entry ${shownName(entry.name)}`);
  const contents = unpack(source, entry, bytes.subarray(start, start + entry.packedBytes), inflate);
  if (contents.length !== entry.bytes) {
    throw damaged(
      source,
      'zip',
      start,
      `the entry ${shownName(entry.name)} has ${contents.length} bytes, not ${entry.bytes}`,
    );
  }
  if (crc32(contents) !== entry.crc)
    throw damaged(source, 'zip', start, `the checksum of the entry ${shownName(entry.name)} is wrong`);
  return contents;
}

function unpack(source: Source, entry: Entry, packed: Uint8Array, inflate: Inflate): Uint8Array {
  if (entry.method === 0) return packed;
  if (entry.method !== 8)
    throw damaged(
      source,
      'zip',
      entry.offset,
      `the entry ${shownName(entry.name)} is compressed by method ${entry.method}, not by deflate`,
    );
  if (entry.bytes > packed.length * maxInflation)
    throw damaged(
      source,
      'zip',
      entry.offset,
      `the entry ${shownName(entry.name)} claims ${entry.bytes} bytes, which is impossible`,
    );
  try {
    return plainSource({ name: entry.name, bytes: inflate(packed, 'raw', Math.max(entry.bytes, 1)) }).bytes;
  } catch (error) {
    throw damaged(
      source,
      'zip',
      entry.offset,
      `the entry ${shownName(entry.name)} cannot be decompressed (${(error as Error).message})`,
    );
  }
}
