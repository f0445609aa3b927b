// When the instructions of a round happened on this device, for its trace. Computing is only queued when its
// instruction is passed, so its times come from the engine; sends wait for what they send; a receive is over when the
// piece is there.

import type { Clock } from '../../clock.ts';
import type { RoundTimes } from '../protocol/messages.ts';

/** Collects the times of one round, or of one tick of a stream, relative to a begin. */
export class InstructionTimes {
  readonly #clock: Clock;
  readonly #beganMs: number;
  readonly #before: InstructionTimes | undefined;
  readonly #times: RoundTimes[] = [];
  readonly #pending: Promise<void>[] = [];
  /** When the last computing that is known of was done. */
  #computedMs = 0;

  /** `before`: of the tick before, of which this device may still be computing. */
  constructor(clock: Clock, beganMs: number, before?: InstructionTimes) {
    this.#before = before;
    this.#clock = clock;
    this.#beganMs = beganMs;
  }

  now(): number {
    return this.#clock.now() - this.#beganMs;
  }

  /** An instruction that began at `startMs` is done. */
  done(instruction: number, startMs: number): void {
    this.#times.push({ instruction, startMs, endMs: this.now() });
  }

  /**
   * An instruction was queued on the engine at `queuedMs`; `computed` resolves when it is computed, with how many
   * milliseconds ago that was.
   */
  queued(instruction: number, queuedMs: number, computed: Promise<number>): void {
    const ended = computed.then((agoMs) => {
      // Nothing that was queued before it can have ended later.
      const beforeMs = this.#before === undefined ? 0 : this.#before.#computedMs;
      const startMs = Math.max(queuedMs, this.#computedMs, beforeMs);
      this.#computedMs = Math.max(startMs, this.now() - agoMs);
      this.#times.push({ instruction, startMs, endMs: this.#computedMs });
    });
    ended.catch(() => {}); // seen by all()
    this.#pending.push(ended);
  }

  /** All times, in the order in which the instructions ended. Rejects where the engine was closed before. */
  async all(): Promise<readonly RoundTimes[]> {
    await Promise.all(this.#pending);
    return this.#times.toSorted((a, b) => a.endMs - b.endMs);
  }
}
