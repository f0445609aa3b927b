// The safetensors format: a JSON header of names, types, shapes and offsets, then the raw tensors. The reader trusts
// nothing: every byte of the data must belong to exactly one tensor. Source: github.com/huggingface/safetensors,
// "Format".

import { assert } from '../assert.ts';
import { InputError } from '../errors.ts';
import { type ElementType, elementBytes, type Tensor, tensorBytes, viewBytes } from '../graph/tensor.ts';
import { damaged, plainSource, type Source, safeProduct, shownName, viewOf } from './data/source.ts';

/** The contents of a file: tensors in the order of their bytes, and the text pairs of `__metadata__`. */
export interface Safetensors {
  readonly tensors: ReadonlyMap<string, Tensor>;
  readonly metadata: ReadonlyMap<string, string>;
}

/** The format's own limit. */
const maxHeaderBytes = 100_000_000;
const maxRank = 64;

const dtypes: { readonly [T in ElementType]: string } = {
  float64: 'F64',
  float32: 'F32',
  float16: 'F16',
  int64: 'I64',
  uint64: 'U64',
  int32: 'I32',
  uint32: 'U32',
  int16: 'I16',
  uint16: 'U16',
  int8: 'I8',
  uint8: 'U8',
  bool: 'BOOL',
};
const typesByDtype: ReadonlyMap<string, ElementType> = new Map(
  Object.entries(dtypes).map(([type, dtype]) => [dtype, type as ElementType]),
);

/**
 * Writes a file as pieces, in order, without copying the tensors: the header, padded to 8 bytes, then the tensors by
 * decreasing element size and by name, so that each is aligned to its element size and the same tensors always give the
 * same bytes.
 */
export function writeSafetensors(
  tensors: ReadonlyMap<string, Tensor>,
  metadata: ReadonlyMap<string, string> = new Map(),
): Uint8Array[] {
  const sorted = [...tensors].sort(
    ([nameA, a], [nameB, b]) => elementBytes(b.type) - elementBytes(a.type) || (nameA < nameB ? -1 : 1),
  );
  const entries: string[] = [];
  if (metadata.size > 0) {
    const pairs = [...metadata].map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)}`);
    entries.push(`"__metadata__":{${pairs.join(',')}}`);
  }
  let offset = 0;
  for (const [name, { type, shape, data }] of sorted) {
    assert(name !== '__metadata__', 'a tensor is named __metadata__');
    const end = offset + data.byteLength;
    const layout = `"dtype":"${dtypes[type]}","shape":[${shape.join(',')}],"data_offsets":[${offset},${end}]`;
    entries.push(`${JSON.stringify(name)}:{${layout}}`);
    offset = end;
  }
  const text = new TextEncoder().encode(`{${entries.join(',')}}`);
  const headerBytes = Math.ceil(text.length / 8) * 8;
  const header = new Uint8Array(8 + headerBytes).fill(0x20);
  viewOf(header).setBigUint64(0, BigInt(headerBytes), true);
  header.set(text, 8);
  return [header, ...sorted.map(([, tensor]) => tensorBytes(tensor))];
}

/** Reads a file. Tensors are views of its bytes if aligned (always for files written here). Throws InputError. */
export function readSafetensors(file: Source): Safetensors {
  const source = plainSource(file);
  const { tensors: places, metadata } = readSafetensorsLayout(source, source.bytes.length);
  const tensors = new Map<string, Tensor>();
  for (const [name, place] of places)
    tensors.set(name, storedTensor(source.name, name, place, source.bytes.subarray(place.start, place.end)));
  return { tensors, metadata };
}

/** Where a file has a tensor. */
export interface StoredTensor {
  /** As it is read: bfloat16 as float32. */
  readonly type: ElementType;
  readonly shape: readonly number[];
  readonly isBfloat16: boolean;
  /** Bytes of the file. */
  readonly start: number;
  readonly end: number;
}

/** The bytes that a file's header takes with its length, by the file's first 8 bytes. Throws InputError. */
export function safetensorsHeaderBytes(source: Source, fileBytes: number): number {
  if (fileBytes < 10 || source.bytes.length < 8) throw wrong(source, fileBytes, 'the file ends inside the header');
  const headerBytes = viewOf(source.bytes).getBigUint64(0, true);
  if (headerBytes > BigInt(Math.min(maxHeaderBytes, fileBytes - 8)))
    throw wrong(source, 0, `the header's length ${headerBytes} is more than the file holds or than ${maxHeaderBytes}`);
  return 8 + Number(headerBytes);
}

/**
 * Where the tensors of a file of `fileBytes` bytes are, in the order of their bytes; of `source` only the header is
 * read. Throws InputError.
 */
