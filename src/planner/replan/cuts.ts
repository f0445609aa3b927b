// Where to cut the stages of a pipeline that lost devices (Asteroid §3.4, module 3): each stage keeps its devices and
// its position, and gets layers by its devices' computing capacity, within their memory. Of the cuts that are nearly as
// good as the best, takes the one that moves the fewest bytes, which keeps the change small. The paper counts FLOPs;
// times are used here, so that layers which run badly on a device count accordingly.
//
// A stage's time and memory only grow with its layers. For a bound on the slowest part, each stage that ends at a given
// layer may therefore begin in one window, which two pointers find; bisection finds the least bound with a path through
// the windows. O(layers · groups) for a bound.

import { slowestInGroup } from '../../cluster/links.ts';
import { stageMemoryBytes } from '../../cluster/memory.ts';
import { interpolation, prefixSums, rangeOf } from '../../cluster/times.ts';
import { transferMs } from '../cost.ts';
import { largestShare } from '../memory.ts';
import { mayReplicate, type PlannerDevice, type Problem, stageDemand } from '../problem.ts';

/** The devices of a future stage, and the cost of fetching the layers they lack. */
export interface Group {
  readonly devices: readonly PlannerDevice[];
  /** K_p. */
  readonly inFlight: number;
  /** By layer: bytes that must travel to these devices for them to have it. */
  readonly missingBytes: readonly number[];
}

/** The costs that the search for cuts queries; each in constant time. */
export interface CutCosts {
  /**
   * A group's time for layers [first, end): one micro-batch forward and backward, and its part of the AllReduce;
   * Infinity if they do not fit. Grows as `first` decreases, except where layers enter that only a single device may
   * have, which pays no AllReduce.
   */
  readonly stageMs: (group: number, first: number, end: number) => number;
  /**
   * By group and end: the first layer from which a stage is shared by all devices of the group; the end itself for a
   * single device.
   */
  readonly sharedFrom: readonly Int32Array[];
  /** Milliseconds for one micro-batch to cross the border in front of layer `cut`, from group − 1 to group. */
  readonly crossMs: (group: number, cut: number) => number;
  /** Bytes that travel to a group for layers [first, end). */
  readonly movedBytes: (group: number, first: number, end: number) => number;
}

/**
 * A device's times at a share as prefix sums over the layers, and, by end, the first layer from which a stage fits its
 * memory.
 */
interface Timed {
  readonly ms: Float64Array;
  readonly fitsFrom: Int32Array;
}

/**
 * The costs for these groups. A group shares a micro-batch by its devices' capacity for the whole model, v_d (eq. 9);
 * the final shares are chosen once the cuts are known.
 */
