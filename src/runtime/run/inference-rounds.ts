// Requests as rounds of a run that only infers: what is submitted gets the next round, is kept until the round's
// results are there (a lost device makes the coordinator ask for it again), and is answered once, in the order of
// submission. It holds what is in flight and nothing else: who submits waits for answers as it likes.

import { assert, defined } from '../../assert.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { FedBatch, Offer } from '../coordinator/options.ts';
import type { RoundBatch } from '../protocol/round-batch.ts';

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
    const sampleCount = defined(inputs[0]?.shape[0], 'samples');
    return new Promise((resolve, reject) => {
      this.#open.set(this.#roundCount++, { inputs, sampleCount, resolve, reject });
      this.#offer?.(this.#roundCount, false);
    });
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
