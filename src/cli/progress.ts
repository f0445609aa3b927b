// The numbers behind the training bar: smoothed over the last rounds while training runs, means of the whole when it is
// done.

import type { RoundMetrics, RunEvent } from '../runtime/protocol/events.ts';
import { grouped } from './terminal.ts';

/** Weight of the newest round in what is shown of loss, speed and load. */
const smoothing = 0.1;

/** Collects rounds; times are the caller's. */
export class Progress {
  readonly endRound: number;
  /** Rounds done, those before a resume included. */
  doneRound: number;
  elapsedS = 0;
  /** When the next line is due where nothing can be repainted. */
  plainNextMs = 0;
  /** Fraction of the time that each device computes. */
  readonly busy: Map<string, number> = new Map();
  readonly #firstRound: number;
  readonly #roundsPerEpoch: number;
  readonly #startedMs: number;
  #loss = 0;
  #secondsPerSample = 0;
  #secondsPerSampleSum = 0;
  readonly #busySums = new Map<string, number>();

  constructor({ firstRound, endRound, roundsPerEpoch }: Extract<RunEvent, { kind: 'training' }>, startedMs: number) {
    this.endRound = endRound;
    this.doneRound = firstRound;
    this.#firstRound = firstRound;
    this.#roundsPerEpoch = roundsPerEpoch;
    this.#startedMs = startedMs;
  }

  /** Takes in a round that has committed. */
  add({ round, loss, samplesPerS }: RoundMetrics, busyFraction: Readonly<Record<string, number>>, nowMs: number): void {
    this.doneRound = round + 1;
    this.elapsedS = (nowMs - this.#startedMs) / 1000;
    const weight = this.#doneCount === 1 ? 1 : smoothing;
    this.#loss += weight * (loss - this.#loss);
    this.#secondsPerSample += weight * (1 / samplesPerS - this.#secondsPerSample);
    this.#secondsPerSampleSum += 1 / samplesPerS;
    for (const [device, fraction] of Object.entries(busyFraction)) {
      const before = this.busy.get(device) ?? fraction;
      const sum = (this.#busySums.get(device) ?? 0) + fraction / samplesPerS;
      this.#busySums.set(device, sum);
      this.busy.set(device, this.isDone ? sum / this.#secondsPerSampleSum : before + weight * (fraction - before));
    }
  }

  get #doneCount(): number {
    return this.doneRound - this.#firstRound;
  }

  get isDone(): boolean {
    return this.doneRound >= this.endRound;
  }

  get fraction(): number {
    return this.doneRound / this.endRound;
  }

  /** Seconds to the end at the mean pace so far. */
  get leftS(): number {
    return (this.elapsedS / this.#doneCount) * (this.endRound - this.doneRound);
  }

  /** "epoch 3 of 8  loss 0.0321  1,204 samples/s". */
  facts(): string {
    const secondsPerSample = this.isDone ? this.#secondsPerSampleSum / this.#doneCount : this.#secondsPerSample;
    const epochs = (rounds: number): number => Math.ceil(rounds / this.#roundsPerEpoch);
    const epoch = `epoch ${epochs(this.doneRound)} of ${epochs(this.endRound)}`;
    return `${epoch}  loss ${this.#loss.toFixed(4)}  ${grouped(Math.round(1 / secondsPerSample))} samples/s`;
  }
}
