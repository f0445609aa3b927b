// PipeEdge's category dynamic program (Hu et al. 2022, eq. 1–3 and Algorithm 1): h(j, S, u) is the least time of the
// slowest part when the first j layers run on the devices S and u comes next; S counts devices by category. O(Π(nᵢ + 1)
// · L² · N²). Designed for inference; for training, a part's time is forward plus backward, and the bytes cross each
// direction of a link once, as in eq. 1. Memory (line 9) is eq. 3 with one micro-batch in flight, since the paper has
// no pipeline to fill. May leave devices out.
//
// The program searches only pipelines whose slowest part is below a bar, at first the least possible one if links took
// no time. Without links, more layers on the same devices are never worse, so two passes over the sets find how many
// layers S can have done at most within the bar, and how many it must have done for the others to do the rest; few
// cases remain. The bar is raised until a pipeline is found.
//
// Devices of a category have the same times, memory and links to all others. If that leaves too many sets S
// (device-sets.ts), devices next to each other in speed form a category, which counts as its slowest member, with the
// least memory and the slowest links.

import { stageMemoryBytes } from '../cluster/memory.ts';
import type { Layouts } from './baselines.ts';
import { type Category, categoriesOf, categoryOf, DeviceSets } from './device-sets.ts';
import { type Problem, stageDemand } from './problem.ts';

/**
 * A planner for the problems of one question, which differ only in the micro-batch size; the result for one size tells
 * where the bar for the next begins. `stateLimit`: sets of devices from which on devices of a kind are not told apart.
 */
export function pipeedge(stateLimit?: number): Layouts {
  let sets: DeviceSets | undefined;
  let hint: Hint | undefined;
  return function* (problem) {
    sets ??= new DeviceSets(problem, categoriesOf(problem, stateLimit));
    const { categories } = sets;
    const found = new CategoryProgram(problem, sets).best(hint);
    hint = found.hint;
    yield 1;
    const next = categories.map(() => 0);
    return found.parts.map(({ first, end, category }) => {
      const at = next[category] ?? 0;
      next[category] = at + 1;
      return {
        layers: [first, end],
        devices: [categories[category]?.[at]?.place ?? 0],
        samples: [problem.microBatchSize],
      };
    });
  };
}

/** What the result for one micro-batch size says about the bar for the next. */
interface Hint {
  /** The least bar without links, divided by that of devices which share layers in any fractions. */
  readonly slowdown: number;
  /** How far above the least bar a pipeline was found, as a fraction. */
  readonly slack: number;
}

interface Part {
  readonly first: number;
  readonly end: number;
  readonly category: number;
}

/**
 * How close the first bar is to the least bar without links, as a fraction; halving it takes one more pass over the
 * sets.
 */
const precision = 0.02;
/** First increment of the first bar, as a fraction. */
const firstStep = 0.5;
/**
 * If links bind: how far the second bar is above the first, as a fraction, and how much this grows with each further
 * one.
 */
const firstSlack = 0.05;
const slackGrowth = 2;

class CategoryProgram {
  readonly #layerCount: number;
  readonly #categories: readonly Category[];
  readonly #strides: readonly number[];
  readonly #setCount: number;
  readonly #isSpent: Uint8Array;
  /** By layer: bytes of one micro-batch at the cut in front of it. */
  readonly #cutBytes: Float64Array;
  readonly #linkMs: Float64Array;
  /** By category and first layer: the last layer's end of the longest stage that fits its memory. */
  readonly #lastEnd: readonly Int32Array[];
  /**
   * By set, within a bar and without links: the most layers that it can have done, and the fewest that leave a feasible
   * rest to the others.
   */
  readonly #most: Int32Array;
  readonly #fewest: Int32Array;
  // By #index(layer, set, next category): h, and its predecessor.
  readonly #least: Float64Array;
  readonly #precursors: Int32Array;

