// A lower bound on the round of any pipeline, from the busy time of the busiest device (bounds.ts) and four more facts:
// pipelines fill and drain, activations take time between stages, groups reduce their gradients, and weights must fit
// somewhere. Decides for a time T whether any pipeline could be as fast, by dynamic programming over the layers in a
// relaxation that favours the pipeline, and finds the largest T with the answer no.
//
// Derivation: a micro-batch passes a stage of layers [i, j) on a group of capacity s (the sum of its devices' speeds)
// in at least u = w(i, j)/s. Follow one sample through the pipeline: its devices d_0, d_1, … have shares y, and the
// mean of y·w/s_d over all samples of a micro-batch is Σ y²·w/(B·s_d) ≥ u (Cauchy–Schwarz). Sums, maxima and products
// by positive numbers that hold on every sample's way hold for the means. With S_p for what comes before the first
// forward and after the last backward of stage p, c for a border and R for AllReduce: T ≥ max(S_p, R_p) + M·u_p,
// S_{p+1} = max(S_p, R_p) + u_p + 2c, T ≥ S_{p+1} + (M − 1)·occupancy, Σ s_p ≤ all speeds. If AllReduce is overlapped,
// it starts with the last backward at the earliest: R + (M − 1)·u instead of R + M·u, and max(S + u, R) for S'. If the
// backward is split, only input gradients are on the way back, and weight gradients may be delayed as long as the
// schedule permits. In a stream, only what devices, links and groups are busy with in a tick counts.

import type { LinkSpeed } from '../cluster/cluster.ts';
import { stageMemoryBytes } from '../cluster/memory.ts';
import { createBounds } from './bounds.ts';
import type { Budget } from './branch-and-bound.ts';
import { fastestLink } from './cost.ts';
import { gradientsCross, mayReplicate, type Problem, stageDemand } from './problem.ts';
import type { Steps } from './steps.ts';

/** Bisection steps between the simple bound and the best round. */
const halvings = 9;
/** Capacities of groups are quantised by this factor. */
const capacityRatio = 1.2;
/** The capacity used by the first layers is quantised into this many buckets. */
const bucketCount = 48;
/** Work between two steps: a few milliseconds. */
const unitsPerStep = 2048;
/** Tolerance for rounding. */
const slack = 1e-9;

/**
 * A lower bound, in milliseconds, on the round of any pipeline of these problems, between `lowMs`, which is a bound
 * already, and `highMs`, a round that exists. A unit of the budget is one stage evaluated; when it is used up, returns
 * the best bound so far.
 */
export function* pipelineBoundMs(
  problems: readonly { readonly problem: Problem; readonly boundMs: number }[],
  lowMs: number,
  highMs: number,
  budget: Budget,
): Steps<number> {
  const worlds = problems.map(({ problem, boundMs }) => ({ boundMs, relaxation: new Relaxation(problem) }));
  function* isBeatable(ms: number): Steps<boolean> {
    for (const { boundMs, relaxation } of worlds)
      if (boundMs < ms && (yield* relaxation.mayTake(ms, budget))) return true;
    return false;
  }
  if (!(yield* isBeatable(highMs * (1 - slack))) && budget.left > 0) return highMs * (1 - slack);
  let [low, high] = [lowMs, highMs];
  for (let halving = 0; halving < halvings && budget.left > 0; halving++) {
    yield halving / halvings;
    const middle = (low + high) / 2;
    if (yield* isBeatable(middle)) high = middle;
    else low = middle;
  }
  return low;
}

/** How many devices a stage may have, and their capacity. */
interface Option {
  /** The capacity that it takes at least. */
  readonly cost: number;
  /** The capacity that it has at most. */
  readonly speed: number;
  /** Devices at least and at most. */
  readonly fewest: number;
  readonly most: number;
}

class Relaxation {
  readonly #problem: Problem;
  readonly #options: readonly Option[];
  readonly #speed: number;
  readonly #link: LinkSpeed;
  readonly #largestBytes: number;
  readonly #deviceCount: number;
  readonly #busiestMs: (first: number, end: number, speed: number) => number;
  /** Lower bound on the part of u that is on the gradients' way back, the forward pass included. */
  readonly #wayShare: number;
  readonly #overlaps: boolean;
  readonly #isStream: boolean;
  readonly #splits: boolean;
  // By #cell(layer, isSingle, bucket): least capacity used, least S without the border that follows, most stages.
  // Infinite S: none.
  readonly #used: Float64Array;
  readonly #before: Float64Array;
  readonly #stages: Int32Array;

