// Several data sets as one, each whole or a share of it: new data, and some of the old so that a model that goes on
// training does not forget them (FTPipeHD, section IV-F). What is mixed is copied once, as stored.

import { InputError } from '../../errors.ts';
import { allocate, type ElementArray, elementCount, sameShape, type Tensor } from '../../graph/tensor.ts';
import { createRandom, permutation } from '../../random.ts';
import type { Datasets } from './arrays.ts';
import { createDataset, type Dataset, type Field, rowOf, subset } from './dataset.ts';

/** A data set and how much of it. */
export interface MixPart {
  readonly data: Datasets;
  /** Above 0, at most 1: of the samples for training, rounded, at least one. */
  readonly share: number;
  /** As the user wrote it, for messages. */
  readonly text: string;
}

/**
 * The parts' training data in their order, of each its share: which samples, the seed decides. The test data are all of
 * those of the parts that have any. Throws InputError where samples of two parts are not alike, and for data that are
 * not in memory.
 */
export function mix(parts: readonly MixPart[], seed: number): Datasets {
  const train = parts.map(({ data, share, text }, index) => ({
    dataset: shareOf(data.train, share, seed, index),
    text,
  }));
  const test = parts.flatMap(({ data, text }) => (data.test === undefined ? [] : [{ dataset: data.test, text }]));
  return { train: joined(train), ...(test.length === 0 ? {} : { test: joined(test) }) };
}

function shareOf(dataset: Dataset, share: number, seed: number, part: number): Dataset {
  if (share === 1) return dataset;
  const { sampleCount } = dataset;
  const count = Math.max(1, Math.round(share * sampleCount));
  const order = permutation(sampleCount, createRandom(seed, 0x313c, part));
  return subset(dataset, order.slice(0, count).sort());
}

interface Named {
  readonly dataset: Dataset;
  readonly text: string;
}

function joined(parts: readonly Named[]): Dataset {
  const [first, ...others] = parts as [Named, ...Named[]];
  for (const other of others) checkAlike(first, other);
  const { dataset } = first;
  const fieldOf = (of: (part: Dataset) => Field): Field => ({
    ...of(dataset),
    values: rowsOf(parts.map((part) => [part.dataset, of(part.dataset).values] as const)),
  });
  const inputs = dataset.inputs.map((_, index) => fieldOf((part) => part.inputs[index] as Field));
  const counts = parts.map((part) => part.dataset.classCount);
  const classCount = counts.includes(undefined) ? undefined : Math.max(...(counts as number[]));
  const name = parts.map((part) => part.dataset.name).join('+');
  return createDataset(
    name,
    inputs,
    fieldOf((part) => part.labels),
    classCount,
  );
}

/** The rows of the samples, one part after the other. */
function rowsOf(parts: readonly (readonly [Dataset, Tensor])[]): Tensor {
  const [, head] = parts[0] as readonly [Dataset, Tensor];
  const shape = [parts.reduce((sum, [{ sampleCount }]) => sum + sampleCount, 0), ...head.shape.slice(1)];
  const size = elementCount(head.shape.slice(1));
  const data = allocate(head.type, elementCount(shape));
  let at = 0;
  for (const [dataset, values] of parts)
    for (let sample = 0; sample < dataset.sampleCount; sample++, at += size) {
      const start = rowOf(dataset, sample) * size;
      // Both arrays are of one type; `set` requires a proof for each.
      (data as Float32Array).set(values.data.subarray(start, start + size) as Float32Array, at);
    }
  return { type: head.type, shape, data: data as ElementArray };
}

function checkAlike(a: Named, b: Named): void {
  const described = ({ dataset: { inputs, labels } }: Named): string[] =>
    [...inputs, labels].map(({ values, divisor }) => {
      const each = values.shape.slice(1);
      return `${values.type}${each.length === 0 ? '' : ` ${each.join('x')}`}${divisor === 1 ? '' : ' (pixels)'}`;
    });
  const alike = (x: readonly Field[], y: readonly Field[]): boolean =>
    x.length === y.length &&
    x.every(({ values, divisor }, index) => {
      const other = y[index];
      return (
        other !== undefined &&
        values.type === other.values.type &&
        divisor === other.divisor &&
        sameShape(values.shape.slice(1), other.values.shape.slice(1))
      );
    });
  const fieldsOf = ({ dataset: { inputs, labels } }: Named): readonly Field[] => [...inputs, labels];
  for (const { dataset, text } of [a, b])
    if (fieldsOf({ dataset, text }).some(({ reader }) => reader !== undefined))
      throw new InputError(
        `mix takes data that are in memory, and ${text} is read as it is needed: convert it to npz:FILE.`,
      );
  if (alike(fieldsOf(a), fieldsOf(b))) return;
  throw new InputError(
    `Samples of ${a.text} (${described(a).join(', ')}) and of ${b.text} (${described(b).join(', ')}) are not alike: ` +
      'mix data that are stored in one form.',
  );
}
