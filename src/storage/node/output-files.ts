// Where outputs go, as they come: an .npy file or stream, or an .npz with an array each. Nothing is held back; a file
// that was not finished is removed.

import { type FileHandle, open, rm } from 'node:fs/promises';
import type { Writable } from 'node:stream';
import { defined } from '../../assert.ts';
import { crc32 } from '../../checksum.ts';
import { InputError, RunError } from '../../errors.ts';
import { type ElementType, elementBytes, elementCount, type Tensor, tensorBytes } from '../../graph/tensor.ts';
import { npyHeader } from '../../training/data/npy.ts';

/** The array that will be written. */
export interface OutputArray {
  readonly name: string;
  readonly type: ElementType;
  /** Samples first. */
  readonly shape: readonly number[];
}

/** Takes rows of arrays in their order. */
export interface OutputFile {
  /** The next rows of each array. Resolves when more may be written. */
  write(rows: readonly Tensor[]): Promise<void>;
  /** All rows have been written. */
  finish(): Promise<void>;
  /** The rest will not come. */
  discard(): Promise<void>;
}

/**
 * Opens FILE.npy, FILE.npz or `-`, the stream; several arrays need an .npz. Throws InputError for a path that cannot be
 * written.
 */
export async function createOutputFile(
  path: string,
  arrays: readonly OutputArray[],
  stdout: Writable,
): Promise<OutputFile> {
  const array = defined(arrays[0], 'an array');
  if (arrays.length > 1 && !path.endsWith('.npz'))
    throw new InputError(`-o ${path} takes one output, not ${arrays.length}: name a file FILE.npz.`);
  if (path === '-') return streamed(array, stdout);
  if (!/\.np[yz]$/.test(path))
    throw new InputError(`-o ${path} has another ending than .npy and .npz: name the file so, or - for stdout.`);
  let handle: FileHandle;
  try {
    handle = await open(path, 'w');
  } catch (error) {
    throw new InputError(
      `-o ${path} cannot be written (${error instanceof Error ? error.message : String(error)}): give another path.`,
    );
  }
  const file = path.endsWith('.npz') ? await zipped(handle, arrays) : await plain(handle, array);
  const checked = async (work: () => Promise<void>): Promise<void> => {
    try {
      await work();
    } catch (error) {
      throw new RunError(`${path} could not be written: ${error instanceof Error ? error.message : String(error)}.`);
    }
  };
  return {
    write: (rows) => checked(() => file.write(rows)),
    finish: () =>
      checked(async () => {
        await file.finish();
        await handle.close();
      }),
    async discard() {
      await handle.close();
      await rm(path, { force: true });
    },
  };
}

type Rows = Omit<OutputFile, 'discard'>;

async function plain(handle: FileHandle, { type, shape }: OutputArray): Promise<Rows> {
  await handle.appendFile(npyHeader(type, shape));
  return {
    write: ([rows]) => handle.appendFile(tensorBytes(defined(rows, 'rows'))),
    finish: async () => {},
  };
}

function streamed({ type, shape }: OutputArray, stdout: Writable): OutputFile {
  const write = (bytes: Uint8Array): Promise<void> =>
    new Promise((resolve, reject) => stdout.write(bytes, (error) => (error ? reject(error) : resolve())));
  let begun: Promise<void> | undefined;
  const begin = (): Promise<void> => (begun ??= write(npyHeader(type, shape)));
  return {
    write: ([rows]) => begin().then(() => write(tensorBytes(defined(rows, 'rows')))),
    finish: begin,
    discard: async () => {},
  };
}

/** An entry of a zip that is being written. */
interface Entry {
  readonly name: string;
  readonly size: number;
  /** Of its header in the file. */
  readonly start: number;
  /** Where its next bytes go. */
  at: number;
  sum: number;
}

/**
 * A zip of stored entries with 64-bit sizes, side by side. A checksum is known at the end, and then written into the
 * entry's header, which stands in front of it.
 */
