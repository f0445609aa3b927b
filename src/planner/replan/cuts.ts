// Where the stages of a pipeline that lost devices are cut (Asteroid §3.4, module 3): each stage keeps its devices and its place, and gets a
// share of the layers by its devices' computing capacity, within their memory. Of the cuts that are nearly as good as the best, the one that
// moves the fewest bytes, which is what makes the change small. The paper counts FLOPs; here are times, so layers that run badly on a device
// count for what they take.
//
// A stage's time and memory only grow with its layers. So for a bound on the slowest part, each stage that ends at a layer may begin in one
// window, which two pointers find; the least bound with a way through the windows is found by bisection. O(layers · groups) for a bound.

import { slowestInGroup } from '../../cluster/links.ts';
import { stageMemoryBytes } from '../../cluster/memory.ts';
import { interpolation, prefixSums, rangeOf } from '../../cluster/times.ts';
import { transferMs } from '../cost.ts';
import { largestShare } from '../memory.ts';
import { mayReplicate, type PlannerDevice, type Problem, stageDemand } from '../problem.ts';

/** A stage to be: its devices, and what it costs them to get layers. */
export interface Group {
  readonly devices: readonly PlannerDevice[];
  /** K_p. */
  readonly inFlight: number;
  /** By layer: bytes that must travel to these devices for them to have it. */
  readonly missingBytes: readonly number[];
}

/** What the search for cuts asks about groups; all constant in the number of layers. */
export interface CutCosts {
  /**
   * A group's time for layers [first, end), one micro-batch forward and backward and its part of the AllReduce; Infinity where they do not fit.
   * With `first` going down it only grows, but where layers come in that only one device may have: that one pays no AllReduce.
   */
  readonly stageMs: (group: number, first: number, end: number) => number;
  /** The first layer from which on a stage that ends at `end` is shared by the devices of the group; `end` for a single device. */
  readonly sharedFrom: (group: number, end: number) => number;
  /** The time of the border in front of layer `cut` for one micro-batch, from group − 1 to group. */
  readonly crossMs: (group: number, cut: number) => number;
  /** Bytes that travel to a group for layers [first, end). */
  readonly movedBytes: (group: number, first: number, end: number) => number;
}

/** Prefix sums over the layers of a device's time at a share, and by end the first layer from which on a stage fits its memory. */
interface Timed {
  readonly ms: Float64Array;
  readonly fitsFrom: Int32Array;
}

/**
 * Prepares the costs. A group shares a micro-batch by its devices' capacity for the whole model, v_d (eq. 9); the final shares are settled
 * when the cuts are known.
 */
export function cutCosts(problem: Problem, groups: readonly Group[]): CutCosts {
  const { profile, table } = problem;
  const shares = groups.map(({ devices }) => capacityShares(problem, devices));
  const alone = groups.map(({ devices, inFlight }) => devices.map((device) => aloneCost(problem, device, inFlight)));
  const together = groups.map((group, index) => (group.devices.length < 2 ? undefined : togetherCost(problem, group, shares[index] ?? [])));
  const missing = groups.map(({ missingBytes }) => prefixSums(missingBytes));
  const sides = groups.map(({ devices }, group) => ({ devices: devices.map(({ place }) => place), samples: shares[group] ?? [] }));
  const borders = sides.map((to, group) => {
    const from = sides[group - 1];
    if (from === undefined) return new Float64Array(0);
    return Float64Array.from(profile.layers, (_, cut) => transferMs(table, from, to, profile.layers[cut - 1]?.outputBytes ?? 0));
  });
  const replicableFrom = windowOf(profile.layers.length, (first, end) => mayReplicate(problem, first, end));
  const sharedFrom = (group: number, end: number): number => (together[group] === undefined ? end : (replicableFrom[end] as number));
  return {
    sharedFrom,
    stageMs: (group, first, end) => {
      const shared = together[group];
      if (shared !== undefined && first >= sharedFrom(group, end)) return sharedMs(shared, first, end);
      let fastest = Number.POSITIVE_INFINITY;
      for (const { ms, fitsFrom } of alone[group] ?? [])
        if (first >= (fitsFrom[end] as number)) fastest = Math.min(fastest, rangeOf(ms, first, end));
      return fastest;
    },
    crossMs: (group, cut) => borders[group]?.[cut] ?? 0,
    movedBytes: (group, first, end) => rangeOf(missing[group] as Float64Array, first, end),
  };
}

function capacityShares(problem: Problem, devices: readonly PlannerDevice[]): number[] {
  const { microBatchSize } = problem;
  const capacities = devices.map((device) => 1 / Math.max(layerMs(problem, device, microBatchSize).at(-1) ?? 0, 1e-12));
  const total = capacities.reduce((sum, capacity) => sum + capacity, 0);
  return capacities.map((capacity) => (microBatchSize * capacity) / total);
}

