// PipeEdge's category dynamic program (Hu et al. 2022, eq. 1–3 and Algorithm 1): h(j, S, u) is the least time of the
// slowest part when the first j layers run on the devices S and u comes next; S counts devices by category. O(Π(nᵢ + 1)
// · L² · N²). Made for inference; for training a part's time is forward plus backward, and the bytes cross each
// direction of a link once, as in eq. 1. Memory (line 9) is eq. 3 with one micro-batch in flight: the paper has no
// pipeline to fill. May leave devices out.
//
// The program is asked only for pipelines whose slowest part is below a bar, at first the least there would be if links
// took no time. Without links, more layers on the same devices are never worse, so that two runs over the sets find how
// many layers S can have done at most within the bar, and how many it must have done for the others to do the rest:
// little is left to try. The bar is raised until a pipeline is found.
//
// Devices of a category have the same times, memory and links to everybody. Where that leaves more than `stateLimit`
// sets S, devices next to each other in speed form a category, which counts as its slowest member, with the least
// memory and the slowest links.

import { stageMemoryBytes } from '../cluster/memory.ts';
import { interpolation, prefixSums } from '../cluster/times.ts';
import type { Layouts } from './baselines.ts';
import { type ClassTimes, type PlannerDevice, type Problem, stageDemand } from './problem.ts';

const stateLimit = 512;

/** Devices that count as equal; the first stands for all. */
interface Category {
  readonly members: readonly PlannerDevice[];
  readonly memoryBytes: number;
  /** Forward and backward of the first layers, up to each layer, on the slowest member: prefix sums. */
  readonly sumsMs: Float64Array;
}

/**
 * A planner for the problems of one question, which differ in the micro-batch size only: what the first one took tells
 * the others where to begin.
 */
export function pipeedge(): Layouts {
  let sets: DeviceSets | undefined;
  let hint: Hint | undefined;
  return function* (problem) {
    sets ??= new DeviceSets(problem, categoriesOf(problem));
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

/** What one micro-batch size tells of the next: its bars. */
interface Hint {
  /** The least bar without links, over that of devices which could share layers as they like. */
  readonly slowdown: number;
  /** How far above it a pipeline was found, as a fraction. */
  readonly slack: number;
}

interface Part {
  readonly first: number;
  readonly end: number;
  readonly category: number;
}

/**
 * How near to the least bar without links the first one is, as a fraction: to halve it takes another run over the sets.
 */
const precision = 0.02;
/** How far the first bar is raised at first, as a fraction. */
const firstStep = 0.5;
/**
 * Where links bind: how far the second bar is above the first, as a fraction, and how much further each next one is.
 */
const firstSlack = 0.05;
const slackGrowth = 2;

/** The sets S, and what holds of them for any micro-batch size. */
class DeviceSets {
  readonly categories: readonly (readonly PlannerDevice[])[];
  /** By category: what one more of its devices adds to the number of a set S. */
  readonly strides: readonly number[];
  readonly count: number;
  /** By set and category: whether S has all of the category's devices. */
  readonly isSpent: Uint8Array;
  /** By two categories: milliseconds a byte. */
  readonly linkMs: Float64Array;

  constructor(problem: Problem, categories: readonly (readonly PlannerDevice[])[]) {
    const C = categories.length;
    const strides: number[] = [];
    let count = 1;
    for (const members of categories) {
      strides.push(count);
      count *= members.length + 1;
    }
    this.categories = categories;
    this.strides = strides;
    this.count = count;
    this.linkMs = crossTimes(problem, categories);
    this.isSpent = new Uint8Array(count * C);
    for (const [u, { length }] of categories.entries()) {
      const stride = strides[u] as number;
      for (let set = 0; set < count; set++)
        this.isSpent[set * C + u] = Math.floor(set / stride) % (length + 1) === length ? 1 : 0;
    }
  }
}

class CategoryProgram {
  readonly #layerCount: number;
  readonly #categories: readonly Category[];
  readonly #strides: readonly number[];
  readonly #setCount: number;
  readonly #isSpent: Uint8Array;
  /** By layer: bytes of one micro-batch at the cut in front of it. */
  readonly #cutBytes: Float64Array;
  readonly #linkMs: Float64Array;
  /** By category and first layer: how far a stage can go within its memory. */
  readonly #lastEnd: readonly Int32Array[];
  /**
   * By set, within a bar and without links: the most layers that it can have done, and the fewest that leave the rest
   * to the others.
   */
  readonly #most: Int32Array;
  readonly #fewest: Int32Array;
  // By #index(layer, set, next category): h, and where it came from.
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

  /** Algorithm 1; begins with the bar that `hint` tells. Empty when nothing fits. */
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

  /** Whether the devices can do all layers within a bar if links take no time; fills #most. */
  #reaches(barMs: number): boolean {
    const L = this.#layerCount;
    // This is most of a first plan's time, before its code is optimized: what does not change stands outside of the
    // loops.
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
        // What another order of the same devices can do need not be gone through again.
        let end = Math.max(start, most[used] as number);
        if (end > last || (sumsMs[end] as number) > within) continue;
        while (end < last && (sumsMs[end + 1] as number) <= within) end++;
        most[used] = end;
      }
    }
    return most[setCount - 1] === L;
  }

  /** #most from the other end: fills #fewest. */
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

  /** The best pipeline whose slowest part is below the bar; empty when there is none. */
  #below(barMs: number): Part[] {
    const L = this.#layerCount;
    const C = this.#categories.length;
    // A little more than the bar, so that rounding leaves nothing out.
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

  /** The first j layers run on `used`, the last of them, from i on, on u: who can come next. */
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