  constructor(problem: Problem) {
    const { speeds, busiestMs } = createBounds(problem);
    const own = problem.available.map(({ classIndex }) => speeds[classIndex] ?? 0).sort((a, b) => b - a);
    this.#problem = problem;
    this.#busiestMs = busiestMs;
    this.#deviceCount = own.length;
    this.#speed = own.reduce((sum, speed) => sum + speed, 0);
    this.#options = optionsOf(own);
    this.#link = fastestLink(problem.cluster);
    this.#largestBytes = Math.max(...problem.available.map(({ memoryBytes }) => memoryBytes));
    this.#overlaps = problem.schedule.overlapsAllReduce;
    this.#isStream = problem.schedule.isStream;
    this.#splits = problem.schedule.splitsBackward;
    const isHalved = Object.values(problem.profile.devices).every(
      ({ backwardInputMs }) => backwardInputMs === undefined,
    );
    this.#wayShare = this.#splits ? (isHalved ? 0.5 : 0) : 1;
    const size = this.#cell(problem.profile.layers.length, 0, 0);
    this.#used = new Float64Array(size);
    this.#before = new Float64Array(size);
    this.#stages = new Int32Array(size);
  }

  #cell(layer: number, isSingle: number, bucket: number): number {
    return (2 * layer + isSingle) * (bucketCount + 1) + bucket;
  }

  /** Whether a pipeline may take less than this; also true when the budget is used up. */
  *mayTake(barMs: number, budget: Budget): Steps<boolean> {
    const L = this.#problem.profile.layers.length;
    this.#before.fill(Number.POSITIVE_INFINITY);
    this.#used.fill(Number.POSITIVE_INFINITY);
    this.#stages.fill(0);
    this.#before[this.#cell(0, 1, 0)] = 0;
    this.#used[this.#cell(0, 1, 0)] = 0;
    let stepAt = budget.left - unitsPerStep;
    for (let first = 0; first < L; first++) {
      for (let isSingle = 0; isSingle < 2; isSingle++) {
        for (let bucket = 0; bucket <= bucketCount; bucket++) {
          const from = this.#cell(first, isSingle, bucket);
          if (this.#before[from] === Number.POSITIVE_INFINITY) continue;
          if (budget.left < stepAt) {
            stepAt = budget.left - unitsPerStep;
            yield first / L;
          }
          for (const option of this.#options)
            if (this.#extend(from, first, isSingle === 1, option, barMs, budget)) return true;
        }
      }
    }
    return false;
  }

  /** Adds stages of such a group behind a cell's pipeline. True if one ends the pipeline in time. */
  #extend(
    from: number,
    first: number,
    isBehindSingle: boolean,
    option: Option,
    barMs: number,
    budget: Budget,
  ): boolean {
    const { microBatchCount: M, profile } = this.#problem;
    const L = profile.layers.length;
    const used = (this.#used[from] as number) + option.cost;
    if (used > this.#speed * (1 + slack)) return false;
    let startMs = this.#before[from] as number;
    if (first > 0) {
      const { occupancyMs, borderMs } = this.#border(first, isBehindSingle, option);
      // In a stream nothing fills or drains.
      if (!this.#isStream) startMs += borderMs;
      if (startMs + (M - (this.#isStream ? 0 : 1)) * occupancyMs >= barMs) return false;
    }
    const stage = this.#stages[from] as number;
    const passCount = this.#passCount(stage);
    const left = Math.max(0, this.#speed * (1 + slack) - used);
    for (let end = first + 1; end <= L; end++) {
      if (--budget.left <= 0) return true;
      if (!this.#fits(first, end, option)) break;
      const u = this.#busiestMs(first, end, option.speed);
      const reduceMs = this.#reduceMs(first, end, option);
      const aloneMs = this.#isStream ? reduceMs : this.#overlaps ? (M - 1) * u + reduceMs : M * u + reduceMs;
      const pipedMs = this.#isStream
        ? 0
        : passCount * u + (this.#overlaps || this.#splits ? startMs : Math.max(startMs, reduceMs));
      if (Math.max(M * u, aloneMs, pipedMs) >= barMs) break;
      if (end === L) return true;
      if (M * this.#busiestMs(end, L, left) >= barMs) continue;
      const way = this.#wayShare * u;
      this.#keep(
        end,
        option,
        used,
        this.#isStream ? 0 : this.#overlaps ? Math.max(startMs + way, reduceMs) : Math.max(startMs, reduceMs) + way,
        stage + 1,
      );
    }
    return false;
  }

  /** A lower bound on the units of u between the first forward of a stage and its last input gradient. */
  #passCount(stage: number): number {
    const { microBatchCount: M } = this.#problem;
    if (!this.#splits) return M;
    // Up to 2p weight gradients are delayed at stage p: zb-h1's K_p minus the forwards that it runs ahead.
    const weights = Math.max(0, M - 1 - 2 * stage);
    return weights + (M - weights) * this.#wayShare;
  }

  #keep(layer: number, option: Option, used: number, beforeMs: number, stages: number): void {
    const bucket = Math.min(bucketCount, Math.floor((bucketCount * used) / this.#speed));
    const at = this.#cell(layer, option.most === 1 ? 1 : 0, bucket);
    if (beforeMs < (this.#before[at] as number)) this.#before[at] = beforeMs;
    if (used < (this.#used[at] as number)) this.#used[at] = used;
    if (stages > (this.#stages[at] as number)) this.#stages[at] = stages;
  }

  /**
   * The time of a border for both directions, and the part that occupies the link in one direction: in as many pieces
   * as possible, over the fastest link.
   */
  #border(
    cut: number,
    isBehindSingle: boolean,
    { most }: Option,
  ): { readonly occupancyMs: number; readonly borderMs: number } {
    const { profile, microBatchSize } = this.#problem;
    const pieces = Math.min(microBatchSize, isBehindSingle ? most : this.#deviceCount - 1);
    const { bandwidthMbps, latencyMs = 0 } = this.#link;
    const bytes = (profile.layers[cut - 1]?.outputBytes ?? 0) * microBatchSize;
    const occupancyMs = (bytes * 8 * (1 - slack)) / (Math.max(1, pieces) * bandwidthMbps * 1000);
    return {
      occupancyMs,
      borderMs: (gradientsCross(this.#problem, cut) ? 2 : 1) * (occupancyMs + latencyMs * (1 - slack)),
    };
  }

  #reduceMs(first: number, end: number, { fewest }: Option): number {
    const { sums, forwardOnlyLayers } = this.#problem;
    if (fewest < 2 || end <= forwardOnlyLayers) return 0;
    const { bandwidthMbps, latencyMs = 0 } = this.#link;
    const bytes = (2 * (fewest - 1) * sums.weightBytes(first, end)) / fewest;
    return (1 - slack) * ((bytes * 8) / (bandwidthMbps * 1000) + 2 * (fewest - 1) * latencyMs);
  }

  /** Whether the weights fit the largest device, and may be replicated. */
  #fits(first: number, end: number, { fewest }: Option): boolean {
    if (fewest > 1 && !mayReplicate(this.#problem, first, end)) return false;
    return stageMemoryBytes(stageDemand(this.#problem, first, end, 1), 0) <= this.#largestBytes;
  }
}

/** Each device alone, by speed, and groups of more, by capacity. */
function optionsOf(descending: readonly number[]): Option[] {
  const alone = [...new Set(descending)].map((speed): Option => ({ cost: speed, speed, fewest: 1, most: 1 }));
  const total = descending.reduce((sum, speed) => sum + speed, 0);
  const slowest = descending.at(-1) ?? 1;
  const groups: Option[] = [];
  let fewest = 2;
  let fastest = (descending[0] ?? 0) + (descending[1] ?? 0);
  for (let cost = slowest + (descending.at(-2) ?? total); cost <= total * (1 + slack); cost *= capacityRatio) {
    while (fastest < cost * (1 - slack) && fewest < descending.length) fastest += descending[fewest++] ?? 0;
    const speed = Math.min(total, cost * capacityRatio);
    groups.push({
      cost: cost * (1 - slack),
      speed,
      fewest,
      most: Math.min(descending.length, Math.floor((speed * (1 + slack)) / slowest)),
    });
  }
  return descending.length < 2 ? alone : [...alone, ...groups];
}
