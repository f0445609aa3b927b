// A data set in memory: rows of inputs and labels as stored (bytes stay bytes), converted only when a batch is
// gathered. Plain data; a split shares the rows of its origin.

import { assert } from '../../assert.ts';
import { InputError } from '../../errors.ts';
import {
  allocate,
  type ElementArray,
  type ElementType,
  elementCount,
  isFloat,
  type Tensor,
} from '../../graph/tensor.ts';
import { ignoredLabel } from '../losses.ts';
import { convert } from './convert.ts';
import { checkFinite } from './finite.ts';
import type { Preparation } from './preparation.ts';
import type { Softening } from './softening.ts';

/** Where the samples of a field come from that is not in memory. */
export interface SampleReader {
  /**
   * A new float32 tensor [rows.length, ...] of these rows, equal for equal rows and epochs; without an epoch, as for a
   * test, not augmented. Throws InputError for a file that cannot be read.
   */
  read(rows: Uint32Array, epoch: number | undefined): Promise<Tensor>;
}

/** One array of a data set. */
export interface Field {
  /** The input's name: the model's, once bound (bind.ts). */
  readonly name: string;
  /** [rows, ...] as stored. With a `reader`, its data are empty: type and shape are what is read. */
  readonly values: Tensor;
  /** Reads the samples of a field that is not in memory. */
  readonly reader?: SampleReader;
  /** The element type of gathered tensors. */
  readonly type: ElementType;
  /** Stored values are divided by this when gathered: 255 for pixels, otherwise 1. */
  readonly divisor: number;
  /** The file it came from, for messages. */
  readonly source: string;
  /** Of labels: those that are left out, of which there are some; gathered as `ignoredLabel`. */
  readonly ignored?: readonly number[];
}

/** Samples for training or testing. Sample i is row `rows[i]` of every field, or row i if `rows` is absent. */
export interface Dataset {
  /** A readable name, such as "mnist". */
  readonly name: string;
  readonly inputs: readonly Field[];
  readonly labels: Field;
  readonly rows?: Uint32Array;
  readonly sampleCount: number;
  /** Samples are the steps of sequences of this length, one sequence after the other (sequences.ts). Absent: 1. */
  readonly sequenceLength?: number;
  /** The number of classes; absent if labels are not classes. */
  readonly classCount?: number;
  /** The classes' names, in the order of their numbers. */
  readonly classNames?: readonly string[];
  /** What was done to make the samples; absent: they are as stored. */
  readonly preparation?: Preparation;
  /** Where a row comes from, for people: its file, or its line in one. */
  rowName?(row: number): string;
  /** Of texts that are filled up at their ends: the tokens of each row. */
  readonly tokenCounts?: Uint32Array;
  /** Labels become distributions when a batch is made; absent: they are delivered as they are. */
  readonly softening?: Softening;
}

/** The tensors of one batch: `inputs` in the data set's order. */
export interface Batch {
  readonly inputs: readonly Tensor[];
  readonly labels: Tensor;
}

/**
 * A data set from fields. Throws InputError unless all fields have the same number of rows, at least one, and all
 * numbers are finite.
 */
export function createDataset(name: string, inputs: readonly Field[], labels: Field, classCount?: number): Dataset {
  const sampleCount = rowCount(labels);
  for (const input of inputs) {
    if (rowCount(input) === sampleCount) continue;
    throw new InputError(
      `${input.source} has ${rowCount(input)} samples, but ${labels.source} has ${sampleCount} labels; both ` +
        'need one row a sample.',
    );
  }
  if (sampleCount === 0) throw new InputError(`${labels.source} holds no samples; at least one is needed.`);
  for (const { values, source } of [...inputs, labels]) checkFinite(values, source);
  return { name, inputs, labels, sampleCount, ...(classCount === undefined ? {} : { classCount }) };
}

/**
 * A field with the usual conversion: floats become float32; bytes of rank 3 and more are pixels and become value / 255;
 * other integers become int64.
 */
export function inputField(name: string, values: Tensor, source: string): Field {
  const pixels = values.type === 'uint8' && values.shape.length >= 3;
  return {
    name,
    values,
    type: isFloat(values.type) || pixels ? 'float32' : 'int64',
    divisor: pixels ? 255 : 1,
    source,
  };
}

