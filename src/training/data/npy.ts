// NumPy's .npy format, versions 1 to 3: reading every dtype that a Tensor can hold (either byte order, either axis
// order) and writing. Pickled objects are never read. Source: numpy.lib.format.

import { defined } from '../../assert.ts';
import { InputError } from '../../errors.ts';
import {
  type ElementType,
  elementBytes,
  elementCount,
  type Tensor,
  tensorBytes,
  viewBytes,
} from '../../graph/tensor.ts';
import { damaged, plainSource, type Source, safeProduct, swapBytes, viewOf } from './source.ts';

/** A header longer than this is refused; NumPy writes 118 bytes. */
const maxHeaderBytes = 65_536;
/** NumPy's own limit. */
const maxRank = 64;

const typeCodes: { readonly [T in ElementType]: string } = {
  float32: 'f4',
  float64: 'f8',
  float16: 'f2',
  int8: 'i1',
  uint8: 'u1',
  int16: 'i2',
  uint16: 'u2',
  int32: 'i4',
  uint32: 'u4',
  int64: 'i8',
  uint64: 'u8',
  bool: 'b1',
};
const typesByCode: ReadonlyMap<string, ElementType> = new Map(
  Object.entries(typeCodes).map(([type, code]) => [code, type as ElementType]),
);

interface Header {
  readonly type: ElementType;
  readonly bigEndian: boolean;
  readonly fortranOrder: boolean;
  readonly shape: readonly number[];
}

/** Reads one array. The tensor is a view of the file's bytes if order and alignment allow. Throws InputError. */
export function readNpy(file: Source): Tensor {
  const source = plainSource(file);
  const { bytes } = source;
  const { start, end } = headerRange(source);
  const header = parseHeader(source, start, end);
  const size = elementBytes(header.type);
  const expectedBytes = safeProduct(header.shape, size);
  if (expectedBytes !== bytes.length - end) {
    const shape = `[${header.shape.join(', ')}] of ${header.type}`;
    throw damaged(
      source,
      'npy',
      end,
      `${expectedBytes ?? 'too many'} bytes are expected for ${shape}, but ${bytes.length - end} follow`,
    );
  }
  let body = bytes.subarray(end);
  if (header.bigEndian && size > 1) body = swapBytes(body, size);
  if (header.fortranOrder && header.shape.length > 1) body = toRowMajor(body, header.shape, size);
  if (header.type === 'bool') body = body.map((value) => (value === 0 ? 0 : 1));
  return { type: header.type, shape: header.shape, data: viewBytes(header.type, body) };
}

/** Writes one array: version 1, little-endian, row-major, data at a multiple of 64 bytes. */
export function writeNpy(tensor: Tensor): Uint8Array {
  const header = npyHeader(tensor.type, tensor.shape);
  const bytes = new Uint8Array(header.length + tensor.data.byteLength);
  bytes.set(header);
  bytes.set(tensorBytes(tensor), header.length);
  return bytes;
}

/** What stands before the elements of such a file. */
export function npyHeader(type: ElementType, dimensions: readonly number[]): Uint8Array {
  const code = typeCodes[type];
  const order = elementBytes(type) === 1 ? '|' : '<';
  const shape = dimensions.length === 1 ? `(${dimensions[0]},)` : `(${dimensions.join(', ')})`;
  const text = `{'descr': '${order}${code}', 'fortran_order': False, 'shape': ${shape}, }`;
  const dataStart = Math.ceil((10 + text.length + 1) / 64) * 64;
  const bytes = new Uint8Array(dataStart);
  bytes.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0]);
  viewOf(bytes).setUint16(8, dataStart - 10, true);
  bytes.set(new TextEncoder().encode(`${text.padEnd(dataStart - 11)}\n`), 10);
  return bytes;
}

/** What the header of a file says, for reading its elements bit by bit. */
export interface NpyLayout {
  readonly type: ElementType;
  readonly shape: readonly number[];
  /** Where the elements begin. */
  readonly start: number;
}

/** The most bytes that a header takes. */
export const longestNpyHeader: number = maxHeaderBytes + 12;

/**
 * Reads a header from a file's first bytes; undefined where they end inside it. Throws InputError for one that is
 * damaged, or whose elements cannot be read in the order of the rows.
 */
export function readNpyLayout(source: Source): NpyLayout | undefined {
  const { bytes } = source;
  const lengthEnd = bytes[6] === 1 ? 10 : 12;
  if (bytes.length < 12) return undefined;
  const length = lengthEnd === 10 ? viewOf(bytes).getUint16(8, true) : viewOf(bytes).getUint32(8, true);
  if (length <= maxHeaderBytes && bytes.length < lengthEnd + length) return undefined;
  const { start, end } = headerRange(source);
  const { type, shape, bigEndian, fortranOrder } = parseHeader(source, start, end);
  if ((bigEndian && elementBytes(type) > 1) || (fortranOrder && shape.length > 1))
    throw new InputError(
      `${source.name} holds its elements in another order than they are read in: save it with ` +
        "np.ascontiguousarray(x).astype(x.dtype.newbyteorder('<')).",
    );
  return { type, shape, start: end };
}

