// Lower bounds on the simulated round. They prove that a micro-batch size or a part of a search need not be tried, and
// how far a plan is from the best.

import { interpolation, rangeOf } from '../cluster/times.ts';
import { type ClassTimes, type PassSums, type Problem, runsSteps } from './problem.ts';

/** Lower bounds on the busy time of devices for a micro-batch, forward and backward; memory and links are ignored. */
export interface Bounds {
  /** By class of devices: its weight, which is its speed over the whole model. */
  readonly speeds: readonly number[];
  /**
   * A lower bound on the busy time of the busiest of some devices, whose speeds add up to `speed`, when they alone run
   * layers [first, end) of one micro-batch, however they share it.
   */
  busiestMs(first: number, end: number, speed: number): number;
}

/**
 * The busiest device is busy for at least the weighted mean of all busy times, for any weights w: each sample of each
 * layer adds at least min over devices of w · its least time. With speeds as weights this is exact for devices whose
 * times differ by a constant factor.
 */
export function createBounds(problem: Problem): Bounds {
  const costs = problem.classes.map((times) => leastPerSampleMs(problem, times));
  const speeds = costs.map((row) => 1 / row.reduce((sum, ms) => sum + ms, 0));
  // A class that takes no time can take all layers.
  if (!speeds.every(Number.isFinite)) return { speeds: speeds.map(() => 1), busiestMs: () => 0 };
  const least = new Float64Array(problem.profile.layers.length + 1);
  for (let layer = 0; layer + 1 < least.length; layer++) {
    let weighted = Number.POSITIVE_INFINITY;
    for (let index = 0; index < costs.length; index++)
      weighted = Math.min(weighted, ((costs[index] as Float64Array)[layer] as number) * (speeds[index] as number));
    least[layer + 1] = (least[layer] as number) + weighted;
  }
  const samples = problem.microBatchSize * (1 - 1e-9);
  return { speeds, busiestMs: (first, end, speed) => (samples * rangeOf(least, first, end)) / speed };
}

/**
 * By layer: the least time that a sample costs at any share, forward and backward. Piecewise linear times reach it at a
 * measured size or at the whole micro-batch.
 */
function leastPerSampleMs(problem: Problem, times: ClassTimes): Float64Array {
  const apart = leastOf(problem, times);
  if (times.steps.forward === times.forward || !runsSteps(problem, 0)) return apart;
  // Any layer may be in the last stage.
  return leastOf(problem, times.steps).map((ms, layer) => Math.min(ms, apart[layer] as number));
}

function leastOf({ profile: { batchSizes }, microBatchSize }: Problem, { layers }: PassSums): Float64Array {
  const { lower, upper, lowerWeight, upperWeight } = interpolation(batchSizes, microBatchSize);
  const [from, to] = [layers[lower] as Float64Array, layers[upper] as Float64Array];
  const least = new Float64Array(from.length);
  for (let layer = 0; layer < least.length; layer++) {
    const wholeMs = lowerWeight * (from[layer] as number) + upperWeight * (to[layer] as number);
    least[layer] = wholeMs > 0 ? wholeMs / microBatchSize : 0;
  }
  for (let point = 0; point < batchSizes.length && (batchSizes[point] as number) < microBatchSize; point++) {
    const row = layers[point] as Float64Array;
    const samples = batchSizes[point] as number;
    for (let layer = 0; layer < least.length; layer++) {
      const ms = (row[layer] as number) / samples;
      if (ms < (least[layer] as number)) least[layer] = ms;
    }
  }
  return least;
}

/** Lower bounds on the round of plans with the problem's micro-batch size. */
export interface RoundBounds {
  /** For any planner, schedule and devices. */
  readonly anyMs: number;
  /** For a pipeline of single devices whose backward passes are not split. */
  readonly straightMs: number;
}

/**
 * In a straight pipeline, stage p is idle before the first forward and after the last backward of the stages in front
 * of it: with u_q for the time that a micro-batch keeps stage q busy, T ≥ Σ_{q<p} u_q + M·u_p. Given T, stage p can do
 * at most s_p·T/M·((M − 1)/M)^p of the work, s_p its speed; with the fastest devices in front that sum is largest.
 */
export function roundBounds(problem: Problem): RoundBounds {
  const { microBatchCount, available, profile } = problem;
  const { speeds, busiestMs } = createBounds(problem);
  const descending = available.map((device) => speeds[device.classIndex] ?? 0).sort((a, b) => b - a);
  let [total, reached, left] = [0, 0, 1];
  for (const speed of descending) {
    total += speed;
    reached += speed * left;
    left *= (microBatchCount - 1) / microBatchCount;
  }
  const boundMs = (speed: number): number => microBatchCount * busiestMs(0, profile.layers.length, speed);
  return { anyMs: boundMs(total), straightMs: boundMs(reached) };
}

/**
 * A lower bound on the round of any plan with the problem's micro-batch size, for any planner, schedule and devices.
 */
export function lowerBoundMs(problem: Problem): number {
  return roundBounds(problem).anyMs;
}
