// The batches of a run's rounds: which samples, how many, and by what sums over them become the mean that PyTorch takes
// over such a batch.

import { InputError } from '../../errors.ts';
import type { LayerSequence } from '../../graph/layers.ts';
import { elementCount } from '../../graph/tensor.ts';
import { countedLabels, type Dataset, gatherField, rowOf } from '../../training/data/dataset.ts';
import { paddedLengths, type SampleLengths } from '../../training/data/lengths.ts';
import { type BatchOrder, batchIndices, restSizeOf, roundLength, roundsPerEpoch } from '../../training/data/order.ts';
import type { RoundBatch } from '../protocol/round-batch.ts';
import type { TrainSettings } from './settings.ts';

/** How many rounds' batches are remembered: those that are granted, and the last that have committed. */
const keptCount = 8;

/** How a run's batches are drawn. Throws InputError for a batch larger than the data. */
export function batchOrder(
  dataset: Dataset,
  { batch: batchSize, seed, shuffle, dropLast, groupByLength }: TrainSettings,
  { fixedBatch }: LayerSequence,
): BatchOrder {
  const { sampleCount, sequenceLength } = dataset;
  const restSize = dropLast ? 0 : restSizeOf({ sampleCount, batchSize }, fixedBatch);
  const ofSequences = sequenceLength === undefined ? {} : { sequenceLength };
  const ofLengths = groupByLength ? { lengths: lengthsOf(dataset) } : {};
  return { sampleCount, batchSize, restSize, seed, shuffle, ...ofSequences, ...ofLengths };
}

/** Throws InputError for data without lengths. */
function lengthsOf(dataset: Dataset): SampleLengths {
  const { tokenCounts, inputs, name, sampleCount } = dataset;
  const longest = inputs[0]?.values.shape[1];
  if (tokenCounts === undefined || longest === undefined)
    throw new InputError(`--group-by-length takes texts with labels, and ${name} has none: leave it out.`);
  const tokens = Uint32Array.from(
    { length: sampleCount },
    (_, sample) => tokenCounts[rowOf(dataset, sample)] as number,
  );
  return { tokens, padded: paddedLengths(tokens, longest) };
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

/** What the user should know of how texts are padded; nothing where all are alike. */
export function paddingNotes({ lengths }: BatchOrder): readonly string[] {
  if (lengths === undefined) return [];
  const { padded } = lengths;
  const share = padded.map((length, index) => {
    const count = lengths.tokens.filter((own) => own <= length && own > (padded[index - 1] ?? 0)).length;
    return `${length} (${Math.round((100 * count) / lengths.tokens.length)} % of them)`;
  });
  return [`Batches are of texts of like length, padded to as many tokens as the longest needs: ${share.join(', ')}.`];
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
    const length = roundLength(order, round);
    const factor = counted === 0 ? 0 : (order.batchSize * perSample) / counted;
    const batch = { sampleCount, factor, ...(length === undefined ? {} : { length }) };
    known.set(round, batch);
    for (const old of known.keys()) {
      if (known.size <= keptCount) break;
      known.delete(old);
    }
    return batch;
  };
}
