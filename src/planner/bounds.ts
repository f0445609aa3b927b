// What no plan can beat in the simulated world. It proves that a micro-batch size, or a part of a search, need not be tried, and how far
// a plan is from the best.

import { prefixSums, rangeOf } from '../cluster/times.ts';
import type { Problem } from './problem.ts';
import { StageTable } from './stages.ts';

/** Lower bounds of the time that samples of a micro-batch keep devices busy, forward and backward; memory and links are ignored. */
export interface Bounds {
  /** The weight of a class of devices: its speed over the whole model. */
  readonly speeds: readonly number[];
  /**
   * Least busy time of the busiest of some devices, whose speeds add up to `speed`, when they alone run layers [first, end) of one
   * micro-batch, however they share it.
   */
  busiestMs(first: number, end: number, speed: number): number;
}

/**
 * The busiest device is busy for at least the weighted mean of all busy times, whatever the weights; with w for weights, each sample of
 * each layer adds at least min over devices of w · its least time. With speeds as weights that is exact for devices that differ by a factor.
 */
export function createBounds(problem: Problem): Bounds {
  const table = new StageTable(problem);
  const costs = problem.profile.layers.map((_, layer) => {
    table.setLayers(layer, layer + 1);
    return problem.classes.map((_, classIndex) => table.leastPerSampleMs(classIndex));
  });
  const speeds = problem.classes.map((_, classIndex) => 1 / costs.reduce((sum, row) => sum + (row[classIndex] ?? 0), 0));
  // A class that takes no time at all can take everything.
  if (!speeds.every(Number.isFinite)) return { speeds: speeds.map(() => 1), busiestMs: () => 0 };
  const least = prefixSums(costs.map((row) => Math.min(...row.map((ms, classIndex) => ms * (speeds[classIndex] ?? 0)))));
  const samples = problem.microBatchSize * (1 - 1e-9);
  return { speeds, busiestMs: (first, end, speed) => (samples * rangeOf(least, first, end)) / speed };
}

/** A lower bound of the round of any plan with the problem's micro-batch size, whatever its planner, schedule and devices. */
export function lowerBoundMs(problem: Problem): number {
  const { speeds, busiestMs } = createBounds(problem);
  const total = problem.available.reduce((sum, device) => sum + (speeds[device.classIndex] ?? 0), 0);
  return problem.microBatchCount * busiestMs(0, problem.profile.layers.length, total);
}
