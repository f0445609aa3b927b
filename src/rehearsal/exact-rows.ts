// What travels between exact stages: a row for each sample, its value with the sample, round and epoch that it is of
// (exact-model.ts).

import { assert } from '../assert.ts';
import { type Tensor, wrap } from '../graph/tensor.ts';
import { rowLength, writeRow } from './exact-model.ts';

/** The samples' rows as a tensor, [samples, rowLength]. */
export function rowsOf(
  samples: readonly number[],
  values: readonly number[],
  { round, epoch }: { readonly round: number; readonly epoch: number },
): Tensor {
  const rows = new Float32Array(samples.length * rowLength);
  for (const [index, sample] of samples.entries())
    writeRow(rows, index, { value: values[index] as number, sample, round, epoch });
  return wrap('float32', [samples.length, rowLength], rows);
}

/** The numbers of rows. */
export function valuesOf(rows: Float32Array, count: number): number[] {
  return Array.from({ length: count }, (_, index) => rows[index * rowLength] as number);
}

/** What is wrong with each row that is not of its sample, the round and the epoch (undefined: any epoch). */
export function* wrongRows(
  rows: Float32Array,
  samples: readonly number[],
  due: { readonly round: number; readonly epoch: number | undefined },
): Generator<string> {
  assert(rows.length === samples.length * rowLength, 'a row a sample');
  for (const [index, sample] of samples.entries()) {
    const [found, round, epoch] = rows.subarray(index * rowLength + 1, (index + 1) * rowLength);
    if (found === sample && round === due.round && (due.epoch === undefined || epoch === due.epoch)) continue;
    yield `sample ${found} of round ${round} and epoch ${epoch} in the place of sample ${sample}`;
  }
}