async function zipped(handle: FileHandle, arrays: readonly OutputArray[]): Promise<Rows> {
  const entries: Entry[] = [];
  let end = 0;
  const writeAt = async (bytes: Uint8Array, position: number): Promise<void> => {
    for (let written = 0; written < bytes.length; )
      written += (await handle.write(bytes, written, bytes.length - written, position + written)).bytesWritten;
  };
  const append = async (entry: Entry, bytes: Uint8Array): Promise<void> => {
    entry.sum = crc32(bytes, entry.sum);
    await writeAt(bytes, entry.at);
    entry.at += bytes.length;
  };
  for (const { name, type, shape } of arrays) {
    const header = npyHeader(type, shape);
    const size = header.length + elementBytes(type) * elementCount(shape);
    const local = entryHeader(`${name}.npy`, { sum: 0, size }, undefined);
    const entry = { name: `${name}.npy`, size, start: end, at: end + local.length, sum: 0 };
    await append(entry, header);
    entries.push(entry);
    end += local.length + size;
  }
  return {
    async write(rows) {
      for (const [index, entry] of entries.entries())
        await append(entry, tensorBytes(defined(rows[index], entry.name)));
    },
    async finish() {
      for (const entry of entries) await writeAt(entryHeader(entry.name, entry, undefined), entry.start);
      const directory = Buffer.concat(entries.map((entry) => entryHeader(entry.name, entry, entry.start)));
      await writeAt(directory, end);
      await writeAt(endRecords(end, directory.length, entries.length), end + directory.length);
    },
  };
}

const zip64 = 0xffffffff;

/** `offset`: of the entry, in the directory; absent: in front of the entry itself. */
function entryHeader(
  name: string,
  { sum, size }: { readonly sum: number; readonly size: number },
  offset: number | undefined,
): Uint8Array {
  const bytes = new TextEncoder().encode(name);
  const isDirectory = offset !== undefined;
  const fixed = isDirectory ? 46 : 30;
  const extra = 4 + 16 + (isDirectory ? 8 : 0);
  const result = new Uint8Array(fixed + bytes.length + extra);
  const view = new DataView(result.buffer);
  let at = 0;
  const put = (length: 2 | 4 | 8, value: number): void => {
    if (length === 2) view.setUint16(at, value, true);
    else if (length === 4) view.setUint32(at, value, true);
    else view.setBigUint64(at, BigInt(value), true);
    at += length;
  };
  put(4, isDirectory ? 0x02014b50 : 0x04034b50);
  if (isDirectory) put(2, 45);
  for (const value of [45, 0, 0, 0, 0x21]) put(2, value); // version, flags, stored, the first day that there is
  for (const value of [sum, zip64, zip64]) put(4, value);
  put(2, bytes.length);
  put(2, extra);
  if (isDirectory) {
    for (const value of [0, 0, 0]) put(2, value);
    put(4, 0);
    put(4, zip64);
  }
  result.set(bytes, at);
  at += bytes.length;
  put(2, 1);
  put(2, extra - 4);
  put(8, size);
  put(8, size);
  if (isDirectory) put(8, offset);
  return result;
}

function endRecords(start: number, length: number, entryCount: number): Uint8Array {
  const result = new Uint8Array(56 + 20 + 22);
  const view = new DataView(result.buffer);
  const far = (at: number, value: number): void => view.setBigUint64(at, BigInt(value), true);
  view.setUint32(0, 0x06064b50, true);
  far(4, 44);
  view.setUint16(12, 45, true);
  view.setUint16(14, 45, true);
  far(24, entryCount);
  far(32, entryCount);
  far(40, length);
  far(48, start);
  view.setUint32(56, 0x07064b50, true);
  far(64, start + length);
  view.setUint32(72, 1, true);
  view.setUint32(76, 0x06054b50, true);
  view.setUint16(84, entryCount, true);
  view.setUint16(86, entryCount, true);
  view.setUint32(88, zip64, true);
  view.setUint32(92, zip64, true);
  return result;
}