  constructor(problem: Problem, { categories, strides, count, isSpent, linkMs }: DeviceSets) {
    const { profile, microBatchSize } = problem;
    const L = profile.layers.length;
    this.#layerCount = L;
    this.#categories = categories.map((members) => categoryOf(problem, members));
    this.#strides = strides;
    this.#setCount = count;
    this.#isSpent = isSpent;
    this.#linkMs = linkMs;
    this.#cutBytes = new Float64Array(L + 1);
    for (let cut = 1; cut <= L; cut++)
      this.#cutBytes[cut] = microBatchSize * (profile.layers[cut - 1]?.outputBytes ?? 0);
    this.#lastEnd = this.#categories.map(({ memoryBytes }) => lastFitting(problem, memoryBytes));
    this.#most = new Int32Array(count);
    this.#fewest = new Int32Array(count);
    this.#least = new Float64Array((L + 1) * count * categories.length);
    this.#precursors = new Int32Array(this.#least.length);
  }

  /** Algorithm 1; begins with the bar from `hint`. No parts if nothing fits. */
  best(hint: Hint | undefined): { readonly parts: Part[]; readonly hint: Hint | undefined } {
    let longestMs = 0;
    let speed = 0;
    for (const { sumsMs, members } of this.#categories) {
      const allMs = sumsMs[this.#layerCount] as number;
      longestMs = Math.max(longestMs, allMs);
      speed += members.length / allMs;
    }
    if (!this.#reaches(longestMs)) return { parts: [], hint };
    const idealMs = Math.max(1 / speed, 1e-9 * longestMs);
    let [low, high] = [0, Math.min(longestMs, idealMs * (hint?.slowdown ?? 1))];
    let step = hint === undefined ? firstStep : precision;
    if (hint !== undefined && high > 0 && this.#reaches(high)) {
      for (low = high / (1 + step); this.#reaches(low); low = high / (1 + step)) [high, step] = [low, 2 * step];
    } else
      for (; !this.#reaches(high); step *= 2) {
        low = high;
        high = Math.min(longestMs, (1 + step) * high);
      }
    while (high - low > precision * high) {
      const middle = (low + high) / 2;
      if (this.#reaches(middle)) high = middle;
      else low = middle;
    }
    const slowdown = idealMs > 0 ? high / idealMs : 1;
    high *= 1 + 1e-9;
    for (
      let slack = hint?.slack ?? 0;
      high > 0 && high * (1 + slack) < Number.POSITIVE_INFINITY;
      slack = Math.max(firstSlack, slack * slackGrowth)
    ) {
      const parts = this.#below(high * (1 + slack));
      if (parts.length > 0) return { parts, hint: { slowdown, slack } };
    }
    return { parts: this.#below(Number.POSITIVE_INFINITY), hint: { slowdown, slack: 0 } };
  }

  /** Whether the devices can run all layers within a bar if links take no time; fills #most. */
  #reaches(barMs: number): boolean {
    const L = this.#layerCount;
    // Most of a first plan's time is spent here, before the code is optimized: loop invariants are kept outside.
    const [isSpent, strides, ends, categories, setCount] = [
      this.#isSpent,
      this.#strides,
      this.#lastEnd,
      this.#categories,
      this.#setCount,
    ];
    const C = categories.length;
    const most = this.#most.fill(0);
    for (let set = 0; set < setCount; set++) {
      const start = most[set] as number;
      for (let u = 0; u < C; u++) {
        if (isSpent[set * C + u] === 1) continue;
        const { sumsMs } = categories[u] as Category;
        const last = start < L ? ((ends[u] as Int32Array)[start] as number) : L;
        const within = (sumsMs[start] as number) + barMs;
        const used = set + (strides[u] as number);
        // Skip what another order of the same devices can do.
        let end = Math.max(start, most[used] as number);
        if (end > last || (sumsMs[end] as number) > within) continue;
        while (end < last && (sumsMs[end + 1] as number) <= within) end++;
        most[used] = end;
      }
    }
    return most[setCount - 1] === L;
  }

  /** As #reaches, from the last layer backwards: fills #fewest. */
  #reachesBack(barMs: number): void {
    const [isSpent, strides, categories] = [this.#isSpent, this.#strides, this.#categories];
    const C = categories.length;
    const fewest = this.#fewest.fill(this.#layerCount);
    for (let set = this.#setCount - 2; set >= 0; set--) {
      for (let u = 0; u < C; u++) {
        if (isSpent[set * C + u] === 1) continue;
        const { sumsMs } = categories[u] as Category;
        const ends = this.#lastEnd[u] as Int32Array;
        const end = fewest[set + (strides[u] as number)] as number;
        const within = (sumsMs[end] as number) - barMs;
        let start = end;
        while (start > 0 && (sumsMs[start - 1] as number) >= within && (ends[start - 1] as number) >= end) start--;
        if (start < (fewest[set] as number)) fewest[set] = start;
      }
    }
  }

  #index(layer: number, set: number, category: number): number {
    return (set * this.#categories.length + category) * (this.#layerCount + 1) + layer;
  }

  /** The best pipeline whose slowest part is below the bar; empty if there is none. */
  #below(barMs: number): Part[] {
    const L = this.#layerCount;
    const C = this.#categories.length;
    // A tolerance, so that rounding excludes nothing.
    const withinMs = barMs * (1 + 1e-9);
    this.#reaches(withinMs);
    this.#reachesBack(withinMs);
    const least = this.#least.fill(Number.POSITIVE_INFINITY);
    let answer = barMs;
    let last: Part | undefined;
    let lastSet = 0;
    for (let u = 0; u < C; u++) least[this.#index(0, 0, u)] = 0;
    for (let set = 0; set < this.#setCount; set++) {
      const start = this.#fewest[set] as number;
      const stop = Math.min(L - 1, this.#most[set] as number);
      for (let u = 0; u < C; u++) {
        if (this.#isSpent[set * C + u] === 1) continue;
        const row = this.#index(0, set, u);
        const used = set + (this.#strides[u] as number);
        const usedStart = this.#fewest[used] as number;
        const { sumsMs } = this.#categories[u] as Category;
        const ends = this.#lastEnd[u] as Int32Array;
        for (let i = start; i <= stop; i++) {
          const before = least[row + i] as number;
          if (before >= answer) continue;
          const end = ends[i] as number;
          for (let j = Math.max(i + 1, usedStart); j <= end; j++) {
            const computeMs = Math.max(before, (sumsMs[j] as number) - (sumsMs[i] as number));
            if (computeMs >= answer) break;
            if (j === L) {
              answer = computeMs;
              last = { first: i, end: L, category: u };
              lastSet = set;
            } else this.#reach(j, used, u, i, computeMs);
          }
        }
      }
    }
    return last === undefined ? [] : this.#follow(last, lastSet);
  }

  /**
   * Extends a pipeline: the first j layers run on `used`, those from i on on category u; tries each category that can
   * follow.
   */
  #reach(j: number, used: number, u: number, i: number, computeMs: number): void {
    const C = this.#categories.length;
    const bytes = this.#cutBytes[j] as number;
    for (let v = 0; v < C; v++) {
      if (this.#isSpent[used * C + v] === 1) continue;
      const ms = Math.max(computeMs, bytes * (this.#linkMs[u * C + v] as number));
      const at = this.#index(j, used, v);
      if (ms >= (this.#least[at] as number)) continue;
      this.#least[at] = ms;
      this.#precursors[at] = i * C + u;
    }
  }

  #follow(last: Part, lastSet: number): Part[] {
    const C = this.#categories.length;
    const parts = [last];
    let [layer, set, next] = [last.first, lastSet, last.category];
    while (layer > 0) {
      const precursor = this.#precursors[this.#index(layer, set, next)] as number;
      const [first, category] = [Math.floor(precursor / C), precursor % C];
      parts.unshift({ first, end: layer, category });
      set -= this.#strides[category] as number;
      [layer, next] = [first, category];
    }
    return parts;
  }
}

/** By first layer: the end of the longest stage that fits this memory. */
function lastFitting(problem: Problem, memoryBytes: number): Int32Array {
  const L = problem.profile.layers.length;
  const ends = new Int32Array(L).fill(L);
  const needed = (first: number, end: number): number =>
    stageMemoryBytes(stageDemand(problem, first, end, 1), problem.microBatchSize);
  if (needed(0, L) <= memoryBytes) return ends;
  for (let [first, end] = [0, 0]; first < L; first++) {
    end = Math.max(end, first);
    while (end < L && needed(first, end + 1) <= memoryBytes) end++;
    ends[first] = end;
  }
  return ends;
}
