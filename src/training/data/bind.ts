// Binds a data set to a model: which array feeds which input, in which type and shape. Mismatches are InputErrors that
// name both.

import { InputError } from '../../errors.ts';
import type { Dimension, ValueInfo } from '../../graph/graph.ts';
import { type ElementType, elementCount, isFloat } from '../../graph/tensor.ts';
import { canConvert } from './convert.ts';
import type { Dataset, Field } from './dataset.ts';

/** The labels that a loss needs: for cross-entropy int64 [N], for mean squared error float32 and the output's shape. */
export interface LabelNeed {
  readonly type: ElementType;
  /** With the batch as its first dimension; if absent, any shape. */
  readonly shape?: readonly Dimension[];
}

/**
 * The same samples with one field for each of the model's inputs, in their order and with their names; matched by name
 * if all names agree, otherwise by position. Shapes must agree up to dimensions of one, or the input must be flat ([N,
 * 784] takes 1x28x28). Throws InputError.
 */
export function bindDataset(dataset: Dataset, inputs: readonly ValueInfo[], labels: LabelNeed): Dataset {
  const byName = new Map(dataset.inputs.map((field) => [field.name, field]));
  const allNamed = inputs.every((input) => byName.has(input.name));
  if (!allNamed && inputs.length !== dataset.inputs.length) {
    const have = dataset.inputs.map((field) => field.name).join(', ');
    const want = inputs.map((input) => input.name).join(', ');
    throw new InputError(
      `The model has ${inputs.length} inputs (${want}), but ${dataset.name} has ${dataset.inputs.length} ` +
        `(${have}); give the arrays the inputs' names.`,
    );
  }
  const fields = inputs.map((input, index) =>
    fitField(allNamed ? byName.get(input.name) : dataset.inputs[index], input, `the model's input ${input.name}`),
  );
  const label = fitField(
    dataset.labels,
    { name: 'labels', type: labels.type, shape: labels.shape ?? dataset.labels.values.shape.map(() => '') },
    'the loss',
  );
  return { ...dataset, inputs: fields, labels: label };
}

function fitField(field: Field | undefined, need: ValueInfo, who: string): Field {
  if (field === undefined) throw new InputError(`No array feeds ${who}.`);
  const { values, source } = field;
  if (!canConvert(values.type, need.type) || !fitsRange(field, need.type)) {
    throw new InputError(
      `${source} holds ${values.type}, but ${who} takes ${need.type}; save the array as ${need.type}.`,
    );
  }
  const shape = fitShape(values.shape.slice(1), need.shape.slice(1));
  if (shape === undefined || need.shape.length === 0) {
    const have = ['N', ...values.shape.slice(1)].join(', ');
    throw new InputError(
      `${source} has the shape [${have}], but ${who} takes ` +
        `[${need.shape.map((d) => (d === '' ? '?' : d)).join(', ')}]; reshape the array or choose another model.`,
    );
  }
  // Pixels stay integers if the model takes integers.
  const divisor = isFloat(need.type) ? field.divisor : 1;
  return {
    ...field,
    name: need.name,
    type: need.type,
    divisor,
    values: { ...values, shape: [values.shape[0] as number, ...shape] },
  };
}

/** The shape that a sample gets, or undefined if it does not fit. */
function fitShape(have: readonly number[], want: readonly Dimension[]): readonly number[] | undefined {
  const agree = (a: readonly number[], b: readonly Dimension[]): boolean =>
    a.length === b.length && a.every((dimension, axis) => typeof b[axis] === 'string' || dimension === b[axis]);
  if (agree(have, want)) return have;
  const known = want.filter((dimension) => typeof dimension === 'number');
  if (known.length !== want.length) return undefined;
  const withoutOnes = (shape: readonly number[]): number[] => shape.filter((dimension) => dimension !== 1);
  if (agree(withoutOnes(have), withoutOnes(known))) return known;
  return known.length === 1 && known[0] === elementCount(have) ? known : undefined;
}

/** Whether integers fit a narrower type: silent wrapping would train on other data. */
function fitsRange(field: Field, type: ElementType): boolean {
  const range = integerRanges[type];
  const { values } = field;
  if (range === undefined || isFloat(values.type) || values.type === type) return true;
  const [least, most] = range;
  for (let index = 0; index < values.data.length; index++) {
    const value = values.data[index] as number | bigint;
    if (value < least || value > most) return false;
  }
  return true;
}

const integerRanges: { readonly [T in ElementType]?: readonly [bigint, bigint] } = {
  int8: [-(2n ** 7n), 2n ** 7n - 1n],
  uint8: [0n, 2n ** 8n - 1n],
  int16: [-(2n ** 15n), 2n ** 15n - 1n],
  uint16: [0n, 2n ** 16n - 1n],
  int32: [-(2n ** 31n), 2n ** 31n - 1n],
  uint32: [0n, 2n ** 32n - 1n],
  int64: [-(2n ** 63n), 2n ** 63n - 1n],
  uint64: [0n, 2n ** 64n - 1n],
};