export function cutCosts(problem: Problem, groups: readonly Group[]): CutCosts {
  const { profile, table } = problem;
  const shares = groups.map(({ devices }) => capacityShares(problem, devices));
  const alone = groups.map(({ devices, inFlight }) => devices.map((device) => aloneCost(problem, device, inFlight)));
  const together = groups.map((group, index) =>
    group.devices.length < 2 ? undefined : togetherCost(problem, group, shares[index] ?? []),
  );
  const missing = groups.map(({ missingBytes }) => prefixSums(missingBytes));
  const sides = groups.map(({ devices }, group) => ({
    devices: devices.map(({ place }) => place),
    samples: shares[group] ?? [],
  }));
  const borders = sides.map((to, group) => {
    const from = sides[group - 1];
    if (from === undefined) return new Float64Array(0);
    return Float64Array.from(profile.layers, (_, cut) =>
      transferMs(table, from, to, profile.layers[cut - 1]?.outputBytes ?? 0),
    );
  });
  const replicableFrom = windowOf(profile.layers.length, (first, end) => mayReplicate(problem, first, end));
  const never = Int32Array.from({ length: profile.layers.length + 1 }, (_, end) => end);
  const sharedFrom = together.map((shared) => (shared === undefined ? never : replicableFrom));
  return {
    sharedFrom,
    stageMs: (group, first, end) => {
      const shared = together[group];
      if (shared !== undefined && first >= (replicableFrom[end] as number)) return sharedMs(shared, first, end);
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

/** Prefix sums of forward plus backward times at a share. */
function layerMs({ classes, profile }: Problem, { classIndex }: PlannerDevice, samples: number): Float64Array {
  const { lower, upper, lowerWeight, upperWeight } = interpolation(profile.batchSizes, samples);
  const times = classes[classIndex];
  const sums = new Float64Array(profile.layers.length + 1);
  for (let layer = 0; layer < profile.layers.length; layer++) {
    const at = (row: number): number =>
      [times?.forward[row], times?.backward[row]].reduce(
        (ms, all) => ms + (all === undefined ? 0 : rangeOf(all, layer, layer + 1)),
        0,
      );
    // Beyond the last measured size, noise in a profile can make the extrapolation negative.
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

/** A group's costs: its slowest device's time and its part of the AllReduce (eq. 5). */
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
    return (
      devices.reduce((held, { memoryBytes }) => held + largestShare(demand, memoryBytes, microBatchSize), 0) >=
      microBatchSize
    );
  };
  const places = devices.map(({ place }) => place);
  const { bandwidthMbps, latencyMs } = slowestInGroup(table, places);
  const byteMs = (2 * (count - 1) * 8) / (count * bandwidthMbps * 1000) / microBatchCount;
  // Devices of a class have the same share and the same time.
  const distinct = devices.flatMap((device, index) =>
    devices.findIndex(({ classIndex }) => classIndex === device.classIndex) === index
      ? [layerMs(problem, device, shares[index] ?? 0)]
      : [],
  );
  return {
    ms: distinct,
    fitsFrom: windowOf(profile.layers.length, fits),
    reduceMs: Float64Array.from(
      { length: profile.layers.length + 1 },
      (_, layer) => sums.weightBytes(0, layer) * byteMs,
    ),
    latencyMs: (2 * (count - 1) * latencyMs) / microBatchCount,
  };
}

function sharedMs({ ms, fitsFrom, reduceMs, latencyMs }: TogetherCost, first: number, end: number): number {
  if (first < (fitsFrom[end] as number)) return Number.POSITIVE_INFINITY;
  let slowest = 0;
  for (const sums of ms) slowest = Math.max(slowest, rangeOf(sums, first, end));
  return slowest + rangeOf(reduceMs, first, end) + latencyMs;
}

/**
 * By end: the first layer from which `fits` holds; the end itself if not even one layer fits. Requires that `fits`
 * holds for every part of a range that fits.
 */
function windowOf(layerCount: number, fits: (first: number, end: number) => boolean): Int32Array {
  const window = new Int32Array(layerCount + 1);
  let first = 0;
  for (let end = 1; end <= layerCount; end++) {
    while (first < end && !fits(first, end)) first++;
    window[end] = first;
  }
  return window;
}

/** Relative precision of the bisection for the best bottleneck; the absolute limit is a nanosecond. */
const precision = 4e-3;
const leastMs = 1e-6;

/** The lower end of the bisection: the longest layer, on the group where it is fastest. */
function longestLayerMs(layerCount: number, groupCount: number, { stageMs }: CutCosts): number {
  let longest = leastMs;
  for (let layer = 0; layer < layerCount; layer++) {
    let fastest = Number.POSITIVE_INFINITY;
    for (let group = 0; group < groupCount; group++) fastest = Math.min(fastest, stageMs(group, layer, layer + 1));
    longest = Math.max(longest, fastest);
  }
  return longest;
}

/** An upper bound on the time of every part of a pipeline. */
interface Bound {
  readonly ms: number;
  /**
   * How often a border counts for one micro-batch: 1 if its two directions work in parallel, 2 if one waits for the
   * other (eq. 6).
   */
  readonly crossings: 1 | 2;
}

/**
 * Where the stages of a group may begin under a bound, by their end: in [alone, until) on one device, in [shared, end)
 * on all.
 */
interface Windows {
  readonly alone: Int32Array;
  readonly until: Int32Array;
  readonly shared: Int32Array;
  /** By layer: whether the border in front of it allows the group to begin there. */
  readonly mayCut: Uint8Array;
}

function windowsOf(
  layerCount: number,
  group: number,
  { stageMs, sharedFrom, crossMs }: CutCosts,
  { ms, crossings }: Bound,
): Windows {
  const until = sharedFrom[group] as Int32Array;
  const isShared = (first: number, end: number): boolean => first >= (until[end] as number);
  const isNeverShared = until.every((from, end) => from === end);
  const mayCut = new Uint8Array(layerCount);
  for (let cut = 0; cut < layerCount; cut++)
    if (group === 0 ? cut === 0 : crossings * crossMs(group, cut) <= ms) mayCut[cut] = 1;
  return {
    until,
    mayCut,
    alone: windowOf(layerCount, (first, end) => isShared(first, end) || stageMs(group, first, end) <= ms),
    shared: isNeverShared
      ? until
      : windowOf(layerCount, (first, end) => isShared(first, end) && stageMs(group, first, end) <= ms),
  };
}

/** Whether all layers can be cut so that every group gets at least one. */
function hasWay(layerCount: number, groups: readonly Windows[]): boolean {
  let reached = new Uint8Array(layerCount + 1);
  reached[0] = 1;
  // Number of reachable cuts before each layer, so that the count in a window is a difference.
  const cuts = new Int32Array(layerCount + 1);
  const holds = (from: number, to: number): boolean => to > from && (cuts[to] as number) > (cuts[from] as number);
  for (const { alone, until, shared, mayCut } of groups) {
    for (let cut = 0; cut < layerCount; cut++)
      cuts[cut + 1] = (cuts[cut] as number) + (reached[cut] as number) * (mayCut[cut] as number);
    const next = new Uint8Array(layerCount + 1);
    for (let end = 1; end <= layerCount; end++)
      if (holds(alone[end] as number, until[end] as number) || holds(shared[end] as number, end)) next[end] = 1;
    reached = next;
  }
  return reached[layerCount] === 1;
}

/**
 * For each slack, where each group's layers end: the cuts that move the fewest bytes among those whose slowest part is
 * within that fraction of the best; the best is found to 0.4%. Of several, the most even one. Each group gets at least
 * one layer. Empty if nothing fits.
 */
export function chooseCuts(
  layerCount: number,
  groupCount: number,
  costs: CutCosts,
  { crossings, slacks }: { readonly crossings: Bound['crossings']; readonly slacks: readonly number[] },
): number[][] {
  const windows = (ms: number): Windows[] =>
    Array.from({ length: groupCount }, (_, group) => windowsOf(layerCount, group, costs, { ms, crossings }));
  const isPossible = (ms: number): boolean => hasWay(layerCount, windows(ms));
  if (!isPossible(Number.MAX_VALUE)) return [];
  let [low, high] = [0, longestLayerMs(layerCount, groupCount, costs)];
  while (!isPossible(high)) [low, high] = [high, 2 * high];
  while (high - low > precision * high) {
    const middle = (low + high) / 2;
    if (isPossible(middle)) high = middle;
    else low = middle;
  }
  return slacks.map((slack) => cheapestCuts(layerCount, costs, windows(high * (1 + slack))));
}

/**
 * The ends that move the fewest bytes through these windows, which must have a path; of several, those with the least
 * sum of squared times.
 */
function cheapestCuts(layerCount: number, { stageMs, movedBytes }: CutCosts, groups: readonly Windows[]): number[] {
  const width = layerCount + 1;
  const begins = new Int32Array((groups.length + 1) * width);
  const endless = (): Float64Array => new Float64Array(width).fill(Number.POSITIVE_INFINITY);
  let [bytesBefore, strainBefore] = [endless(), endless()];
  bytesBefore[0] = strainBefore[0] = 0;
  for (const [group, { alone, until, shared, mayCut }] of groups.entries()) {
    const [leastBytes, leastStrain] = [endless(), endless()];
    for (let cut = 0; cut < layerCount; cut++) if (mayCut[cut] === 0) bytesBefore[cut] = Number.POSITIVE_INFINITY;
    for (let end = group + 1; end <= layerCount; end++) {
      let [least, strain, begin] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY, 0];
      const last = until[end] as number;
      for (let cut = Math.min(alone[end] as number, last); cut < end; cut++) {
        if (cut >= last && cut < (shared[end] as number)) continue;
        const known = bytesBefore[cut] as number;
        if (known > least) continue;
        const bytes = known + movedBytes(group, cut, end);
        if (bytes > least || bytes === Number.POSITIVE_INFINITY) continue;
        const squares = (strainBefore[cut] as number) + stageMs(group, cut, end) ** 2;
        if (bytes < least || squares < strain) [least, strain, begin] = [bytes, squares, cut];
      }
      leastBytes[end] = least;
      leastStrain[end] = strain;
      begins[(group + 1) * width + end] = begin;
    }
    [bytesBefore, strainBefore] = [leastBytes, leastStrain];
  }
  const ends: number[] = [];
  for (let [count, end] = [groups.length, layerCount]; count > 0; count--) {
    ends.unshift(end);
    end = begins[count * width + end] as number;
  }
  return ends;
}
