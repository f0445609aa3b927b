// The idx format of MNIST and related data: a big-endian header, then the elements. The caller unpacks gzipped files
// (gunzip). Source: yann.lecun.com/exdb/mnist, "the IDX file format".

import { assert } from '../../assert.ts';
import { type ElementType, elementBytes, type Tensor, tensorBytes, viewBytes } from '../../graph/tensor.ts';
import { damaged, plainSource, type Source, safeProduct, swapBytes, viewOf } from './source.ts';

const codes: ReadonlyMap<number, ElementType> = new Map([
  [0x08, 'uint8'],
  [0x09, 'int8'],
  [0x0b, 'int16'],
  [0x0c, 'int32'],
  [0x0d, 'float32'],
  [0x0e, 'float64'],
]);

/** Reads one array; bytes are a view of the file, wider elements a copy. Throws InputError. */
export function readIdx(file: Source): Tensor {
  const source = plainSource(file);
  const { bytes } = source;
  const view = viewOf(bytes);
  if (bytes.length < 4 || bytes[0] !== 0 || bytes[1] !== 0)
    throw damaged(source, 'idx', 0, 'two zero bytes are expected');
  const type = codes.get(bytes[2] as number);
  if (type === undefined)
    throw damaged(source, 'idx', 2, `the element type 0x${(bytes[2] as number).toString(16)} is unknown`);
  const rank = bytes[3] as number;
  if (rank < 1 || rank > 8) throw damaged(source, 'idx', 3, `${rank} dimensions were found, but 1 to 8 are expected`);
  const start = 4 + 4 * rank;
  if (bytes.length < start) throw damaged(source, 'idx', bytes.length, 'the file ends inside the header');
  const shape = Array.from({ length: rank }, (_, axis) => view.getUint32(4 + 4 * axis, false));
  const expected = safeProduct(shape, elementBytes(type));
  if (expected !== bytes.length - start) {
    throw damaged(
      source,
      'idx',
      start,
      `${expected ?? 'too many'} bytes are expected for [${shape.join(', ')}] of ${type}, but ` +
        `${bytes.length - start} follow`,
    );
  }
  const body = bytes.subarray(start);
  return { type, shape, data: viewBytes(type, elementBytes(type) === 1 ? body : swapBytes(body, elementBytes(type))) };
}

/** Writes one array of a type that idx supports. */
export function writeIdx(tensor: Tensor): Uint8Array {
  const code = [...codes].find(([, type]) => type === tensor.type)?.[0];
  assert(code !== undefined, `idx cannot hold ${tensor.type}`);
  const { shape } = tensor;
  const start = 4 + 4 * shape.length;
  const bytes = new Uint8Array(start + tensor.data.byteLength);
  bytes.set([0, 0, code, shape.length]);
  const view = viewOf(bytes);
  shape.forEach((dimension, axis) => {
    view.setUint32(4 + 4 * axis, dimension, false);
  });
  const size = elementBytes(tensor.type);
  bytes.set(size === 1 ? tensorBytes(tensor) : swapBytes(tensorBytes(tensor), size), start);
  return bytes;
}
