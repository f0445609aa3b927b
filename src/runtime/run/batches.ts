// The batches of a run's rounds: which samples, how many, and by what sums over them become the mean that PyTorch takes
// over such a batch.

import type { LayerSequence } from '../../graph/layers.ts';
import { elementCount } from '../../graph/tensor.ts';
import { countedLabels, type Dataset, gatherField } from '../../training/data/dataset.ts';
import { type BatchOrder, batchIndices, restSizeOf, roundsPerEpoch } from '../../training/data/order.ts';
import type { RoundBatch } from '../protocol/round-batch.ts';
import type { TrainSettings } from './settings.ts';

/** How many rounds' batches are remembered: those that are granted, and the last that have committed. */
const keptCount = 8;

/** How a run's batches are drawn. Throws InputError for a batch larger than the data. */
export function batchOrder(
  { sampleCount, sequenceLength }: Dataset,
  { batch: batchSize, seed, shuffle, dropLast }: TrainSettings,
  { fixedBatch }: LayerSequence,
): BatchOrder {
  const restSize = dropLast ? 0 : restSizeOf({ sampleCount, batchSize }, fixedBatch);
  const ofSequences = sequenceLength === undefined ? {} : { sequenceLength };
  return { sampleCount, batchSize, restSize, seed, shuffle, ...ofSequences };
}

/** The samples of an epoch's last, smaller batch; 0 if the run comes to none. */
export function comingRestSize(order: BatchOrder, { steps }: Pick<TrainSettings, 'steps'>): number {
  return steps === undefined || steps >= roundsPerEpoch(order) ? (order.restSize ?? 0) : 0;
}

/** What the user should know of samples that a model of a fixed batch size cannot take; nothing if there are none. */
export function leftOut(
  { sampleCount, batchSize, restSize = 0 }: BatchOrder,
  { dropLast }: TrainSettings,
  { fixedBatch }: LayerSequence,
): readonly string[] {
  const leftCount = (sampleCount % batchSize) - restSize;
  if (dropLast || leftCount === 0) return [];
  const verb = leftCount === 1 ? 'is' : 'are';
  return [
    `${leftCount} of ${sampleCount} samples ${verb} left out of each epoch, other ones each time if they are ` +
      `shuffled: the model was exported for batches of exactly ${fixedBatch}.`,
  ];
}

/** How many labels of these samples count, or what they count together where classes have weights. */
function countOf(dataset: Dataset, indices: Uint32Array, perSample: number): number {
  const { labels, softening } = dataset;
  const weights = softening?.classWeights;
  if (weights === undefined && labels.ignored === undefined) return indices.length * perSample;
  const gathered = gatherField(dataset, labels, indices);
  if (weights === undefined) return countedLabels(gathered);
  let sum = 0;
  for (let index = 0; index < indices.length; index++) sum += weights[Number(gathered.data[index])] ?? 1;
  return sum;
}

/** The batch of each round. */
export function batchesOf(dataset: Dataset, order: BatchOrder): (round: number) => RoundBatch {
  const { labels } = dataset;
  const perSample = elementCount(labels.values.shape.slice(1));
  const known = new Map<number, RoundBatch>();
  return (round) => {
    const found = known.get(round);
    if (found !== undefined) return found;
    const indices = batchIndices(order, round);
    const sampleCount = indices.length;
    const counted = countOf(dataset, indices, perSample);
    const batch = { sampleCount, factor: counted === 0 ? 0 : (order.batchSize * perSample) / counted };
    known.set(round, batch);
    for (const old of known.keys()) {
      if (known.size <= keptCount) break;
      known.delete(old);
    }
    return batch;
  };
}
