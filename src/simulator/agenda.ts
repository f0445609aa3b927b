// What will happen when, on a virtual clock: a binary heap in flat arrays. The earliest comes first; at one time, first
// those of the early class and then those of the late one, each in the order in which they were added.

/** Puts an entry behind all early ones of its time; orders within a class stay below it. */
const lateClass = 2 ** 50;

export class Agenda {
  /** Of the entry that next() took out. */
  timeMs = 0;
  #what = new Int32Array(64);
  #times = new Float64Array(64);
  #ranks = new Float64Array(64);
  #size = 0;
  #added = 0;

  /** Adds `what`, a number of 0 or more that the caller can read, at a time; `late` puts it in the late class. */
  add(what: number, timeMs: number, late: boolean): void {
    if (this.#size === this.#what.length) this.#grow();
    const rank = late ? lateClass + this.#added++ : this.#added++;
    const [times, ranks, whats] = [this.#times, this.#ranks, this.#what];
    let index = this.#size++;
    while (index > 0) {
      const parent = (index - 1) >> 1;
      const above = times[parent] as number;
      if (above < timeMs || (above === timeMs && (ranks[parent] as number) < rank)) break;
      times[index] = above;
      ranks[index] = ranks[parent] as number;
      whats[index] = whats[parent] as number;
      index = parent;
    }
    times[index] = timeMs;
    ranks[index] = rank;
    whats[index] = what;
  }

  /** Takes the earliest entry out and returns it, −1 when there is none; `timeMs` is its time. */
  next(): number {
    if (this.#size === 0) return -1;
    const [times, ranks, whats] = [this.#times, this.#ranks, this.#what];
    this.timeMs = times[0] as number;
    const found = whats[0] as number;
    const size = --this.#size;
    const lastMs = times[size] as number;
    const lastRank = ranks[size] as number;
    let index = 0;
    for (;;) {
      let child = 2 * index + 1;
      if (child >= size) break;
      let childMs = times[child] as number;
      if (child + 1 < size) {
        const otherMs = times[child + 1] as number;
        if (otherMs < childMs || (otherMs === childMs && (ranks[child + 1] as number) < (ranks[child] as number))) {
          child++;
          childMs = otherMs;
        }
      }
      if (childMs > lastMs || (childMs === lastMs && (ranks[child] as number) > lastRank)) break;
      times[index] = childMs;
      ranks[index] = ranks[child] as number;
      whats[index] = whats[child] as number;
      index = child;
    }
    times[index] = lastMs;
    ranks[index] = lastRank;
    whats[index] = whats[size] as number;
    return found;
  }

  #grow(): void {
    const length = 2 * this.#what.length;
    const whats = new Int32Array(length);
    whats.set(this.#what);
    this.#what = whats;
    const times = new Float64Array(length);
    times.set(this.#times);
    this.#times = times;
    const ranks = new Float64Array(length);
    ranks.set(this.#ranks);
    this.#ranks = ranks;
  }
}
