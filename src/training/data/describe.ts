// What a data set holds, for people: samples, their shape, classes with their counts, and what is out of balance.

import type { Dataset } from './dataset.ts';
import { rowOf } from './dataset.ts';

/** The classes of a data set and how many samples each has; undefined if labels are no classes, one a sample. */
export function classCounts(dataset: Dataset): readonly number[] | undefined {
  const { labels, classCount, sampleCount } = dataset;
  if (classCount === undefined || labels.values.shape.length !== 1) return undefined;
  const counts = new Array<number>(classCount).fill(0);
  for (let sample = 0; sample < sampleCount; sample++) {
    const label = Number(labels.values.data[rowOf(dataset, sample)]);
    counts[label] = (counts[label] ?? 0) + 1;
  }
  return counts;
}

/** A class with this many times the samples of another is worth a word. */
const largestRatio = 5;
const shownClassCount = 8;

/** Lines that describe a data set, the first without its name. */
export function describeDataset(dataset: Dataset): readonly string[] {
  const shapes = dataset.inputs.map(
    ({ name, values, type }) => `${name} ${type} [${values.shape.slice(1).join(', ')}]`,
  );
  const lines = [shapes.join(', ')];
  const counts = classCounts(dataset);
  if (counts === undefined) return lines;
  const named = counts.map((count, label) => ({ count, name: dataset.classNames?.[label] ?? String(label) }));
  const listed = named.slice(0, shownClassCount).map(({ count, name }) => `${name} ${count}`);
  const rest = named.length > shownClassCount ? `, and ${named.length - shownClassCount} more` : '';
  lines.push(`${counts.length} classes: ${listed.join(', ')}${rest}`);
  const sorted = named.toSorted((a, b) => a.count - b.count);
  const [least, most] = [sorted[0], sorted.at(-1)];
  if (least !== undefined && most !== undefined && most.count > largestRatio * least.count)
    lines.push(
      `out of balance: ${most.name} has ${most.count} samples, ${least.name} ${least.count}; ` +
        '--class-weights balanced makes up for it',
    );
  return lines;
}