/** A field of labels: integers become int64 (and [n, 1] becomes [n]), floats float32. */
export function labelField(values: Tensor, source: string): Field {
  const float = isFloat(values.type);
  const column = !float && values.shape.length > 1 && values.shape.slice(1).every((dimension) => dimension === 1);
  const tensor = column ? { ...values, shape: values.shape.slice(0, 1) } : values;
  return { name: 'labels', values: tensor, type: float ? 'float32' : 'int64', divisor: 1, source };
}

/** Copies the given samples, all of which are in memory, into new tensors of shape [indices.length, ...]. */
export function gather(dataset: Dataset, indices: Uint32Array): Batch {
  return {
    inputs: dataset.inputs.map((field) => gatherField(dataset, field, indices)),
    labels: gatherField(dataset, dataset.labels, indices),
  };
}

/** Copies the given samples of one field (a first stage needs no labels, a last one no inputs). */
export function gatherField(dataset: Dataset, field: Field, indices: Uint32Array): Tensor {
  const { values, type, divisor } = field;
  const shape = [indices.length, ...values.shape.slice(1)];
  const rowSize = elementCount(values.shape.slice(1));
  const data = allocate(type, indices.length * rowSize);
  const copies = values.type === type && divisor === 1;
  for (let index = 0; index < indices.length; index++) {
    const row = rowOf(dataset, indices[index] as number);
    if (copies && rowSize > 1) {
      // Both arrays are of `type`; `set` requires a proof for each type.
      (data as Float32Array).set(
        (values.data as Float32Array).subarray(row * rowSize, (row + 1) * rowSize),
        index * rowSize,
      );
    } else {
      convert(
        { type, data, start: index * rowSize },
        { type: values.type, data: values.data, start: row * rowSize },
        rowSize,
        divisor,
      );
    }
  }
  if (field.ignored !== undefined) leaveOut(data, field.ignored);
  return { type, shape, data };
}

/** Puts `ignoredLabel` in the place of labels that are left out. */
function leaveOut(data: ElementArray, ignored: readonly number[]): void {
  const isBig = data instanceof BigInt64Array;
  const labels: ReadonlySet<number | bigint> = new Set<number | bigint>(isBig ? ignored.map(BigInt) : ignored);
  const values = data as unknown as (number | bigint)[];
  const replacement = isBig ? BigInt(ignoredLabel) : ignoredLabel;
  for (let index = 0; index < values.length; index++)
    if (labels.has(values[index] as number | bigint)) values[index] = replacement;
}

/** How many of gathered labels count. */
export function countedLabels({ data }: Tensor): number {
  let count = 0;
  for (let index = 0; index < data.length; index++) if ((data[index] as number | bigint) >= 0) count++;
  return count;
}

/** The samples `indices` as a data set, without copying rows. */
export function subset(dataset: Dataset, indices: Uint32Array): Dataset {
  return { ...dataset, rows: indices.map((index) => rowOf(dataset, index)), sampleCount: indices.length };
}

/** The largest label plus one, for non-negative integer labels; otherwise undefined. */
export function inferClassCount(labels: Field): number | undefined {
  const { values } = labels;
  if (isFloat(values.type)) return undefined;
  let largest = -1;
  for (let index = 0; index < values.data.length; index++) {
    const label = Number(values.data[index]);
    if (label < 0) return undefined;
    if (label > largest) largest = label;
  }
  return largest + 1;
}

function rowCount(field: Field): number {
  const { shape } = field.values;
  if (shape.length === 0)
    throw new InputError(`${field.source} is a single number; an array with one row a sample is needed.`);
  // A shape such as [10^15, 0] takes no bytes, but row indices would.
  if (shape[0] !== 0 && field.values.data.length === 0 && field.reader === undefined)
    throw new InputError(
      `${field.source} has rows without values ([${shape.join(', ')}]); each sample needs at least one.`,
    );
  return shape[0] as number;
}

/** The row of the file that holds a sample. */
export function rowOf(dataset: Dataset, sample: number): number {
  assert(sample < dataset.sampleCount, `sample ${sample} of ${dataset.sampleCount} was asked for`);
  return dataset.rows === undefined ? sample : (dataset.rows[sample] as number);
}