/** Prefix sums of forward plus backward at a share. */
function layerMs({ classes, profile }: Problem, { classIndex }: PlannerDevice, samples: number): Float64Array {
  const { lower, upper, lowerWeight, upperWeight } = interpolation(profile.batchSizes, samples);
  const times = classes[classIndex];
  const sums = new Float64Array(profile.layers.length + 1);
  for (let layer = 0; layer < profile.layers.length; layer++) {
    const at = (row: number): number =>
      [times?.forward[row], times?.backward[row]].reduce((ms, all) => ms + (all === undefined ? 0 : rangeOf(all, layer, layer + 1)), 0);
    // Beyond the last measured size, noise in a profile can make a line fall below zero.
    sums[layer + 1] = (sums[layer] as number) + Math.max(0, lowerWeight * at(lower) + upperWeight * at(upper));
  }
  return sums;
}

function aloneCost(problem: Problem, device: PlannerDevice, inFlight: number): Timed {
  const { microBatchSize, profile } = problem;
  const fits = (first: number, end: number): boolean =>
    stageMemoryBytes(stageDemand(problem, first, end, inFlight), microBatchSize) <= device.memoryBytes;
  return { ms: layerMs(problem, device, microBatchSize), fitsFrom: windowOf(profile.layers.length, fits) };
}

/** The same for a group; the slowest of its devices counts, and its part of the AllReduce (eq. 5). */
interface TogetherCost {
  readonly ms: readonly Float64Array[];
  readonly fitsFrom: Int32Array;
  readonly reduceMs: Float64Array;
  readonly latencyMs: number;
}

function togetherCost(problem: Problem, { devices, inFlight }: Group, shares: readonly number[]): TogetherCost {
  const { microBatchSize, microBatchCount, profile, sums, table } = problem;
  const count = devices.length;
  const fits = (first: number, end: number): boolean => {
    const demand = stageDemand(problem, first, end, inFlight);
    return devices.reduce((held, { memoryBytes }) => held + largestShare(demand, memoryBytes, microBatchSize), 0) >= microBatchSize;
  };
  const places = devices.map(({ place }) => place);
  const { bandwidthMbps, latencyMs } = slowestInGroup(table, places);
  const byteMs = (2 * (count - 1) * 8) / (count * bandwidthMbps * 1000) / microBatchCount;
  // Devices of a class have the same share and the same time.
  const distinct = devices.flatMap((device, index) =>
    devices.findIndex(({ classIndex }) => classIndex === device.classIndex) === index ? [layerMs(problem, device, shares[index] ?? 0)] : [],
  );
  return {
    ms: distinct,
    fitsFrom: windowOf(profile.layers.length, fits),
    reduceMs: Float64Array.from({ length: profile.layers.length + 1 }, (_, layer) => sums.weightBytes(0, layer) * byteMs),
    latencyMs: (2 * (count - 1) * latencyMs) / microBatchCount,
  };
}

function sharedMs({ ms, fitsFrom, reduceMs, latencyMs }: TogetherCost, first: number, end: number): number {
  if (first < (fitsFrom[end] as number)) return Number.POSITIVE_INFINITY;
  let slowest = 0;
  for (const sums of ms) slowest = Math.max(slowest, rangeOf(sums, first, end));
  return slowest + rangeOf(reduceMs, first, end) + latencyMs;
}

/** By end: the first layer from which on `fits`; the end itself where not even one layer does. Needs a `fits` that holds for parts of a range. */
function windowOf(layerCount: number, fits: (first: number, end: number) => boolean): Int32Array {
  const window = new Int32Array(layerCount + 1);
  let first = 0;
  for (let end = 1; end <= layerCount; end++) {
    while (first < end && !fits(first, end)) first++;
    window[end] = first;
  }
  return window;
}

/** The bisection for the best bottleneck ends here; below a nanosecond it does not look. */
const precision = 1e-3;
const leastMs = 1e-6;

/** Where the search for the best bottleneck begins: the longest layer, where it is fastest. */
function longestLayerMs(layerCount: number, groupCount: number, { stageMs }: CutCosts): number {
  let longest = leastMs;
  for (let layer = 0; layer < layerCount; layer++) {
    let fastest = Number.POSITIVE_INFINITY;
    for (let group = 0; group < groupCount; group++) fastest = Math.min(fastest, stageMs(group, layer, layer + 1));
    longest = Math.max(longest, fastest);
  }
  return longest;
}

/** What no part of a pipeline may take longer than. */
interface Bound {
  readonly ms: number;
  /** How often a border counts for one micro-batch: 1 where its two directions work side by side, 2 where one waits for the other (eq. 6). */
  readonly crossings: 1 | 2;
}

/** Where stages may begin under a bound, for each group by its end: two windows, for stages that one device has and for shared ones. */
class Windows {
  readonly #from: readonly { readonly alone: Int32Array; readonly shared: Int32Array }[];
  readonly #costs: CutCosts;
  readonly #bound: Bound;

