// Fits data to a model: inputs, labels, classes. What does not fit is the user's mistake, named.

import { defined } from '../../assert.ts';
import { InputError } from '../../errors.ts';
import { batchSymbol, type Graph } from '../../graph/graph.ts';
import type { CutTensor, LayerSequence } from '../../graph/layers.ts';
import { withLogits } from '../../graph/logits.ts';
import { bindDimensions } from '../../graph/static.ts';
import { elementCount } from '../../graph/tensor.ts';
import { bindDataset } from '../../training/data/bind.ts';
import type { Dataset } from '../../training/data/dataset.ts';
import { classCounts } from '../../training/data/describe.ts';
import { labelsFor } from '../../training/data/labels.ts';
import { parseClassWeights } from '../../training/data/softening.ts';
import type { LossKind } from '../../training/losses.ts';

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

/** What a data set is bound for. */
export interface BindTask {
  readonly loss: LossKind;
  /** A label that is left out, besides −100. */
  readonly ignoreLabel?: number;
}

/**
 * The data set with one field for each input of the model and labels that the loss takes; labels are checked against
 * the output (training/data/labels.ts).
 */
export function bindToModel(dataset: Dataset, sequence: LayerSequence, task: BindTask): Dataset {
  const outputCut = outputOf(sequence);
  checkBatchesFirst(sequence);
  const inputs = sequence.inputs.map(({ name, type, shape }) => ({ name, type, shape }));
  const isSigmoid = withLogits(sequence.graph, 'Sigmoid').removed !== undefined;
  const { dataset: checked, need } = labelsFor(dataset, { ...task, output: outputCut.shape, isSigmoid });
  return bindDataset(checked, inputs, need);
}

function outputOf(sequence: LayerSequence): CutTensor {
  return defined(defined(sequence.layers.at(-1), 'a layer').outputs[0], 'the output');
}

/** Data and labels are fed with the batch first: throws InputError for a model that has it elsewhere. */
export function checkBatchesFirst(sequence: LayerSequence): void {
  for (const input of sequence.inputs) checkBatchFirst(input, 'input');
  checkBatchFirst(outputOf(sequence), 'output');
}

function checkBatchFirst({ name, shape, batchAxis }: CutTensor, what: 'input' | 'output'): void {
  if (batchAxis === 0) return;
  throw new InputError(
    `The model's ${what} ${name} has the shape [${shape.join(', ')}], with the batch on axis ${batchAxis}: ` +
      'export it with the batch first.',
  );
}

/** The labels as the data set delivers them, batch first. */
export function labelCut({ labels, softening }: Dataset): CutTensor {
  const { type, values } = labels;
  const shared = { name: 'label', batchAxis: 0, differentiable: false } as const;
  if (softening !== undefined) return { ...shared, type: 'float32', shape: ['N', softening.classCount] };
  return { ...shared, type, shape: ['N', ...values.shape.slice(1)] };
}

/** What makes labels softer than they are in the data. */
export interface SofteningTask extends Pick<BindTask, 'loss'> {
  readonly mixup: number;
  readonly labelSmoothing: number;
  readonly classWeights?: string;
  readonly seed: number;
}

/**
 * A bound data set whose batches have softened labels, if the task says so. Throws InputError for labels that are not
 * one class a sample.
 */
export function withSoftening(dataset: Dataset, sequence: LayerSequence, task: SofteningTask): Dataset {
  const { loss, mixup, labelSmoothing, classWeights, seed } = task;
  if (mixup === 0 && labelSmoothing === 0 && classWeights === undefined) return dataset;
  const { values, type, ignored } = dataset.labels;
  if (loss !== 'cross-entropy' || values.shape.length !== 1 || type !== 'int64' || ignored !== undefined)
    throw new InputError(
      `--${mixup > 0 ? 'mixup' : labelSmoothing > 0 ? 'label-smoothing' : 'class-weights'} takes data with one class ` +
        'for each sample and --loss cross-entropy: leave it out.',
    );
  const classCount = elementCount(outputOf(sequence).shape.slice(1) as number[]);
  const softening = { classCount, labelSmoothing, mixup, seed };
  if (classWeights === undefined) return { ...dataset, softening };
  const weights = parseClassWeights(classWeights, classCounts(dataset) ?? []);
  const all = Array.from({ length: classCount }, (_, label) => weights[label] ?? 1);
  return { ...dataset, softening: { ...softening, classWeights: all } };
}
