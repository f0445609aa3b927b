// How often a layout's stages are copied, from what copies are seen to cost. What links have to spare
// (planner/replan/replication.ts) says how often they can be at most; the devices' processors, which read, encrypt and
// check every byte, are heard of only in the time that rounds take.

import type { Clock } from '../../clock.ts';
import { copyCostLimit } from '../../planner/replan/replication.ts';
import { median } from '../../statistics.ts';

/** Rounds of each kind, with and without a copy under way, that are compared. */
const comparedCount = 8;
/** Where nearly all rounds have a copy under way, after this many they are made half as often. */
const crowdedCount = 32;
const mostEvery = 256;

/** Rounds between copies, from those of a layout. */
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

  /** A new layout, with the fewest rounds between copies that its links allow and those that it begins with. */
  begin(leastEvery: number, firstEvery: number): void {
    this.#leastEvery = leastEvery;
    this.#every = firstEvery;
    this.#sinceMs = undefined;
    this.#isCopying = false;
    this.#forget();
  }

  /**
   * A round has committed; `isCopying` says whether a copy is under way from now on. Returns the rounds between copies
   * where they are others than before.
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

  /** Undefined where there are too few rounds. */
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
