// The batches of a run's rounds. Where samples are read from files, those of the coming rounds are read while devices
// compute.

import type { Clock } from '../../clock.ts';
import { batchOf } from '../../training/data/batch.ts';
import { type Batch, type Dataset, gatherField } from '../../training/data/dataset.ts';
import { type BatchOrder, batchIndices, epochOf, roundLength } from '../../training/data/order.ts';
import type { PiecewiseBatch } from '../coordinator/options.ts';

/** Rounds that are read ahead of the one that is asked for. */
const aheadCount = 2;

/** Makes each batch when it is asked for, and begins the next ones where that takes time. */
export class BatchesAhead {
  readonly #dataset: Dataset;
  readonly #order: BatchOrder;
  readonly #endRound: number;
  readonly #clock: Clock;
  readonly #coming = new Map<number, Promise<Batch>>();
  /** When the batches of rounds that are not over were read. */
  readonly #cameMs = new Map<number, number>();

  constructor(dataset: Dataset, order: BatchOrder, endRound: number, clock: Clock) {
    this.#clock = clock;
    this.#dataset = dataset;
    this.#order = order;
    this.#endRound = endRound;
  }

  /** The batch of a round. Throws InputError, or rejects with it, for a file that cannot be read. */
  at(round: number): Batch | Promise<Batch> {
    const batch = this.#coming.get(round) ?? this.#begin(round);
    if (!(batch instanceof Promise)) return batch;
    for (const known of this.#coming.keys())
      if (known <= round || known > round + aheadCount) this.#coming.delete(known);
    for (let next = round + 1; next <= Math.min(round + aheadCount, this.#endRound - 1); next++)
      if (!this.#coming.has(next)) this.#keep(next, this.#begin(next));
    return batch;
  }

  /** What is sent of a round: of sequences, piece by piece, else as `at`. */
  fed(round: number): Batch | PiecewiseBatch | Promise<Batch> {
    const { sequenceLength, softening } = this.#dataset;
    return sequenceLength === undefined || softening !== undefined ? this.at(round) : this.#pieces(round);
  }

  /** Sequences are in memory, and of one length. */
  #pieces(round: number): PiecewiseBatch {
    const dataset = this.#dataset;
    const indices = batchIndices(this.#order, round);
    return {
      sampleCount: indices.length,
      piece: (payload, samples) =>
        (payload === 'input' ? dataset.inputs : [dataset.labels]).map((field) =>
          gatherField(dataset, field, indices.subarray(...samples)),
        ),
    };
  }

  /**
   * How much later than `sinceMs`, the end of the round before, a round's batch was there; nothing for samples that are
   * in memory. Rounds are asked for in their order, each once. Over workers, which have a round queued before the one
   * before it ends, a device may have waited for longer.
   */
  wait(round: number, sinceMs: number): { readonly dataWaitMs?: number } {
    const cameMs = this.#cameMs.get(round);
    for (const known of this.#cameMs.keys()) if (known <= round) this.#cameMs.delete(known);
    return cameMs === undefined ? {} : { dataWaitMs: Math.max(0, cameMs - sinceMs) };
  }

  #begin(round: number): Batch | Promise<Batch> {
    const place = { round, epoch: epochOf(this.#order, round), length: roundLength(this.#order, round) };
    const batch = batchOf(this.#dataset, batchIndices(this.#order, round), place);
    if (!(batch instanceof Promise)) return batch;
    return batch.then((read) => {
      this.#cameMs.set(round, this.#clock.now());
      return read;
    });
  }

  #keep(round: number, batch: Batch | Promise<Batch>): void {
    if (!(batch instanceof Promise)) return;
    batch.catch(() => {}); // whoever asks for the round sees it
    this.#coming.set(round, batch);
  }
}