/** For each first layer, how far a stage can go within this memory. */
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

/** Milliseconds a byte between categories, by the slowest link. */
function crossTimes({ table }: Problem, categories: readonly (readonly PlannerDevice[])[]): Float64Array {
  const C = categories.length;
  const found = new Float64Array(C * C);
  if (table.isUniform) return found.fill(table.occupancyMs(0, 1, 1));
  for (const [u, from] of categories.entries()) {
    for (const [v, to] of categories.entries()) {
      for (const { place: a } of from)
        for (const { place: b } of to)
          if (a !== b) found[u * C + v] = Math.max(found[u * C + v] ?? 0, table.occupancyMs(a, b, 1));
    }
  }
  return found;
}

function categoryOf({ classes, profile, microBatchSize }: Problem, members: readonly PlannerDevice[]): Category {
  const { lower, upper, lowerWeight, upperWeight } = interpolation(profile.batchSizes, microBatchSize);
  const slowestMs = new Float64Array(profile.layers.length);
  for (const classIndex of new Set(members.map((member) => member.classIndex))) {
    const { layers } = classes[classIndex] as ClassTimes;
    const [from, to] = [layers[lower] as Float64Array, layers[upper] as Float64Array];
    for (let layer = 0; layer < slowestMs.length; layer++) {
      const ms = lowerWeight * (from[layer] as number) + upperWeight * (to[layer] as number);
      if (ms > (slowestMs[layer] as number)) slowestMs[layer] = ms;
    }
  }
  return {
    members,
    memoryBytes: Math.min(...members.map(({ memoryBytes }) => memoryBytes)),
    sumsMs: prefixSums(slowestMs),
  };
}

/** Equal devices together; where that leaves too many sets, runs of devices that are near in speed. */
function categoriesOf(problem: Problem): PlannerDevice[][] {
  const { available, table, devices } = problem;
  const same = (a: PlannerDevice, b: PlannerDevice): boolean =>
    a.classIndex === b.classIndex &&
    a.memoryBytes === b.memoryBytes &&
    (table.isUniform ||
      devices.every(
        ({ place }) =>
          place === a.place ||
          place === b.place ||
          table.occupancyMs(a.place, place, 1) === table.occupancyMs(b.place, place, 1),
      ));
  const equal: PlannerDevice[][] = [];
  for (const device of available) {
    const group = equal.find(([first]) => first !== undefined && same(first, device));
    if (group === undefined) equal.push([device]);
    else group.push(device);
  }
  if (stateCount(equal) <= stateLimit) return equal;
  const speed = new Map(available.map((device) => [device.place, categoryOf(problem, [device]).sumsMs.at(-1)]));
  const sorted = [...available].sort(
    (a, b) => (speed.get(a.place) ?? 0) - (speed.get(b.place) ?? 0) || b.memoryBytes - a.memoryBytes,
  );
  for (let count = Math.min(10, sorted.length); count > 1; count--) {
    const runs = Array.from({ length: count }, (_, index) =>
      sorted.slice(Math.floor((index * sorted.length) / count), Math.floor(((index + 1) * sorted.length) / count)),
    );
    if (stateCount(runs) <= stateLimit) return runs;
  }
  return [sorted];
}

function stateCount(categories: readonly (readonly PlannerDevice[])[]): number {
  return categories.reduce((product, members) => product * (members.length + 1), 1);
}