function headerRange(source: Source): { start: number; end: number } {
  const { bytes } = source;
  const magic = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59];
  if (bytes.length < 10 || magic.some((byte, index) => bytes[index] !== byte)) {
    throw damaged(source, 'npy', 0, 'the mark "\\x93NUMPY" is missing');
  }
  const version = bytes[6] as number;
  if (version < 1 || version > 3) throw damaged(source, 'npy', 6, `version ${version} is not 1, 2 or 3`);
  const start = version === 1 ? 10 : 12;
  if (bytes.length < start) throw damaged(source, 'npy', bytes.length, 'the file ends inside the header');
  const length = version === 1 ? viewOf(bytes).getUint16(8, true) : viewOf(bytes).getUint32(8, true);
  if (length > maxHeaderBytes)
    throw damaged(source, 'npy', 8, `the header's length ${length} is over ${maxHeaderBytes}`);
  const end = start + length;
  if (end > bytes.length) throw damaged(source, 'npy', bytes.length, 'the file ends inside the header');
  return { start, end };
}

/** Parses the header, a Python dict literal of three known keys; everything else is refused. */
function parseHeader(source: Source, start: number, end: number): Header {
  const text = new TextDecoder().decode(source.bytes.subarray(start, end));
  const literal = /^\s*\{(.*)\}\s*$/s.exec(text);
  if (literal === null) throw damaged(source, 'npy', start, 'the header is not a Python dict');
  const entry = /\s*(['"])(\w+)\1\s*:\s*('[^']*'|"[^"]*"|True|False|\([\dL,\s]*\)|\[[^\]]*\])\s*(?:,|$)/y;
  const entries = new Map<string, string>();
  const inside = (literal[1] as string).trimEnd();
  while (entry.lastIndex < inside.length) {
    const from = entry.lastIndex;
    const match = entry.exec(inside);
    if (match === null || entries.has(match[2] as string))
      throw damaged(source, 'npy', start + 1 + from, 'the header is not a dict of descr, fortran_order and shape');
    entries.set(match[2] as string, match[3] as string);
  }
  const [descr, order, shape] = ['descr', 'fortran_order', 'shape'].map((key) => entries.get(key));
  if (descr === undefined || order === undefined || shape === undefined || entries.size !== 3) {
    throw damaged(source, 'npy', start, 'the header is not a dict of descr, fortran_order and shape');
  }
  if (order !== 'True' && order !== 'False')
    throw damaged(source, 'npy', start, `fortran_order is ${order}, not True or False`);
  return { ...parseType(source, descr), fortranOrder: order === 'True', shape: parseShape(source, start, shape) };
}

function parseType(source: Source, descr: string): { type: ElementType; bigEndian: boolean } {
  const match = /^['"]([<>|=])([a-z]\d+)['"]$/.exec(descr);
  const type = match === null ? undefined : typesByCode.get(match[2] as string);
  if (match === null || type === undefined) {
    throw new InputError(
      `${source.name} holds the NumPy dtype ${descr.slice(0, 60)}, which is not a number type; save it with ` +
        ".astype('float32') or an integer type.",
    );
  }
  return { type, bigEndian: match[1] === '>' };
}

function parseShape(source: Source, start: number, text: string): number[] {
  const parts = text
    .slice(1, -1)
    .split(',')
    .map((part) => part.trim());
  if (parts.at(-1) === '') parts.pop();
  // Python 2 wrote long integers as "3L".
  if (!parts.every((part) => /^\d+L?$/.test(part))) {
    throw damaged(source, 'npy', start, `the shape ${text.slice(0, 60)} is no tuple of integers`);
  }
  const dimensions = parts.map((part) => Number.parseInt(part, 10));
  if (dimensions.length > maxRank || !dimensions.every(Number.isSafeInteger)) {
    throw damaged(source, 'npy', start, `the shape ${text.slice(0, 60)} is too large`);
  }
  return dimensions;
}

/** Copies bytes from column-major to row-major order. */
function toRowMajor(bytes: Uint8Array, shape: readonly number[], size: number): Uint8Array {
  const result = new Uint8Array(bytes.length);
  const strides: number[] = [];
  let stride = size;
  for (const dimension of shape) {
    strides.push(stride);
    stride *= dimension;
  }
  const position = shape.map(() => 0);
  let from = 0;
  const count = elementCount(shape);
  for (let element = 0; element < count; element++) {
    for (let index = 0; index < size; index++) result[element * size + index] = bytes[from + index] as number;
    // Advance the row-major position by one, and `from` accordingly.
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      const step = defined(strides[axis], 'stride');
      position[axis] = (position[axis] as number) + 1;
      from += step;
      if ((position[axis] as number) < (shape[axis] as number)) break;
      from -= step * (shape[axis] as number);
      position[axis] = 0;
    }
  }
  return result;
}
