// A batch of a data set, from memory or from files, and what is drawn for it.

import { allocate, elementCount, type Tensor } from '../../graph/tensor.ts';
import { convert } from './convert.ts';
import { type Batch, type Dataset, type Field, gatherField, rowOf } from './dataset.ts';
import { softened } from './softening.ts';

/** The place of a batch in a run, from which what is drawn for its samples follows. */
export interface BatchPlace {
  readonly round: number;
  readonly epoch: number;
  /** Of texts: tokens that samples are padded to. Absent: as they are in the data set. */
  readonly length?: number | undefined;
}

/**
 * Makes new tensors of shape [indices.length, ...]: at once where all samples are in memory, else when they are read.
 * Without a place in a run, as for a test, samples are neither augmented nor softened. Throws
 * InputError, or rejects with it, for a file that cannot be read.
 */
export function batchOf(dataset: Dataset, indices: Uint32Array, place?: BatchPlace): Batch | Promise<Batch> {
  const { inputs, labels, softening } = dataset;
  const finished = (read: readonly Tensor[]): Batch => {
    const length = place?.length;
    const inputs = length === undefined ? read : read.map((value) => shortened(value, length));
    const batch = { inputs, labels: gatherField(dataset, labels, indices) };
    return softening === undefined || place === undefined ? batch : softened(batch, softening, place.round);
  };
  if (inputs.every(({ reader }) => reader === undefined))
    return finished(inputs.map((field) => gatherField(dataset, field, indices)));
  return Promise.all(inputs.map((field) => readField(dataset, field, indices, place?.epoch))).then(finished);
}

/** The first `length` of the second axis, which of texts is that of the tokens. */
function shortened({ type, shape, data }: Tensor, length: number): Tensor {
  const [count = 0, full = 0, ...inner] = shape;
  const size = elementCount(inner);
  const short = allocate(type, count * length * size);
  for (let row = 0; row < count; row++)
    // Both arrays are of `type`; `set` requires a proof for each type.
    (short as Float32Array).set(
      (data as Float32Array).subarray(row * full * size, (row * full + length) * size),
      row * length * size,
    );
  return { type, shape: [count, length, ...inner], data: short };
}

async function readField(
  dataset: Dataset,
  field: Field,
  indices: Uint32Array,
  epoch: number | undefined,
): Promise<Tensor> {
  if (field.reader === undefined) return gatherField(dataset, field, indices);
  const rows = indices.map((index) => rowOf(dataset, index));
  const read = await field.reader.read(rows, epoch);
  const shape = [indices.length, ...field.values.shape.slice(1)];
  if (field.type === read.type) return { ...read, shape };
  const data = allocate(field.type, read.data.length);
  convert({ type: field.type, data, start: 0 }, { type: read.type, data: read.data, start: 0 }, data.length, 1);
  return { type: field.type, shape, data };
}
