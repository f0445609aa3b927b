// Where outputs go, as they come: an .npy file or stream, or an .npz with one array. Nothing is held back; a file that
// was not finished is removed.

import { type FileHandle, open, rm } from 'node:fs/promises';
import type { Writable } from 'node:stream';
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

/** Takes rows of an array in their order. */
export interface OutputFile {
  /** Resolves when more may be written. */
  write(rows: Tensor): Promise<void>;
  /** All rows have been written. */
  finish(): Promise<void>;
  /** The rest will not come. */
  discard(): Promise<void>;
}

/** Opens FILE.npy, FILE.npz or `-`, the stream. Throws InputError for a path that cannot be written. */
export async function createOutputFile(path: string, array: OutputArray, stdout: Writable): Promise<OutputFile> {
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
  const file = path.endsWith('.npz') ? await zipped(handle, array) : await plain(handle, array);
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
    write: (rows) => handle.appendFile(tensorBytes(rows)),
    finish: async () => {},
  };
}

function streamed({ type, shape }: OutputArray, stdout: Writable): OutputFile {
  const write = (bytes: Uint8Array): Promise<void> =>
    new Promise((resolve, reject) => stdout.write(bytes, (error) => (error ? reject(error) : resolve())));
  let begun: Promise<void> | undefined;
  const begin = (): Promise<void> => (begun ??= write(npyHeader(type, shape)));
  return {
    write: (rows) => begin().then(() => write(tensorBytes(rows))),
    finish: begin,
    discard: async () => {},
  };
}

/**
 * A zip of one stored entry with 64-bit sizes. Its checksum is known at the end, and then written into the entry's
 * header, which stands at the beginning.
 */
async function zipped(handle: FileHandle, { name, type, shape }: OutputArray): Promise<Rows> {
  const header = npyHeader(type, shape);
  const size = header.length + elementBytes(type) * elementCount(shape);
  let sum = crc32(header);
  await handle.appendFile(entryHeader(`${name}.npy`, { sum: 0, size }, undefined));
  await handle.appendFile(header);
  return {
    async write(rows) {
      const bytes = tensorBytes(rows);
      sum = crc32(bytes, sum);
      await handle.appendFile(bytes);
    },
    async finish() {
      const local = entryHeader(`${name}.npy`, { sum, size }, undefined);
      await handle.write(local, 0, local.length, 0);
      const directory = entryHeader(`${name}.npy`, { sum, size }, 0);
      const start = local.length + size;
      await handle.write(directory, 0, directory.length, start);
      const end = endRecords(start, directory.length);
      await handle.write(end, 0, end.length, start + directory.length);
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

function endRecords(start: number, length: number): Uint8Array {
  const result = new Uint8Array(56 + 20 + 22);
  const view = new DataView(result.buffer);
  const far = (at: number, value: number): void => view.setBigUint64(at, BigInt(value), true);
  view.setUint32(0, 0x06064b50, true);
  far(4, 44);
  view.setUint16(12, 45, true);
  view.setUint16(14, 45, true);
  far(24, 1);
  far(32, 1);
  far(40, length);
  far(48, start);
  view.setUint32(56, 0x07064b50, true);
  far(64, start + length);
  view.setUint32(72, 1, true);
  view.setUint32(76, 0x06054b50, true);
  view.setUint16(84, 1, true);
  view.setUint16(86, 1, true);
  view.setUint32(88, zip64, true);
  view.setUint32(92, zip64, true);
  return result;
}
