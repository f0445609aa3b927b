// A batch of a data set, from memory or from files, and what is drawn for it.

import { allocate, type Tensor } from '../../graph/tensor.ts';
import { convert } from './convert.ts';
import { type Batch, type Dataset, type Field, gatherField, rowOf } from './dataset.ts';
import { softened } from './softening.ts';

/** The place of a batch in a run, from which what is drawn for its samples follows. */
export interface BatchPlace {
  readonly round: number;
  readonly epoch: number;
}

/**
 * Makes new tensors of shape [indices.length, ...]: at once where all samples are in memory, else when they are read.
 * Without a place in a run, as for a test, samples are neither augmented nor softened. Throws
 * InputError, or rejects with it, for a file that cannot be read.
 */
export function batchOf(dataset: Dataset, indices: Uint32Array, place?: BatchPlace): Batch | Promise<Batch> {
  const { inputs, labels, softening } = dataset;
  const finished = (read: readonly Tensor[]): Batch => {
    const batch = { inputs: read, labels: gatherField(dataset, labels, indices) };
    return softening === undefined || place === undefined ? batch : softened(batch, softening, place.round);
  };
  if (inputs.every(({ reader }) => reader === undefined))
    return finished(inputs.map((field) => gatherField(dataset, field, indices)));
  return Promise.all(inputs.map((field) => readField(dataset, field, indices, place?.epoch))).then(finished);
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
