// Requests that wait for each other: samples that come within a short time go through the pipeline as one round. A
// request waits no longer than its latency allows for what the pipeline itself takes, and not at all where a round is
// full. What waits is limited: beyond that, requests are refused at once.

import type { Clock } from '../../clock.ts';
import { RunError } from '../../errors.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { joinSamples, sliceSamples } from '../device/samples.ts';
import type { InferenceRounds } from './inference-rounds.ts';

/** There is no room for a request, or no time left for it. */
export class Overloaded extends RunError {}

export interface BatcherOptions {
  readonly rounds: InferenceRounds;
  /** Samples of a round. */
  readonly batchSize: number;
  /** The only number of samples that the model takes; absent: rounds of 1, 2, 4, … samples. */
  readonly fixedBatch?: number;
  /** Rounds that may be in flight. */
  readonly roundLimit: number;
  /** Samples that may wait. */
  readonly queueLimit: number;
  /** Within which a request is to be answered, waiting for others included. */
  readonly maxLatencyMs: number;
  readonly clock: Clock;
  /** Called with each round's samples, and with how long its outputs took. */
  onRound?(sampleCount: number, ms: number): void;
}

interface Waiting {
  readonly inputs: readonly Tensor[];
  readonly sampleCount: number;
  /** Samples that have been submitted. */
  taken: number;
  readonly pieces: Promise<readonly Tensor[]>[];
  readonly sinceMs: number;
  resolve(outputs: readonly Tensor[]): void;
  reject(error: Error): void;
  isGone: boolean;
}

/** What is new in the mean of how long a round takes. */
const newShare = 0.2;

export class RequestBatcher {
  readonly #options: BatcherOptions;
  readonly #queue: Waiting[] = [];
  #queuedCount = 0;
  #roundMs = 0;
  #stopWaiting: (() => void) | undefined;
  #openCount = 0;

  constructor(options: BatcherOptions) {
    this.#options = options;
  }

  /** The numbers of samples that rounds have, the largest first. */
  get roundSizes(): readonly number[] {
    const { batchSize, fixedBatch } = this.#options;
    if (fixedBatch !== undefined) return [batchSize];
    const powers = Array.from({ length: Math.ceil(Math.log2(batchSize)) }, (_, power) => 2 ** power);
    return [batchSize, ...powers.reverse()];
  }

  /** Samples that wait. */
  get queuedCount(): number {
    return this.#queuedCount;
  }

  /** Rounds in flight. */
  get openCount(): number {
    return this.#openCount;
  }

  /**
   * Resolves with the outputs for these samples. Rejects with Overloaded where too much waits already, and as the run
   * does. `signal`: nobody wants the answer any more.
   */
  infer(inputs: readonly Tensor[], signal?: AbortSignal): Promise<readonly Tensor[]> {
    const sampleCount = inputs[0]?.shape[0] ?? 0;
    const { queueLimit, clock } = this.#options;
    if (this.#queuedCount + sampleCount > queueLimit)
      return Promise.reject(new Overloaded(`${this.#queuedCount} samples wait already, of at most ${queueLimit}.`));
    return new Promise((resolve, reject) => {
      const waiting: Waiting = {
        ...{ inputs, sampleCount, taken: 0, pieces: [], sinceMs: clock.now(), resolve, reject, isGone: false },
      };
      signal?.addEventListener('abort', () => this.#leave(waiting), { once: true });
      this.#queue.push(waiting);
      this.#queuedCount += sampleCount;
      this.#submit();
    });
  }

  /** A request that nobody waits for any more; what has been submitted of it is computed all the same. */
  #leave(waiting: Waiting): void {
    const at = this.#queue.indexOf(waiting);
    waiting.isGone = true;
    if (at < 0) return;
    this.#queue.splice(at, 1);
    this.#queuedCount -= waiting.sampleCount - waiting.taken;
    waiting.reject(new RunError('The request was given up.'));
  }

  /** Submits rounds as long as there are some that are full, or whose samples have waited long enough. */
  #submit(): void {
    const { roundLimit, batchSize, maxLatencyMs, clock } = this.#options;
    this.#stopWaiting?.();
    this.#stopWaiting = undefined;
    while (this.#openCount < roundLimit) {
      const oldest = this.#queue[0];
      if (oldest === undefined) return;
      const patienceMs = Math.max(0, maxLatencyMs - this.#roundMs) / 2;
      const leftMs = oldest.sinceMs + patienceMs - clock.now();
      // An idle pipeline gains nothing from waiting but company, nor does a request that is partly on its way.
      if (this.#queuedCount < batchSize && leftMs > 0 && this.#openCount > 0 && oldest.taken === 0) {
        this.#stopWaiting = clock.after(leftMs, () => this.#submit());
        return;
      }
      this.#submitRound();
    }
  }

  #submitRound(): void {
    const { rounds, batchSize, clock, onRound } = this.#options;
    const parts: { readonly waiting: Waiting; readonly first: number; readonly count: number }[] = [];
    let total = 0;
    while (total < batchSize) {
      const waiting = this.#queue[0];
      if (waiting === undefined) break;
      const count = Math.min(batchSize - total, waiting.sampleCount - waiting.taken);
      parts.push({ waiting, first: waiting.taken, count });
      waiting.taken += count;
      total += count;
      if (waiting.taken === waiting.sampleCount) this.#queue.shift();
    }
    this.#queuedCount -= total;
    const inputCount = parts[0]?.waiting.inputs.length ?? 0;
    const inputs = Array.from({ length: inputCount }, (_, index) =>
      this.#filledUp(
        parts.map(({ waiting, first, count }) =>
          sliceSamples(waiting.inputs[index] as Tensor, 0, first, first + count),
        ),
        total,
      ),
    );
    this.#openCount++;
    const startMs = clock.now();
    const answer = rounds.submit(inputs);
    const done = (): void => {
      this.#openCount--;
      this.#submit();
    };
    answer.then(
      () => {
        const ms = clock.now() - startMs;
        this.#roundMs += newShare * (ms - this.#roundMs);
        onRound?.(total, ms);
        done();
      },
      () => done(),
    );
    let at = 0;
    for (const { waiting, count } of parts) {
      const first = at;
      at += count;
      const piece = answer.then((outputs) => outputs.map((output) => sliceSamples(output, 0, first, first + count)));
      piece.catch(() => {}); // seen with the request's other pieces
      waiting.pieces.push(piece);
      if (waiting.taken === waiting.sampleCount) settle(waiting);
    }
  }

  /** The samples, and the last one again until there are as many as rounds have: each number is compiled for. */
  #filledUp(pieces: readonly Tensor[], count: number): Tensor {
    const { batchSize, fixedBatch } = this.#options;
    const wanted =
      fixedBatch === undefined
        ? Math.min(batchSize, 2 ** Math.ceil(Math.log2(count)))
        : Math.ceil(count / fixedBatch) * fixedBatch;
    const last = pieces.at(-1) as Tensor;
    const lastCount = last.shape[0] as number;
    const more = Array.from({ length: wanted - count }, () => sliceSamples(last, 0, lastCount - 1, lastCount));
    // A round's tensors are its own: they may be sent again.
    return joinSamples([...pieces, ...more], 0);
  }
}

function settle({ pieces, resolve, reject }: Waiting): void {
  Promise.all(pieces).then((outputs) => {
    const [first = []] = outputs;
    resolve(
      first.map((_, index) =>
        joinSamples(
          outputs.map((piece) => piece[index] as Tensor),
          0,
        ),
      ),
    );
  }, reject);
}
