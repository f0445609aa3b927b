// A model of texts for batches of shorter samples (--group-by-length): its layers once more for each length.

import { InputError } from '../../errors.ts';
import type { Graph } from '../../graph/graph.ts';
import { haveSameLayers, type LayerSequence } from '../../graph/layers.ts';
import type { Dataset } from '../../training/data/dataset.ts';
import type { BatchOrder } from '../../training/data/order.ts';
import type { LoadedModel } from './loaded-model.ts';
import type { TrainSettings } from './settings.ts';
import { sizedByData } from './subject.ts';

/** The input by which a model knows which tokens are padding. */
const maskName = 'attention_mask';

/**
 * The layers with those for the shorter lengths of `order`, if it has any. Throws InputError for a model that cannot be
 * had in another length or sees padding, and for modes whose rounds have one shape.
 */
export function withShorter(
  sequence: LayerSequence,
  {
    model,
    train,
    settings,
  }: { readonly model: LoadedModel; readonly train: Dataset; readonly settings: TrainSettings },
  { order, layersOf }: { readonly order: BatchOrder; layersOf(graph: Graph): LayerSequence },
): LayerSequence {
  const { lengths } = order;
  if (lengths === undefined) return sequence;
  if (settings.mode !== undefined && settings.mode !== 'sync')
    throw new InputError(
      `--group-by-length does not go with --mode ${settings.mode}, whose rounds all have one shape.`,
    );
  if (!sequence.inputs.some(({ name }) => name === maskName))
    throw new InputError(
      `--group-by-length takes a model that knows padding by its input ${maskName}; it has ` +
        `${sequence.inputs.map(({ name }) => name).join(', ')}: export it with a mask, or leave the flag out.`,
    );
  const shorter = new Map<number, LayerSequence>();
  for (const length of lengths.padded.slice(0, -1)) {
    const own = layersOf(model.atLength?.(length) ?? sizedByData(model.graph, ofLength(train, length)));
    const isShort = own.inputs.every(({ shape }) => shape[1] === length);
    if (!isShort || !haveSameLayers(sequence, own))
      throw new InputError(
        '--group-by-length takes a model that leaves the number of tokens open, and this one has ' +
          `${sequence.inputs[0]?.shape[1]}: export it with a dynamic axis, or leave the flag out.`,
      );
    shorter.set(length, own);
  }
  return { ...sequence, shorter };
}

/** The data set's fields as a model takes them, without samples. */
function ofLength(dataset: Dataset, length: number): Dataset {
  const inputs = dataset.inputs.map((field) => ({
    ...field,
    values: { ...field.values, shape: field.values.shape.map((size, axis) => (axis === 1 ? length : size)) },
  }));
  return { ...dataset, inputs };
}
