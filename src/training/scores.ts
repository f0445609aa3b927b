// What a test says beyond its mean loss: which class is taken for which, and the samples that the model gets most
// wrong. From logits and labels, batch by batch; plain data at the end.

import { elementCount, type Tensor, toNumbers } from '../graph/tensor.ts';
import { isNumberLoss, type LossKind } from './losses.ts';

/** One sample of a test. */
export interface SampleScore {
  /** Its place in the data set. */
  readonly sample: number;
  /** Its own loss: of classes −log p; of several labels or numbers the mean over the outputs. */
  readonly loss: number;
  /** The class; of several labels those that are 1; of numbers the targets. */
  readonly label: readonly number[];
  /** The likeliest class; the labels above one half; the outputs. */
  readonly predicted: readonly number[];
  /** Of the predicted class. */
  readonly probability?: number;
}

/** What a test found, class by class and sample by sample. */
export interface TestDetails {
  /** [class][predicted class]: how many samples. Absent where a sample has not one class. */
  readonly confusion?: readonly (readonly number[])[];
  /** Of several labels a sample: for each, samples that are [neither 1 nor predicted, only predicted, only 1, both]. */
  readonly labels?: readonly (readonly [number, number, number, number])[];
  /** Of numbers. */
  readonly meanAbsoluteError?: number;
  /** Of numbers: 1 − squared errors over squared deviations from the mean, averaged over the outputs. */
  readonly r2?: number;
  /** The samples with the largest losses, the largest first. */
  readonly worst: readonly SampleScore[];
}

/** One class of a confusion matrix. */
export interface ClassScore {
  /** Samples of the class. */
  readonly sampleCount: number;
  /** Of these, the fraction that is predicted as it; null without samples. */
  readonly recall: number | null;
  /** Of the samples that are predicted as the class, the fraction that is; null if none is. */
  readonly precision: number | null;
  /** Twice the right ones over samples and predictions; null without either. */
  readonly f1: number | null;
}

/** Collects the scores of a test. */
export interface ScoreSheet {
  /** Logits [n, …] and labels of the samples from `first` on. `ignoresNegative`: labels below 0 count for nothing. */
  add(first: number, logits: Tensor, labels: Tensor, ignoresNegative: boolean): void;
  details(): TestDetails;
}

const worstCount = 12;
/** More outputs than these have no picture that a person would look at: tokens of a vocabulary, pixels. */
const maxOutputCount = 1000;

/**
 * A sheet for outputs and labels of these shapes, batch first; undefined where a sample has more positions or outputs
 * than anyone would read.
 */
export function scoreSheet(
  loss: LossKind,
  logits: readonly number[],
  labels: readonly number[],
): ScoreSheet | undefined {
  const [outputCount, labelCount] = [elementCount(logits.slice(1)), elementCount(labels.slice(1))];
  if (outputCount > maxOutputCount) return undefined;
  if (isNumberLoss(loss)) return outputCount === labelCount ? numberSheet(loss, outputCount) : undefined;
  if (loss === 'binary-cross-entropy') return outputCount === labelCount ? labelSheet(outputCount) : undefined;
  return labelCount === 1 && outputCount > 1 ? classSheet(outputCount) : undefined;
}

/** The class scores in a confusion matrix, as scikit-learn's classification_report. */
export function classScores(confusion: readonly (readonly number[])[]): readonly ClassScore[] {
  return confusion.map((row, index) => {
    const right = row[index] ?? 0;
    const sampleCount = sum(row);
    const predictedCount = sum(confusion.map((other) => other[index] ?? 0));
    const fraction = (part: number, of: number): number | null => (of === 0 ? null : part / of);
    return {
      sampleCount,
      recall: fraction(right, sampleCount),
      precision: fraction(right, predictedCount),
      f1: fraction(2 * right, sampleCount + predictedCount),
    };
  });
}

