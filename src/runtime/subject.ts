// Fits data and settings to a model: inputs, labels, classes, frozen parameters. What does not fit is the user's mistake, named.

import { defined } from '../assert.ts';
import { InputError } from '../errors.ts';
import type { CutTensor, LayerSequence } from '../graph/layers.ts';
import { isFloat } from '../graph/tensor.ts';
import { bindDataset } from '../training/data/bind.ts';
import { checkLabels, type Dataset } from '../training/data/dataset.ts';

/** The data set with one field for each input of the model and labels that the loss takes; labels are checked against the output's classes. */
export function bindToModel(dataset: Dataset, sequence: LayerSequence, loss: 'cross-entropy' | 'mse'): Dataset {
  const outputCut = defined(defined(sequence.layers.at(-1), 'a layer').outputs[0], 'the output');
  for (const input of sequence.inputs) checkBatchFirst(input, 'input');
  checkBatchFirst(outputCut, 'output');
  const output = outputCut.shape;
  const inputs = sequence.inputs.map(({ name, type, shape }) => ({ name, type, shape }));
  if (loss === 'mse') return bindDataset(dataset, inputs, { type: 'float32', shape: output });
  if (isFloat(dataset.labels.values.type)) return bindDataset(dataset, inputs, { type: 'float32', shape: output });
  const bound = bindDataset(dataset, inputs, { type: 'int64' });
  checkLabels(bound, classCount(output, bound));
  return bound;
}

/** Data and labels are fed with the batch first. */
function checkBatchFirst({ name, shape, batchAxis }: CutTensor, what: 'input' | 'output'): void {
  if (batchAxis === 0) return;
  throw new InputError(
    `The model's ${what} ${name} has the shape [${shape.join(', ')}], with the batch on axis ${batchAxis}: export it with the batch first.`,
  );
}

/** The number of classes: axis 1 of [N, C] and [N, C, d…], the last axis where the labels are [N, T] and the output [N, T, C]. Axis 1 wins where both fit, as in PyTorch. */
function classCount(output: readonly (number | 'N')[], dataset: Dataset): number {
  const { values, source } = dataset.labels;
  const perSample = values.shape.slice(1);
  const own = output.slice(1) as number[];
  const fits = (axis: number): boolean => {
    const rest = own.filter((_, index) => index !== axis);
    return rest.length === perSample.length && rest.every((dimension, index) => dimension === perSample[index]);
  };
  const axis = fits(0) ? 0 : own.length - 1;
  const count = own[axis];
  if (count === undefined || !fits(axis)) {
    throw new InputError(
      `${source} has labels of the shape [${['N', ...perSample].join(', ')}], which do not fit the model's output [${output.join(', ')}]: cross-entropy takes one label for each position that is not the class axis.`,
    );
  }
  return count;
}

/** The labels as the data set delivers them, batch first. */
export function labelCut(dataset: Dataset): CutTensor {
  const { type, values } = dataset.labels;
  return { name: 'label', type, shape: ['N', ...values.shape.slice(1)], batchAxis: 0, differentiable: false };
}

/** The parameters that match one of the patterns (`*` stands for any text). Throws InputError for a pattern that matches none. */
export function frozenNames(sequence: LayerSequence, patterns: readonly string[]): string[] {
  const { parameters } = sequence.graph;
  const frozen = new Set<string>();
  for (const pattern of patterns) {
    const expression = new RegExp(`^${pattern.replace(/[.+?^${}()|[\]\\]/g, '\\$&').replace(/\*/g, '.*')}$`);
    const matches = parameters.filter((name) => expression.test(name));
    if (matches.length === 0) {
      throw new InputError(
        `--freeze ${pattern} matches no parameter: the model has ${parameters.slice(0, 4).join(', ')}${parameters.length > 4 ? ', …' : ''}.`,
      );
    }
    for (const name of matches) frozen.add(name);
  }
  if (parameters.length > 0 && frozen.size === parameters.length)
    throw new InputError('--freeze leaves no parameter to train: freeze fewer.');
  return parameters.filter((name) => frozen.has(name));
}
