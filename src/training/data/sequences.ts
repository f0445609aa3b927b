// Sequences as data sets of their steps: what a recurrent cell takes one by one.

import { InputError } from '../../errors.ts';
import { allocate, elementCount, isFloat, type Tensor } from '../../graph/tensor.ts';
import { convert } from './convert.ts';
import type { Dataset, Field } from './dataset.ts';

/** PyTorch's `ignore_index`. */
const leftOut = -100n;

/**
 * A data set whose samples are sequences, inputs [samples, steps, ...], as one of their steps. Labels are of each step,
 * [samples, steps, ...], or, as whole numbers, of each sequence, [samples]: then they are of its last step, and the
 * other steps have none. A data set of steps stays as it is. Throws InputError for data without equal steps.
 */
export function asSteps(dataset: Dataset): Dataset {
  const { inputs, labels, rows, sampleCount } = dataset;
  if (dataset.sequenceLength !== undefined) return dataset;
  const sequenceLength = inputs[0]?.values.shape[1];
  for (const { values, reader, source } of inputs) {
    const { shape } = values;
    if (reader === undefined && shape.length >= 2 && shape[1] === sequenceLength && shape[1] !== 0) continue;
    throw new InputError(
      `${source} has samples of shape [${shape.slice(1).join(', ')}]; a cell with --state takes sequences of ` +
        `${sequenceLength ?? 'so many'} steps, [samples, steps, ...].`,
    );
  }
  const length = sequenceLength as number;
  return {
    ...dataset,
    inputs: inputs.map((field) => stepField(field, length)),
    labels: labelsOfSteps(labels, length),
    ...(rows === undefined
      ? {}
      : {
          rows: Uint32Array.from(
            { length: rows.length * length },
            (_, index) => (rows[Math.floor(index / length)] as number) * length + (index % length),
          ),
        }),
    sampleCount: sampleCount * length,
    sequenceLength: length,
  };
}

/** [rows, steps, ...] as [rows · steps, ...]. */
function stepField(field: Field, length: number): Field {
  const [rowCount = 0, , ...rest] = field.values.shape;
  return { ...field, values: { ...field.values, shape: [rowCount * length, ...rest] } };
}

function labelsOfSteps(labels: Field, length: number): Field {
  const { values, source } = labels;
  if (values.shape[1] === length) return stepField(labels, length);
  if (values.shape.length > 1 || isFloat(values.type))
    throw new InputError(
      `${source} has labels of shape [${values.shape.join(', ')}]; for sequences of ${length} steps give ` +
        `[samples, ${length}], or one class for each sequence, [samples].`,
    );
  return { ...labels, values: lastStepOnly(values, length) };
}

function lastStepOnly({ type, data }: Tensor, length: number): Tensor {
  const found = allocate('int64', data.length * length) as BigInt64Array;
  found.fill(leftOut);
  for (let row = 0; row < data.length; row++)
    convert({ type: 'int64', data: found, start: (row + 1) * length - 1 }, { type, data, start: row }, 1, 1);
  return { type: 'int64', shape: [elementCount([data.length, length])], data: found };
}
