// A data set through a pipeline: batches are submitted as long as few are in flight, outputs are handed on in order,
// and what they say of the run is counted: samples a second, how long each took, right answers where there are labels.

import type { Clock } from '../../clock.ts';
import type { CutTensor } from '../../graph/layers.ts';
import { elementCount, type Tensor } from '../../graph/tensor.ts';
import { joinSamples, sliceSamples } from '../device/samples.ts';
import type { InferenceRounds } from './inference-rounds.ts';

/** Some of the samples, batch first. */
export interface Samples {
  readonly inputs: readonly Tensor[];
  /** A class number each; absent where the data have none. */
  readonly labels?: Tensor;
}

export interface InferDataOptions {
  readonly rounds: InferenceRounds;
  /** At most `batchSize` samples each. */
  readonly samples: AsyncIterable<Samples>;
  /** Rounds that may be in flight or wait to be handed on. */
  readonly limit: number;
  /** The only micro-batch that the model takes: smaller ones are filled up. Absent: it takes any. */
  readonly fixedBatch?: number;
  /** The model's first output, of which accuracy is counted. */
  readonly output: CutTensor;
  readonly clock: Clock;
  /** Takes outputs in the order of the samples; what it returns is waited for before more is submitted. */
  write(outputs: readonly Tensor[]): Promise<void>;
  onProgress?(sampleCount: number): void;
}

export interface InferDataResult {
  readonly sampleCount: number;
  /** From the first result on, so that compiling does not count; of all samples where there is but one result. */
  readonly samplesPerS: number;
  /** From when a batch was submitted until its outputs were there. */
  readonly latencyMs: { readonly p50: number; readonly p95: number; readonly p99: number };
  /** Null without labels that are classes of the output. */
  readonly accuracy: number | null;
}

/** Infers all samples. Rejects as the run or `write` does. */
export async function inferData(options: InferDataOptions): Promise<InferDataResult> {
  const { rounds, samples, limit, clock, output, fixedBatch, write } = options;
  const tally = new Tally(output, clock);
  let written = Promise.resolve();
  let waiting = 0;
  let wake = (): void => {};
  let failure: unknown;
  const room = (): Promise<void> =>
    new Promise((resolve) => {
      wake = resolve;
    });
  for await (const { inputs, labels } of samples) {
    while (waiting >= limit && failure === undefined) await room();
    if (failure !== undefined) break;
    waiting++;
    const startMs = clock.now();
    const sampleCount = inputs[0]?.shape[0] ?? 0;
    const answer = rounds.submit(inputs.map((input) => filledUp(input, fixedBatch)));
    const handOn = async (): Promise<void> => {
      const own = (await answer).map((found) => sliceSamples(found, 0, 0, sampleCount));
      const [first] = own;
      if (first === undefined) return;
      tally.add(first, labels, startMs);
      options.onProgress?.(tally.sampleCount);
      await write(own);
      waiting--;
      wake();
    };
    answer.catch(() => {}); // seen in its turn
    written = written.then(handOn);
    written.catch((error: unknown) => {
      failure ??= error;
      wake();
    });
  }
  if (failure === undefined) rounds.end();
  await written;
  return tally.result();
}

/** The input with its last sample again until whole micro-batches are full. */
function filledUp(input: Tensor, fixedBatch: number | undefined): Tensor {
  const count = input.shape[0] ?? 0;
  const missing = fixedBatch === undefined ? 0 : (fixedBatch - (count % fixedBatch)) % fixedBatch;
  if (missing === 0) return input;
  const last = sliceSamples(input, 0, count - 1, count);
  return joinSamples([input, ...Array.from({ length: missing }, () => last)], 0);
}

/** What outputs say of a run. */
class Tally {
  readonly #clock: Clock;
  readonly #isClasses: boolean;
  readonly #latenciesMs: number[] = [];
  readonly #startMs: number;
  #firstMs: number | undefined;
  #firstCount = 0;
  #lastMs = 0;
  #rightCount = 0;
  #labelCount = 0;
  sampleCount = 0;

  constructor({ shape, type }: CutTensor, clock: Clock) {
    this.#clock = clock;
    this.#isClasses = shape.length === 2 && type === 'float32' && (shape[1] as number) > 1;
    this.#startMs = clock.now();
  }

  add(output: Tensor, labels: Tensor | undefined, submittedMs: number): void {
    this.#lastMs = this.#clock.now();
    this.#latenciesMs.push(this.#lastMs - submittedMs);
    const count = output.shape[0] ?? 0;
    this.sampleCount += count;
    if (this.#firstMs === undefined) [this.#firstMs, this.#firstCount] = [this.#lastMs, count];
    if (labels === undefined || !this.#isClasses || labels.type !== 'int64' || labels.shape.length !== 1) return;
    const classCount = elementCount(output.shape.slice(1));
    for (let sample = 0; sample < count; sample++) {
      const label = Number(labels.data[sample]);
      if (label < 0) continue;
      this.#labelCount++;
      if (largestAt(output.data as Float32Array, sample * classCount, classCount) === label) this.#rightCount++;
    }
  }

  result(): InferDataResult {
    const sorted = this.#latenciesMs.sort((a, b) => a - b);
    const at = (fraction: number): number =>
      sorted[Math.min(sorted.length - 1, Math.floor(fraction * sorted.length))] ?? 0;
    const later = this.sampleCount - this.#firstCount;
    const [count, ms] =
      later > 0 ? [later, this.#lastMs - (this.#firstMs ?? 0)] : [this.sampleCount, this.#lastMs - this.#startMs];
    return {
      sampleCount: this.sampleCount,
      samplesPerS: ms > 0 ? (1000 * count) / ms : 0,
      latencyMs: { p50: at(0.5), p95: at(0.95), p99: at(0.99) },
      accuracy: this.#labelCount === 0 ? null : this.#rightCount / this.#labelCount,
    };
  }
}

/** The place of the largest of `count` values from `start`; of equals the first. */
function largestAt(values: Float32Array, start: number, count: number): number {
  let best = 0;
  for (let index = 1; index < count; index++)
    if ((values[start + index] as number) > (values[start + best] as number)) best = index;
  return best;
}