  constructor(layerCount: number, groupCount: number, costs: CutCosts, bound: Bound) {
    const { stageMs, sharedFrom } = costs;
    this.#costs = costs;
    this.#bound = bound;
    this.#from = Array.from({ length: groupCount }, (_, group) => ({
      alone: windowOf(layerCount, (first, end) => first >= sharedFrom(group, end) || stageMs(group, first, end) <= bound.ms),
      shared: windowOf(layerCount, (first, end) => first >= sharedFrom(group, end) && stageMs(group, first, end) <= bound.ms),
    }));
  }

  /** The ranges [from, to) of beginnings of stages that end here: on one device, and shared. */
  at(group: number, end: number): readonly (readonly [from: number, to: number])[] {
    const windows = this.#from[group];
    const to = this.#costs.sharedFrom(group, end);
    return [
      [Math.min(to, windows?.alone[end] ?? to), to],
      [windows?.shared[end] ?? end, end],
    ];
  }

  /** Whether the border lets a group begin at a layer. */
  mayCut(group: number, cut: number): boolean {
    const { ms, crossings } = this.#bound;
    return group === 0 ? cut === 0 : crossings * this.#costs.crossMs(group, cut) <= ms;
  }
}

/** Whether all layers can be cut so that every group gets at least one. */
function hasWay(layerCount: number, groupCount: number, windows: Windows): boolean {
  let isReached = (layer: number): boolean => layer === 0;
  for (let group = 0; group < groupCount; group++) {
    // How many of the cuts before a layer can be reached, so that a window is a difference.
    const cuts = new Int32Array(layerCount + 1);
    for (let cut = 0; cut < layerCount; cut++)
      cuts[cut + 1] = (cuts[cut] as number) + (isReached(cut) && windows.mayCut(group, cut) ? 1 : 0);
    const next = new Uint8Array(layerCount + 1);
    for (let end = 1; end <= layerCount; end++) {
      if (windows.at(group, end).some(([from, to]) => (cuts[to] as number) > (cuts[from] as number))) next[end] = 1;
    }
    isReached = (layer) => next[layer] === 1;
  }
  return isReached(layerCount);
}

/**
 * For each slack, where each group's layers end: the least bytes moved among the cuts whose slowest part is within that share of the best, which
 * is found to a thousandth; of several, the most even one. Each group gets at least one layer. Empty when nothing fits.
 */
export function chooseCuts(
  layerCount: number,
  groupCount: number,
  costs: CutCosts,
  { crossings, slacks }: { readonly crossings: Bound['crossings']; readonly slacks: readonly number[] },
): number[][] {
  const windows = (ms: number): Windows => new Windows(layerCount, groupCount, costs, { ms, crossings });
  const isPossible = (ms: number): boolean => hasWay(layerCount, groupCount, windows(ms));
  if (!isPossible(Number.MAX_VALUE)) return [];
  let [low, high] = [0, longestLayerMs(layerCount, groupCount, costs)];
  while (!isPossible(high)) [low, high] = [high, 2 * high];
  while (high - low > precision * high) {
    const middle = (low + high) / 2;
    if (isPossible(middle)) high = middle;
    else low = middle;
  }
  return slacks.map((slack) => cheapestCuts(layerCount, groupCount, costs, windows(high * (1 + slack))));
}

/** The ends that move the fewest bytes through these windows, which have a way; of several, those with the least sum of squared times. */
function cheapestCuts(layerCount: number, groupCount: number, { stageMs, movedBytes }: CutCosts, windows: Windows): number[] {
  const width = layerCount + 1;
  const begins = new Int32Array((groupCount + 1) * width);
  const endless = (): Float64Array => new Float64Array(width).fill(Number.POSITIVE_INFINITY);
  let [bytesBefore, strainBefore] = [endless(), endless()];
  bytesBefore[0] = strainBefore[0] = 0;
  for (let group = 0; group < groupCount; group++) {
    const [leastBytes, leastStrain] = [endless(), endless()];
    for (let cut = 0; cut < layerCount; cut++) if (!windows.mayCut(group, cut)) bytesBefore[cut] = Number.POSITIVE_INFINITY;
    for (let end = group + 1; end <= layerCount; end++) {
      let [least, strain, begin] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY, 0];
      for (const [from, to] of windows.at(group, end)) {
        for (let cut = from; cut < to; cut++) {
          const known = bytesBefore[cut] as number;
          if (known > least) continue;
          const bytes = known + movedBytes(group, cut, end);
          if (bytes > least || bytes === Number.POSITIVE_INFINITY) continue;
          const squares = (strainBefore[cut] as number) + stageMs(group, cut, end) ** 2;
          if (bytes < least || squares < strain) [least, strain, begin] = [bytes, squares, cut];
        }
      }
      leastBytes[end] = least;
      leastStrain[end] = strain;
      begins[(group + 1) * width + end] = begin;
    }
    [bytesBefore, strainBefore] = [leastBytes, leastStrain];
  }
  const ends: number[] = [];
  for (let [count, end] = [groupCount, layerCount]; count > 0; count--) {
    ends.unshift(end);
    end = begins[count * width + end] as number;
  }
  return ends;
}
