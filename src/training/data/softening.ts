// Class numbers as distributions over the classes, made with each batch: label smoothing and mixup, as PyTorch's
// CrossEntropyLoss(label_smoothing) and torchvision's MixUp compute them. The loss takes distributions as they are.

import { defined } from '../../assert.ts';
import { InputError } from '../../errors.ts';
import { elementCount, type Tensor, wrap } from '../../graph/tensor.ts';
import { createRandom, type Random } from '../../random.ts';

/** What becomes of labels that are class numbers. */
export interface Softening {
  readonly classCount: number;
  /** The fraction, in [0, 1), of each label that is spread evenly over all classes. */
  readonly labelSmoothing: number;
  /** Both parameters of the Beta distribution of mixup's weights; 0: none. */
  readonly mixup: number;
  /** What a sample of each class counts, as CrossEntropyLoss(weight) takes it; absent: 1. */
  readonly classWeights?: readonly number[];
  readonly seed: number;
}

interface Batch {
  readonly inputs: readonly Tensor[];
  readonly labels: Tensor;
}

/**
 * A batch with labels float32 [n, classCount]. With mixup, every sample is blended with the one before it in the batch
 * (the first with the last), inputs and labels alike, by one weight that the seed draws for the round. Throws
 * InputError for inputs that cannot be blended.
 */
export function softened({ inputs, labels }: Batch, softening: Softening, round: number): Batch {
  const { classCount, labelSmoothing, mixup, classWeights, seed } = softening;
  const count = labels.data.length;
  const rest = labelSmoothing / classCount;
  const data = new Float32Array(count * classCount).fill(rest);
  for (let index = 0; index < count; index++)
    data[index * classCount + Number(labels.data[index])] = 1 - labelSmoothing + rest;
  if (classWeights !== undefined)
    for (let index = 0; index < data.length; index++)
      data[index] = (data[index] as number) * (classWeights[index % classCount] as number);
  const soft = wrap('float32', [count, classCount], data);
  if (mixup === 0) return { inputs, labels: soft };
  const weight = beta(mixup, createRandom(seed, round, 0x313c));
  for (const value of [...inputs, soft]) blend(value, weight);
  return { inputs, labels: soft };
}

/**
 * Weights by class from the text of --class-weights: numbers, one a class, or "balanced": a sample counts by samples
 * over (classes · samples of its class), as scikit-learn has it. Throws InputError.
 */
export function parseClassWeights(text: string, counts: readonly number[]): readonly number[] {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (text === 'balanced') return counts.map((count) => (count === 0 ? 1 : total / (counts.length * count)));
  const weights = text.split(',').map((part) => (part.trim() === '' ? Number.NaN : Number(part)));
  if (weights.length === counts.length && weights.every((weight) => weight > 0 && Number.isFinite(weight)))
    return weights;
  throw new InputError(
    `--class-weights ${text} is not "balanced" nor ${counts.length} numbers above 0, one for each class, with commas.`,
  );
}

/** In place: row i becomes weight · row i + (1 − weight) · row i − 1. */
function blend({ type, shape, data }: Tensor, weight: number): void {
  if (type !== 'float32') throw new InputError(`--mixup blends samples, and this model takes ${type}: leave it out.`);
  const values = data as Float32Array;
  const [count = 0, ...sample] = shape;
  const size = elementCount(sample);
  const last = values.slice((count - 1) * size);
  for (let row = count - 1; row >= 0; row--) {
    const [at, before] = [row * size, (row - 1) * size];
    for (let index = 0; index < size; index++) {
      const other = row === 0 ? last[index] : values[before + index];
      values[at + index] = weight * (values[at + index] as number) + (1 - weight) * defined(other, 'a value');
    }
  }
}

/** A draw of Beta(a, a), from two of Gamma(a). */
function beta(a: number, random: Random): number {
  const [x, y] = [gamma(a, random), gamma(a, random)];
  return x + y === 0 ? 0.5 : x / (x + y);
}

/** A draw of Gamma(shape, 1): Marsaglia and Tsang 2000; below 1 by their boost. */
function gamma(shape: number, random: Random): number {
  if (shape < 1) return gamma(shape + 1, random) * (1 - random.uniform()) ** (1 / shape);
  const d = shape - 1 / 3;
  const c = 1 / Math.sqrt(9 * d);
  for (;;) {
    const x = random.normal();
    const v = (1 + c * x) ** 3;
    if (v > 0 && Math.log(1 - random.uniform()) < (x * x) / 2 + d - d * v + d * Math.log(v)) return d * v;
  }
}