/** The mean of a score over the classes that have it. */
export function macro(scores: readonly ClassScore[], key: 'recall' | 'f1'): number {
  const known = scores.flatMap(({ [key]: value }) => (value === null ? [] : [value]));
  return sum(known) / known.length;
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

/** The samples with the largest losses; of equal ones the first. */
class Worst {
  readonly #found: SampleScore[] = [];

  add(score: SampleScore): void {
    const found = this.#found;
    if (found.length === worstCount && score.loss <= (found.at(-1) as SampleScore).loss) return;
    let place = found.length;
    while (place > 0 && (found[place - 1] as SampleScore).loss < score.loss) place--;
    found.splice(place, 0, score);
    if (found.length > worstCount) found.pop();
  }

  get list(): readonly SampleScore[] {
    return this.#found;
  }
}

function classSheet(classCount: number): ScoreSheet {
  const confusion = Array.from({ length: classCount }, () => new Array<number>(classCount).fill(0));
  const worst = new Worst();
  return {
    add(first, logits, labels, ignoresNegative) {
      for (const [index, row] of rowsOf(logits, classCount)) {
        const label = Number(labels.data[index]);
        if (ignoresNegative && label < 0) continue;
        let best = 0;
        for (let place = 1; place < classCount; place++)
          if ((row[place] as number) > (row[best] as number)) best = place;
        (confusion[label] as number[])[best] = (confusion[label]?.[best] ?? 0) + 1;
        const most = row[best] as number;
        const logSum = Math.log(sum(row.map((value) => Math.exp(value - most))));
        const loss = logSum - ((row[label] as number) - most);
        worst.add({ sample: first + index, loss, label: [label], predicted: [best], probability: Math.exp(-logSum) });
      }
    },
    details: () => ({ confusion, worst: worst.list }),
  };
}

function labelSheet(labelCount: number): ScoreSheet {
  const counts = Array.from({ length: labelCount }, (): [number, number, number, number] => [0, 0, 0, 0]);
  const worst = new Worst();
  return {
    add(first, logits, labels, ignoresNegative) {
      for (const [index, row] of rowsOf(logits, labelCount)) {
        const targets = row.map((_, place) => Number(labels.data[index * labelCount + place]));
        let loss = 0;
        for (const [place, target] of targets.entries()) {
          if (ignoresNegative && target < 0) continue;
          const x = row[place] as number;
          loss += Math.max(x, 0) - x * target + Math.log1p(Math.exp(-Math.abs(x)));
          const cell = (target > 0.5 ? 2 : 0) + (x > 0 ? 1 : 0);
          (counts[place] as number[])[cell] = (counts[place]?.[cell] ?? 0) + 1;
        }
        const where = (holds: (place: number) => boolean): number[] => Array.from(row.keys()).filter(holds);
        worst.add({
          sample: first + index,
          loss: loss / labelCount,
          label: where((place) => (targets[place] as number) > 0.5),
          predicted: where((place) => (row[place] as number) > 0),
        });
      }
    },
    details: () => ({ labels: counts, worst: worst.list }),
  };
}

function numberSheet(loss: LossKind, outputCount: number): ScoreSheet {
  const moments = Array.from({ length: outputCount }, () => ({ mean: 0, deviations: 0, errors: 0 }));
  const worst = new Worst();
  let [count, absolute] = [0, 0];
  return {
    add(first, outputs, labels) {
      for (const [index, row] of rowsOf(outputs, outputCount)) {
        count++;
        const targets = row.map((_, place) => Number(labels.data[index * outputCount + place]));
        let own = 0;
        for (const [place, target] of targets.entries()) {
          const error = Math.abs((row[place] as number) - target);
          absolute += error;
          own += errorLoss(loss, error);
          const moment = moments[place] as (typeof moments)[number];
          // Welford's way to a variance in one pass.
          const before = target - moment.mean;
          moment.mean += before / count;
          moment.deviations += before * (target - moment.mean);
          moment.errors += error ** 2;
        }
        worst.add({ sample: first + index, loss: own / outputCount, label: targets, predicted: row });
      }
    },
    details() {
      const explained = moments.map(({ deviations, errors }) => (deviations === 0 ? 0 : 1 - errors / deviations));
      return {
        meanAbsoluteError: absolute / (count * outputCount),
        r2: sum(explained) / outputCount,
        worst: worst.list,
      };
    },
  };
}

/** What an error of this size costs. */
function errorLoss(loss: LossKind, error: number): number {
  if (loss === 'l1') return error;
  if (loss === 'mse') return error ** 2;
  return error <= 1 ? error ** 2 / 2 : error - 0.5;
}

/** The rows of a tensor [n, …] of floats, with their places. */
function* rowsOf(values: Tensor, size: number): Generator<readonly [index: number, row: readonly number[]]> {
  const numbers = toNumbers(values);
  for (let index = 0; index < (values.shape[0] as number); index++)
    yield [index, numbers.slice(index * size, (index + 1) * size)];
}
