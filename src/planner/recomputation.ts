// Recomputation in planning: a device keeps as much as its memory holds and recomputes the rest, so layers, devices and
// shares determine it. Applies only to problems that enable it (Problem.recomputes); elsewhere everything is kept.

import type { StageDemand } from '../cluster/memory.ts';
import { keptBytes, recomputeFraction } from '../cluster/recomputation.ts';
import { interpolation, rangeOf } from '../cluster/times.ts';
import type { Problem } from './problem.ts';

/** The problem with recomputation enabled, if its profile knows what that saves. */
export function withRecomputation(problem: Problem): Problem {
  return { ...problem, recomputes: problem.profile.layers.some(({ recomputed }) => recomputed !== undefined) };
}

/** Milliseconds that recomputation adds to a backward pass of layers [first, end), whose demand is `demand`. */
export function recomputeMs(
  problem: Problem,
  place: number,
  layers: readonly [number, number],
  demand: StageDemand,
  samples: number,
): number {
  const device = problem.devices[place];
  if (!problem.recomputes || device === undefined || samples === 0) return 0;
  const kept = keptBytes(demand, device.memoryBytes, samples);
  const fraction = recomputeFraction(problem.kept, ...layers, kept);
  return fraction === 0 ? 0 : fraction * allAgainMs(problem, device.classIndex, layers, samples);
}

function allAgainMs(
  { profile, classes }: Problem,
  classIndex: number,
  layers: readonly [number, number],
  samples: number,
): number {
  const sums = classes[classIndex]?.recompute;
  if (sums === undefined) return 0;
  const at = interpolation(profile.batchSizes, samples);
  const lower = rangeOf(sums[at.lower] as Float64Array, ...layers);
  const upper = at.upper === at.lower ? 0 : rangeOf(sums[at.upper] as Float64Array, ...layers);
  return Math.max(0, at.lowerWeight * lower + at.upperWeight * upper);
}
