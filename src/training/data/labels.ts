// Labels as a loss takes them: classes, distributions over classes, yes or no for each output, or numbers; and labels
// that are left out. What does not fit is one sentence that says what would.

import { InputError } from '../../errors.ts';
import type { Dimension } from '../../graph/graph.ts';
import { halfToNumber } from '../../graph/operators/numbers.ts';
import { elementCount, isFloat, type Tensor, wrap } from '../../graph/tensor.ts';
import { classLayout, isNumberLoss, type LossKind, withoutOnes } from '../losses.ts';
import type { LabelNeed } from './bind.ts';
import { type Dataset, type Field, rowOf } from './dataset.ts';

/** What labels are for. */
export interface LabelTask {
  readonly loss: LossKind;
  /** The model's output, batch first. */
  readonly output: readonly Dimension[];
  /** True if that output is what a Sigmoid gives. */
  readonly isSigmoid: boolean;
  /** A label that is left out, besides −100. */
  readonly ignoreLabel?: number;
}

/** PyTorch's default for `ignore_index`: left out of cross-entropy and binary cross-entropy whatever else is. */
const alwaysIgnored = -100;

/**
 * The data set with labels that are checked for the task, and how they are to be bound (bind.ts). Labels that are left
 * out are in `Field.ignored` if there are any. Throws InputError.
 */
export function labelsFor(dataset: Dataset, task: LabelTask): { readonly dataset: Dataset; readonly need: LabelNeed } {
  const { loss, output, ignoreLabel } = task;
  const each: LabelNeed = { type: 'float32', shape: output };
  if (isNumberLoss(loss)) return { dataset, need: each };
  const ignored = [alwaysIgnored, ...(ignoreLabel === undefined ? [] : [ignoreLabel])];
  if (loss === 'binary-cross-entropy') {
    const isAny = checkYesOrNo(dataset, new Set(ignored));
    return { dataset: isAny ? withLabels(dataset, { ...dataset.labels, ignored }) : dataset, need: each };
  }
  const classCount = classCountOf(dataset, task);
  if (classCount === undefined) {
    if (loss === 'focal')
      throw new InputError(
        `${dataset.labels.source} has a distribution for each sample, and --loss focal takes class numbers: use ` +
          '--loss cross-entropy.',
      );
    checkDistributions(dataset, task);
    return { dataset, need: each };
  }
  const isAny = checkLabels(dataset, classCount, new Set(ignored));
  const labels = { ...dataset.labels, values: withoutFloats(dataset.labels.values) };
  return { dataset: withLabels(dataset, isAny ? { ...labels, ignored } : labels), need: { type: 'int64' } };
}

function withLabels(dataset: Dataset, labels: Field): Dataset {
  return { ...dataset, labels };
}

/** The number of classes if labels are class numbers; undefined if they are distributions. */
function classCountOf({ labels }: Dataset, { output }: LabelTask): number | undefined {
  const own = output.slice(1) as number[];
  const perSample = labels.values.shape.slice(1);
  if (elementCount(own) === 1)
    throw new InputError(
      'The model has one output a sample, in which cross-entropy finds no classes: use --loss binary-cross-entropy ' +
        'for labels of 0 and 1 (a Sigmoid at the end belongs to it), or --loss mse for numbers.',
    );
  const layout = classLayout([1, ...own], [1, ...perSample]);
  if (layout !== undefined) return layout.classCount;
  if (withoutOnes([1, ...own]).join() === withoutOnes([1, ...perSample]).join()) return undefined;
  throw new InputError(
    `${labels.source} has labels of the shape [${['N', ...perSample].join(', ')}], which do not fit the model's ` +
      `output [${output.join(', ')}]: cross-entropy takes one label for each position that is not the class axis; ` +
      'choose another model, another of its outputs (--output), or another loss.',
  );
}

/**
 * Throws InputError unless every label is a class number in [0, classCount), in any type, or left out. Returns whether
 * any is left out.
 */
