// What a stage adds up in a round: losses, right predictions, and the squared norm of the gradients.

import type { Engine, Value } from '../../engine/engine.ts';
import type { RoundRange } from './pieces.ts';

/** The sums of a round on this device. */
export interface RoundTotals {
  readonly lossSum: number;
  readonly correctCount: number;
  readonly squaredNorm: number;
  readonly finite: boolean;
}

/** The sums, as the engine computes them: each value is taken when it is added, and read when the round ends. */
export class RoundSums {
  readonly #engine: Engine;
  #losses: Promise<number>[] = [];
  #corrects: Promise<number>[] = [];
  #norms: Promise<number>[] = [];

  constructor(engine: Engine) {
    this.#engine = engine;
  }

  /**
   * A micro-batch's share of the batch's loss, and its right predictions; undefined counts as none. Takes the values
   * over.
   */
  addLoss(loss: Value | undefined, correct: Value | undefined): void {
    this.#losses.push(this.#number(loss));
    this.#corrects.push(this.#number(correct));
  }

  /** The squared norm of some of the round's gradients. Takes the value over. */
  addNorm(norm: Value): void {
    this.#norms.push(this.#number(norm));
  }

  #number(value: Value | undefined): Promise<number> {
    const number =
      value === undefined ? Promise.resolve(0) : this.#engine.take(value).then(({ data }) => Number(data[0]));
    number.catch(() => {}); // seen by totals
    return number;
  }

  /**
   * The sums of the round, which ends with this call: what is added while they are awaited is of the next. Zeros where
   * they are not finite.
   */
  async totals(countNorm: boolean): Promise<RoundTotals> {
    const parts = [this.#losses, this.#corrects, this.#norms];
    this.clear();
    const [lossSum = 0, correctCount = 0, norm = 0] = await Promise.all(parts.map(sum));
    const finite = Number.isFinite(lossSum) && Number.isFinite(norm);
    return {
      lossSum: finite ? lossSum : 0,
      correctCount: finite ? correctCount : 0,
      squaredNorm: finite && countNorm ? norm : 0,
      finite,
    };
  }

  /** Forgets all. */
  clear(): void {
    [this.#losses, this.#corrects, this.#norms] = [[], [], []];
  }
}

/** The rounds of a stage whose sums have not been given yet. */
export class OpenRounds {
  readonly #engine: Engine;
  readonly #sums = new Map<number, RoundSums>();
  /** The round whose gradients are being made, reduced or applied. */
  current = 0;

  constructor(engine: Engine) {
    this.#engine = engine;
  }

  /** A round's sums, which begin when they are first asked for. */
  of(round: number): RoundSums {
    const sums = this.#sums.get(round) ?? new RoundSums(this.#engine);
    this.#sums.set(round, sums);
    return sums;
  }

  /** Takes out a round's sums. */
  take(round: number): RoundSums {
    const sums = this.of(round);
    this.#sums.delete(round);
    return sums;
  }

  /** Forgets all rounds but [first, end). */
  clear([first, end]: RoundRange): void {
    for (const round of [...this.#sums.keys()]) if (round < first || round >= end) this.#sums.delete(round);
  }
}

/** In their order: strict runs need the same bits. */
async function sum(parts: readonly Promise<number>[]): Promise<number> {
  return (await Promise.all(parts)).reduce((total, part) => total + part, 0);
}