export function readSafetensorsLayout(
  source: Source,
  fileBytes: number,
): { readonly tensors: ReadonlyMap<string, StoredTensor>; readonly metadata: ReadonlyMap<string, string> } {
  const dataStart = safetensorsHeaderBytes(source, fileBytes);
  const header = parseHeader(source, source.bytes.subarray(8, dataStart));
  const metadata = readMetadata(source, header);
  const entries = [...header]
    .filter(([name]) => name !== '__metadata__')
    .map(([name, value]) => readEntry(source, name, value));
  // By start; empty tensors before others at the same start.
  entries.sort((a, b) => a.start - b.start || a.end - b.end);
  const tensors = new Map<string, StoredTensor>();
  let offset = 0;
  for (const { name, type, shape, isBfloat16, start, end } of entries) {
    if (start !== offset)
      throw wrong(
        source,
        dataStart + offset,
        `the tensor ${shownName(name)} starts at ${start} of the data, not at ${offset}: tensors overlap or ` +
          'leave a hole',
      );
    if (end > fileBytes - dataStart)
      throw wrong(source, fileBytes, `the file ends inside the tensor ${shownName(name)}`);
    tensors.set(name, { type, shape, isBfloat16, start: dataStart + start, end: dataStart + end });
    offset = end;
  }
  if (offset !== fileBytes - dataStart)
    throw wrong(source, dataStart + offset, `${fileBytes - dataStart - offset} bytes belong to no tensor`);
  return { tensors, metadata };
}

/** A tensor of its bytes in the file `source`; a view of them, but for bfloat16. Throws InputError. */
export function storedTensor(source: string, name: string, place: StoredTensor, bytes: Uint8Array): Tensor {
  const { type, shape, isBfloat16, start } = place;
  if (isBfloat16) return { type, shape, data: widened(viewBytes('uint16', bytes)) };
  if (type === 'bool' && bytes.some((value) => value > 1))
    throw wrong(
      { name: source, bytes },
      start,
      `the tensor ${shownName(name)} of truth values holds others than 0 and 1`,
    );
  return { type, shape, data: viewBytes(type, bytes) };
}

/** bfloat16 is the upper half of float32. */
function widened(halves: Uint16Array): Float32Array {
  const bits = new Uint32Array(halves.length);
  for (let index = 0; index < bits.length; index++) bits[index] = (halves[index] as number) << 16;
  return new Float32Array(bits.buffer);
}

interface Entry {
  readonly name: string;
  readonly type: ElementType;
  readonly shape: readonly number[];
  readonly isBfloat16: boolean;
  readonly start: number;
  readonly end: number;
}

function wrong(source: Source, offset: number, problem: string): InputError {
  return damaged(source, 'safetensors', offset, problem);
}

function parseHeader(source: Source, bytes: Uint8Array): Map<string, unknown> {
  let header: unknown;
  try {
    header = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch {
    throw wrong(source, 8, 'the header is not JSON');
  }
  if (!isObject(header)) throw wrong(source, 8, 'the header is not a JSON object');
  return new Map(Object.entries(header));
}

function readMetadata(source: Source, header: ReadonlyMap<string, unknown>): Map<string, string> {
  const value = header.get('__metadata__') ?? {};
  const entries = isObject(value) ? Object.entries(value) : undefined;
  if (entries === undefined || !entries.every((entry): entry is [string, string] => typeof entry[1] === 'string')) {
    throw wrong(source, 8, '__metadata__ is not an object of strings');
  }
  return new Map(entries);
}

function readEntry(source: Source, name: string, value: unknown): Entry {
  if (!isObject(value)) throw wrong(source, 8, `the entry of the tensor ${shownName(name)} is not an object`);
  const { dtype, shape, data_offsets: offsets } = value;
  if (
    typeof dtype !== 'string' ||
    !isCounts(shape) ||
    shape.length > maxRank ||
    !isCounts(offsets) ||
    offsets.length !== 2
  ) {
    throw wrong(
      source,
      8,
      `the entry of the tensor ${shownName(name)} does not have a dtype, a shape and two data_offsets`,
    );
  }
  const isBfloat16 = dtype === 'BF16';
  const type = isBfloat16 ? 'float32' : typesByDtype.get(dtype);
  if (type === undefined)
    throw new InputError(
      `${source.name} holds the tensor ${shownName(name)} of type ${dtype.slice(0, 20)}, which is not ` +
        'supported; convert it to F32.',
    );
  const [start, end] = offsets as [number, number];
  const expected = safeProduct(shape, isBfloat16 ? 2 : elementBytes(type));
  if (expected === undefined || end - start !== expected) {
    throw wrong(source, 8, `the tensor ${shownName(name)}, [${shape.join(', ')}] of ${type}, has ${end - start} bytes`);
  }
  return { name, type, shape, isBfloat16, start, end };
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isCounts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((item) => Number.isSafeInteger(item) && (item as number) >= 0);
}
