// Fits data to a model: inputs, labels, classes. What does not fit is the user's mistake, named.

import { defined } from '../../assert.ts';
import { InputError } from '../../errors.ts';
import { batchSymbol, type Graph } from '../../graph/graph.ts';
import type { CutTensor, LayerSequence } from '../../graph/layers.ts';
import { bindDimensions } from '../../graph/static.ts';
import { isFloat } from '../../graph/tensor.ts';
import { bindDataset } from '../../training/data/bind.ts';
import { checkLabels, type Dataset } from '../../training/data/dataset.ts';

/**
 * The graph with sizes that it leaves open (an image's height, a sentence's length) as the data have them: by name
 * where all inputs' names agree, else by position.
 */
export function sizedByData(graph: Graph, { inputs }: Dataset): Graph {
  const isNamed = graph.inputs.every(({ name }) => inputs.some((field) => field.name === name));
  const sizes: Record<string, number> = {};
  for (const [index, { name, shape }] of graph.inputs.entries()) {
    const field = isNamed ? inputs.find((candidate) => candidate.name === name) : inputs[index];
    const found = field?.values.shape;
    if (found?.length !== shape.length) continue;
    for (const [axis, dimension] of shape.entries())
      if (typeof dimension === 'string' && dimension !== batchSymbol) sizes[dimension] ??= found[axis] as number;
  }
  return bindDimensions(graph, sizes);
}

/**
 * The data set with one field for each input of the model and labels that the loss takes; labels are checked against
 * the output's classes.
 */
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
    `The model's ${what} ${name} has the shape [${shape.join(', ')}], with the batch on axis ${batchAxis}: ` +
      'export it with the batch first.',
  );
}

/**
 * The number of classes: axis 1 of [N, C] and [N, C, d…], the last axis where the labels are [N, T] and the output [N,
 * T, C]. Axis 1 wins where both fit, as in PyTorch.
 */
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
      `${source} has labels of the shape [${['N', ...perSample].join(', ')}], which do not fit the model's ` +
        `output [${output.join(', ')}]: ` +
        'cross-entropy takes one label for each position that is not the class axis.',
    );
  }
  return count;
}

/** The labels as the data set delivers them, batch first. */
export function labelCut(dataset: Dataset): CutTensor {
  const { type, values } = dataset.labels;
  return { name: 'label', type, shape: ['N', ...values.shape.slice(1)], batchAxis: 0, differentiable: false };
}
