// How often a layout's stages are copied, from the measured cost of copies. The links' spare capacity limits it from
// above (planner/replan/replication.ts). What copies cost the devices' processors, which read, encrypt and check every
// byte, shows only in the time that rounds take.

import type { Clock } from '../../clock.ts';
import { copyCostLimit } from '../../planner/replan/replication.ts';
import { median } from '../../statistics.ts';

/** Rounds of each kind, with and without a copy under way, that are compared. */
const comparedCount = 8;
/** If nearly all rounds have a copy under way, copies are made half as often after this many rounds. */
const crowdedCount = 32;
const mostEvery = 256;

/** Chooses the number of rounds between copies from the durations of a layout's rounds. */
export class CopyPace {
  readonly #clock: Clock;
  #leastEvery = 1;
  #every = 1;
  #sinceMs: number | undefined;
  #isCopying = false;
  #copyCount = 0;
  #with: number[] = [];
  #without: number[] = [];

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** A new layout: the fewest rounds between copies that its links allow, and the number that it starts with. */
  begin(leastEvery: number, firstEvery: number): void {
    this.#leastEvery = leastEvery;
    this.#every = firstEvery;
    this.#sinceMs = undefined;
    this.#isCopying = false;
    this.#forget();
  }

  /**
   * A round has committed; `isCopying` says whether a copy is under way from now on. Returns the number of rounds
   * between copies if it changes.
   */
  committed(isCopying: boolean): number | undefined {
    const nowMs = this.#clock.now();
    const rounds = this.#isCopying ? this.#with : this.#without;
    if (this.#sinceMs !== undefined && rounds.push(nowMs - this.#sinceMs) > crowdedCount) rounds.shift();
    if (isCopying && !this.#isCopying) this.#copyCount++;
    this.#sinceMs = nowMs;
    this.#isCopying = isCopying;
    const every = this.#judge();
    if (every === undefined) return undefined;
    this.#forget();
    if (every === this.#every) return undefined;
    this.#every = every;
    return every;
  }

  /** Undefined if there are too few rounds to compare. */
  #judge(): number | undefined {
    if (this.#without.length < comparedCount)
      return this.#with.length < crowdedCount ? undefined : Math.min(mostEvery, 2 * this.#every);
    if (this.#with.length < comparedCount) return undefined;
    const baseMs = median(this.#without);
    const copyMs = (Math.max(0, median(this.#with) - baseMs) * this.#with.length) / Math.max(1, this.#copyCount);
    const wanted = baseMs === 0 ? 1 : Math.ceil(copyMs / (copyCostLimit * baseMs));
    return Math.min(mostEvery, Math.max(this.#leastEvery, wanted, 1));
  }

  #forget(): void {
    this.#copyCount = this.#isCopying ? 1 : 0;
    this.#with = [];
    this.#without = [];
  }
}
