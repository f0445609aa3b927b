// Seeded data for trying and measuring models: each class has its own pattern, each sample is its class's pattern with
// noise, so that a model can learn it and a wrong gradient shows.

import { InputError } from '../../errors.ts';
import { elementCount, wrap } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import type { Datasets } from './arrays.ts';
import { createDataset, type Dataset, inputField, labelField } from './dataset.ts';

/** The parts of `synthetic:SHAPE[:CLASSES[:SAMPLES]]`. */
export interface SyntheticShape {
  /** The shape of one sample. */
  readonly shape: readonly number[];
  readonly classCount: number;
  readonly sampleCount?: number;
}

/** Default number of samples: as many as fit in 64 MiB, at most 2,048 and at least 64. */
const defaultBytes = 64 * 1024 * 1024;
const maxBytes = 4 * 1024 ** 3;

/**
 * Training data, and a quarter as many (at least as many as classes) test samples from the same patterns. Throws
 * InputError if they would not fit in memory.
 */
export function makeSynthetic(description: SyntheticShape, seed: number): Datasets {
  const { shape, classCount } = description;
  const sampleBytes = elementCount(shape) * 4;
  const fitting = Math.floor(defaultBytes / sampleBytes);
  const sampleCount = description.sampleCount ?? Math.max(64, Math.min(2048, fitting));
  if (!(sampleBytes * (sampleCount + classCount) <= maxBytes)) {
    throw new InputError(
      `The synthetic data [${sampleCount}, ${shape.join(', ')}] are larger than 4 GiB; choose a smaller shape ` +
        'or fewer samples.',
    );
  }
  const patterns = new Float32Array(classCount * elementCount(shape));
  const random = createRandom(seed, 0x5e7);
  for (let index = 0; index < patterns.length; index++) patterns[index] = random.normal();
  const testCount = Math.max(classCount, Math.floor(sampleCount / 4));
  return {
    train: draw(description, patterns, sampleCount, seed, 1),
    test: draw(description, patterns, testCount, seed, 2),
  };
}

function draw(
  description: SyntheticShape,
  patterns: Float32Array,
  sampleCount: number,
  seed: number,
  stream: number,
): Dataset {
  const { shape, classCount } = description;
  const size = elementCount(shape);
  const random = createRandom(seed, 0x5e7, stream);
  const inputs = new Float32Array(sampleCount * size);
  const labels = new Int32Array(sampleCount);
  for (let sample = 0; sample < sampleCount; sample++) {
    // Each run of `classCount` samples contains every class once; the batch order shuffles them.
    const label = sample % classCount;
    labels[sample] = label;
    for (let index = 0; index < size; index++) {
      inputs[sample * size + index] = 0.5 * (patterns[label * size + index] as number) + 2 * random.uniform() - 1;
    }
  }
  const name = `synthetic ${shape.join('x')}`;
  const input = inputField('input', wrap('float32', [sampleCount, ...shape], inputs), name);
  return createDataset(name, [input], labelField(wrap('int32', [sampleCount], labels), name), classCount);
}