export function checkLabels(dataset: Dataset, classCount: number, ignored: ReadonlySet<number> = new Set()): boolean {
  const { source } = dataset.labels;
  return scan(dataset, ignored, (label, row) => {
    if (!Number.isInteger(label))
      throw new InputError(
        `The label ${label} at row ${row} of ${source} is not a whole number, and cross-entropy takes class numbers; ` +
          'use --loss mse for numbers.',
      );
    if (label >= 0 && label < classCount) return;
    throw new InputError(
      `The label ${label} at row ${row} of ${source} is outside 0…${classCount - 1}: the model has ` +
        `${classCount} outputs; correct the labels, take a model with more outputs, or leave such labels out with ` +
        `--ignore-label ${label}.`,
    );
  });
}

function checkYesOrNo(dataset: Dataset, ignored: ReadonlySet<number>): boolean {
  const { source } = dataset.labels;
  return scan(dataset, ignored, (label, row) => {
    if (label >= 0 && label <= 1) return;
    throw new InputError(
      `The label ${label} at row ${row} of ${source} is not between 0 and 1, as binary-cross-entropy takes it for ` +
        'each output; for class numbers use --loss cross-entropy.',
    );
  });
}

/** Visits the labels that count. Returns whether any does not. Throws InputError if none does. */
function scan(dataset: Dataset, ignored: ReadonlySet<number>, visit: (label: number, row: number) => void): boolean {
  const { values, source } = dataset.labels;
  const rowSize = elementCount(values.shape.slice(1));
  let [ignoredCount, countedCount] = [0, 0];
  for (let sample = 0; sample < dataset.sampleCount; sample++) {
    const row = rowOf(dataset, sample);
    for (let index = row * rowSize; index < (row + 1) * rowSize; index++) {
      const label = numberAt(values, index);
      if (ignored.has(label)) {
        ignoredCount++;
        continue;
      }
      countedCount++;
      visit(label, row);
    }
  }
  if (countedCount === 0)
    throw new InputError(`Every label in ${source} is left out (${[...ignored].join(', ')}): nothing could be learnt.`);
  return ignoredCount > 0;
}

/** How far the sum of a distribution may be from 1: half precision has three digits. */
const sumTolerance = 1e-2;

/** Throws InputError unless labels of the output's shape are distributions over its classes, on axis 1. */
function checkDistributions(dataset: Dataset, { isSigmoid }: LabelTask): void {
  const { values, source } = dataset.labels;
  const [, classCount = 1, ...positions] = withoutOnes(values.shape);
  const positionCount = elementCount(positions);
  const several = 'for several labels of 0 or 1 a sample use --loss binary-cross-entropy';
  if (isSigmoid)
    throw new InputError(
      `The model ends in a Sigmoid, and ${source} has a label for each of its outputs: cross-entropy would train ` +
        `them as a Softmax; ${several}.`,
    );
  for (let sample = 0; sample < dataset.sampleCount; sample++) {
    const row = rowOf(dataset, sample);
    for (let position = 0; position < positionCount; position++) {
      let sum = 0;
      for (let index = 0; index < classCount; index++)
        sum += numberAt(values, (row * classCount + index) * positionCount + position);
      if (Math.abs(sum - 1) <= sumTolerance) continue;
      const axis = positions.length === 0 ? '' : ' along axis 1, where cross-entropy has the classes,';
      throw new InputError(
        `Row ${row} of ${source}${axis} sums to ${Number(sum.toPrecision(4))}, which is no distribution over the ` +
          `classes: ${several}; a distribution sums to 1.`,
      );
    }
  }
}

/** Whole numbers that were saved as floats, as integers; others as they are. */
function withoutFloats(values: Tensor): Tensor {
  if (!isFloat(values.type)) return values;
  const data = Int32Array.from({ length: values.data.length }, (_, index) => numberAt(values, index));
  return wrap('int32', values.shape, data);
}

function numberAt({ type, data }: Tensor, index: number): number {
  const value = data[index] as number | bigint;
  return type === 'float16' ? halfToNumber(value as number) : Number(value);
}
