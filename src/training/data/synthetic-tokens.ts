// Seeded token sequences, for trying and measuring models that read tokens: each class has its own favourite tokens,
// which make up half of its samples; the rest is noise. Labels are one class a sequence.

import { InputError } from '../../errors.ts';
import { wrap } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import type { Datasets } from './arrays.ts';
import { createDataset, type Dataset, inputField, labelField } from './dataset.ts';

/** The parts of `synthetic-tokens:LENGTH:VOCABULARY[:CLASSES[:SAMPLES]]`. */
export interface SyntheticTokens {
  readonly length: number;
  /** Tokens are from 1 (models pad with 0) to vocabularySize − 1. */
  readonly vocabularySize: number;
  readonly classCount: number;
  readonly sampleCount: number;
}

const favouriteCount = 8;
const maxBytes = 2 ** 32;

/**
 * Training data, and a quarter as many (at least as many as classes) test samples with the same favourites. Throws
 * InputError if they would not fit in memory.
 */
export function makeSyntheticTokens(description: SyntheticTokens, seed: number): Datasets {
  const { length, vocabularySize, classCount, sampleCount } = description;
  if (vocabularySize < 2)
    throw new InputError(
      'Synthetic tokens need a vocabulary of at least 2: token 0 is for padding and does not occur.',
    );
  if (length * sampleCount * 4 > maxBytes) {
    throw new InputError(
      `The synthetic tokens [${sampleCount}, ${length}] are larger than 4 GiB; choose a shorter sequence or ` +
        'fewer samples.',
    );
  }
  const random = createRandom(seed, 0x70ce);
  const favourites = Int32Array.from(
    { length: classCount * favouriteCount },
    () => 1 + random.integer(vocabularySize - 1),
  );
  const testCount = Math.max(classCount, Math.floor(sampleCount / 4));
  const make = (count: number, stream: number): Dataset =>
    draw({ ...description, sampleCount: count }, favourites, seed, stream);
  return { train: make(sampleCount, 1), test: make(testCount, 2) };
}

function draw(description: SyntheticTokens, favourites: Int32Array, seed: number, stream: number): Dataset {
  const { length, vocabularySize, classCount, sampleCount } = description;
  const random = createRandom(seed, 0x70ce, stream);
  const tokens = new Int32Array(sampleCount * length);
  const labels = new Int32Array(sampleCount);
  for (let sample = 0; sample < sampleCount; sample++) {
    const label = sample % classCount;
    labels[sample] = label;
    for (let index = 0; index < length; index++) {
      const isFavourite = random.integer(2) === 1;
      const drawn = random.integer(isFavourite ? favouriteCount : vocabularySize - 1);
      tokens[sample * length + index] = isFavourite
        ? (favourites[label * favouriteCount + drawn] as number)
        : 1 + drawn;
    }
  }
  const name = `synthetic tokens ${length}`;
  const input = inputField('input', wrap('int32', [sampleCount, length], tokens), name);
  return createDataset(name, [input], labelField(wrap('int32', [sampleCount], labels), name), classCount);
}
