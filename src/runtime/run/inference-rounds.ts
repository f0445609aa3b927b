// Requests as rounds of a run that only infers: what is submitted gets the next round, is kept until the round's
// results are there (a lost device makes the coordinator ask for it again), and is answered once, in the order of
// submission. It holds what is in flight and nothing else: who submits waits for answers as it likes. Where activations
// travel in fewer bits, a round now and then repeats a part of the one before with activations as they are, and says
// how far the outputs were from these.

import { assert, defined } from '../../assert.ts';
import { type OutputError, outputError } from '../../cluster/activation-bits.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { FedBatch, Offer } from '../coordinator/options.ts';
import { sliceSamples } from '../device/samples.ts';
import type { RoundBatch } from '../protocol/round-batch.ts';

/** When rounds are compared: see Compression.exactEvery. */
export interface Comparison {
  readonly every: number;
  /** Samples that are repeated at most. */
  readonly sampleCount: number;
}

/** How far outputs were from those of activations as they are: means over the samples compared. */
export interface Compared extends Pick<OutputError, 'relative' | 'changedFraction'> {
  readonly sampleCount: number;
}

interface OpenRound {
  readonly inputs: readonly Tensor[];
  readonly sampleCount: number;
  resolve(outputs: readonly Tensor[]): void;
  reject(error: Error): void;
}

export class InferenceRounds {
  readonly #open = new Map<number, OpenRound>();
  #roundCount = 0;
  #isEnded = false;
  #failure: Error | undefined;
  #offer: Offer | undefined;
  readonly #comparison: Comparison | undefined;
  #compared: Compared | undefined;

  constructor(comparison?: Comparison) {
    this.#comparison = comparison;
  }

  /** What comparisons have found so far; undefined before the first. */
  get compared(): Compared | undefined {
    return this.#compared;
  }

  /** The coordinator is there. */
  begin(offer: Offer): void {
    this.#offer = offer;
    offer(this.#roundCount, this.#isEnded);
  }

  /** Rounds that are not answered yet. */
  get openCount(): number {
    return this.#open.size;
  }

  /** Rounds so far. */
  get roundCount(): number {
    return this.#roundCount;
  }

  /**
   * Submits at most a batch of samples, batch first; resolves with the model's outputs for them. Rejects when the run
   * ends before.
   */
  submit(inputs: readonly Tensor[]): Promise<readonly Tensor[]> {
    if (this.#failure !== undefined) return Promise.reject(this.#failure);
    assert(!this.#isEnded, 'requests come before the end');
    const round = this.#roundCount;
    const answer = this.#next(inputs);
    if (this.#comparison !== undefined && round % this.#comparison.every === 0)
      this.#compare(inputs, answer, this.#comparison.sampleCount);
    this.#offer?.(this.#roundCount, false);
    return answer;
  }

  #next(inputs: readonly Tensor[]): Promise<readonly Tensor[]> {
    const sampleCount = defined(inputs[0]?.shape[0], 'samples');
    return new Promise((resolve, reject) => {
      this.#open.set(this.#roundCount++, { inputs, sampleCount, resolve, reject });
    });
  }

  /** Repeats the first samples, and notes how far their outputs were off. */
  #compare(inputs: readonly Tensor[], answer: Promise<readonly Tensor[]>, most: number): void {
    const count = Math.min(most, defined(inputs[0]?.shape[0], 'samples'));
    const first = (value: Tensor): Tensor => sliceSamples(value, 0, 0, count);
    const exact = this.#next(inputs.map(first));
    Promise.all([answer, exact]).then(
      ([[found], [wanted]]) => {
        if (found?.type === 'float32' && wanted !== undefined) this.#note(first(found), wanted, count);
      },
      () => {}, // whoever submitted sees it
    );
  }

  #note(found: Tensor, wanted: Tensor, count: number): void {
    const error = outputError(wanted.data as Float32Array, found.data as Float32Array, count);
    const before = this.#compared ?? { sampleCount: 0, relative: 0, changedFraction: 0 };
    const sampleCount = before.sampleCount + count;
    const mean = (old: number, own: number): number => old + ((own - old) * count) / sampleCount;
    this.#compared = {
      sampleCount,
      relative: mean(before.relative, error.relative),
      changedFraction: mean(before.changedFraction, error.changedFraction),
    };
  }

  /** Nothing more will be submitted: the run ends after the last round. */
  end(): void {
    this.#isEnded = true;
    this.#offer?.(this.#roundCount, true);
  }

  /** The run has ended: what is not answered never will be. */
  fail(error: Error): void {
    this.#failure ??= error;
    for (const { reject } of this.#open.values()) reject(error);
    this.#open.clear();
  }

  /** The data of a round in flight. */
  batch(round: number): FedBatch {
    return { inputs: defined(this.#open.get(round), `round ${round}`).inputs };
  }

  batchAt(round: number): RoundBatch {
    return { sampleCount: defined(this.#open.get(round), `round ${round}`).sampleCount, factor: 1 };
  }

  results(round: number, outputs: readonly Tensor[]): void {
    const open = defined(this.#open.get(round), `round ${round}`);
    this.#open.delete(round);
    open.resolve(outputs);
  }
}
