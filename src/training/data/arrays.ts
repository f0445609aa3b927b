// Named arrays (an .npz file, or two .npy files) as data sets: the usual names tell which array is which.

import { InputError } from '../../errors.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { createDataset, type Dataset, type Field, inferClassCount, inputField, labelField } from './dataset.ts';
import { shownName } from './source.ts';

/** Training data, and test data if the source separates them. */
export interface Datasets {
  readonly train: Dataset;
  readonly test?: Dataset;
  /** Files that belong to a trained model, by name, such as its tokenizer. */
  readonly companions?: Readonly<Partial<Record<'tokenizer.json', string>>>;
  /** What was found that the user should know, a phrase each. */
  readonly findings?: readonly string[];
}

const labelNames: readonly string[] = ['labels', 'label', 'y', 'targets', 'target'];

/** A data set of one array of inputs and one of labels. Throws InputError if their lengths differ. */
export function datasetFromPair(name: string, inputs: Field, labels: Field): Dataset {
  return createDataset(name, [inputs], labels, inferClassCount(labels));
}

/**
 * Finds the labels (`labels`, `y`, `targets`; or the second of two unnamed arrays) and takes all other arrays as inputs
 * by name. Names that end in `_train` and `_test` give both parts. Case is ignored. Throws InputError that lists the
 * arrays.
 */
export function datasetsFromArrays(source: string, arrays: ReadonlyMap<string, Tensor>): Datasets {
  const [train, test] = [partOf(arrays, 'train'), partOf(arrays, 'test')];
  if (train.size === 0) return { train: datasetFromArrays(source, arrays) };
  const parts = { train: datasetFromArrays(source, train) };
  return test.size === 0 ? parts : { ...parts, test: datasetFromArrays(source, test) };
}

/** The arrays named `x_train` or `train_x`, by the bare name. */
function partOf(arrays: ReadonlyMap<string, Tensor>, part: string): ReadonlyMap<string, Tensor> {
  const affix = new RegExp(`^${part}_|_${part}$`, 'i');
  return new Map(
    [...arrays].filter(([name]) => affix.test(name)).map(([name, array]) => [name.replace(affix, ''), array]),
  );
}

function datasetFromArrays(source: string, arrays: ReadonlyMap<string, Tensor>): Dataset {
  const names = [...arrays.keys()];
  const unnamed = names.length === 2 && arrays.has('arr_0') && arrays.has('arr_1');
  const labelName = unnamed ? 'arr_1' : names.find((name) => labelNames.includes(name.toLowerCase()));
  const labels = labelName === undefined ? undefined : arrays.get(labelName);
  if (labels === undefined || names.length < 2) {
    throw new InputError(
      `${source} holds the arrays ${listed(names)}, none of which can be identified as the labels; name the ` +
        'arrays x and y, or x_train, y_train, x_test and y_test.',
    );
  }
  const inputs = [...arrays]
    .filter(([name]) => name !== labelName)
    .map(([name, array]) => inputField(name, array, `${source} (${shownName(name)})`));
  const field = labelField(labels, `${source} (${labelName})`);
  return createDataset(source, inputs, field, inferClassCount(field));
}

const listedCount = 10;

function listed(names: readonly string[]): string {
  if (names.length === 0) return '(none)';
  const shown = names.slice(0, listedCount).map(shownName).join(', ');
  return names.length > listedCount ? `${shown} and ${names.length - listedCount} others` : shown;
}
