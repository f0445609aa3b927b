// From stages to a plan: settles what the schedule leaves to the plan. How many micro-batches zb-h1 keeps on each
// stage: what the devices' memory allows, up to what the first stage keeps. Where the layers of a group are cut into
// buckets, for schedules that overlap the reduction of gradients with the backward pass: so that the last bucket is
// reduced as early as possible.

import type { PlanLayout, StagePlan } from '../cluster/cluster.ts';
import { slowestInGroup } from '../cluster/links.ts';
import { stageMemoryBytes } from '../cluster/memory.ts';
import { keptBytes } from '../cluster/recomputation.ts';
import { bucketLimit } from '../schedule/pace.ts';
import type { Pace } from '../schedule/schedules.ts';
import { gradientsCross, leastInFlight, type Problem, type StageLayout, stageDemand, withStages } from './problem.ts';
import { type ShareTimes, shareTimes } from './share-times.ts';

type Range = readonly [first: number, end: number];

/** The plan that consists of these stages. */
export function layoutPlan(asked: Problem, planner: string, layouts: readonly StageLayout[]): PlanLayout {
  const problem = withStages(asked, layouts.length);
  const { schedule, microBatchSize, microBatchCount } = problem;
  const times = schedule.overlapsAllReduce ? shareTimes(problem) : undefined;
  const stages = layouts.map((layout, stage): StagePlan => {
    const { layers, devices, samples } = layout;
    const inFlight = keptByStage(problem, layout, stage, layouts.length);
    const isReduced = devices.length > 1 && layers[1] > problem.forwardOnlyLayers;
    const buckets = times === undefined || !isReduced ? undefined : bucketsOfStage(problem, times, layout);
    return {
      layers,
      devices: devices.map((place) => problem.devices[place]?.name ?? ''),
      samples,
      inFlight,
      ...keptByDevices(problem, layout, inFlight),
      ...(buckets === undefined
        ? {}
        : {
            buckets: buckets
              .map(([first]) => first)
              .reverse()
              .slice(1),
          }),
    };
  });
  const layout = {
    planner,
    schedule: schedule.name,
    batchSize: microBatchSize * microBatchCount,
    microBatchSize,
    microBatchCount,
    stages,
  };
  return problem.forwardOnlyLayers === 0 ? layout : { ...layout, forwardOnlyLayers: problem.forwardOnlyLayers };
}

/** The plan field for the memory that a stage's devices keep activations in; absent if all keep everything. */
export function keptByDevices(
  problem: Problem,
  { layers, devices, samples }: StageLayout,
  inFlightCount: number,
): Pick<StagePlan, 'savedBytes'> {
  if (!problem.recomputes) return {};
  const demand = stageDemand(problem, ...layers, inFlightCount);
  const savedBytes = devices.map((place, index) =>
    keptBytes(demand, problem.devices[place]?.memoryBytes ?? 0, samples[index] ?? 0),
  );
  return savedBytes.every((bytes) => bytes === demand.savedBytes) ? {} : { savedBytes };
}

/**
 * K_p: the schedule's, as far as memory allows; at least the forwards that the stage runs ahead, which the planners
 * ensure.
 */
function keptByStage(problem: Problem, layout: StageLayout, stage: number, stageCount: number): number {
  const { schedule, microBatchCount } = problem;
  const { layers, devices, samples } = layout;
  const least = leastInFlight(problem, stage, stageCount);
  if (!isSplitStage(problem, layout)) return least;
  let kept = schedule.inFlight(stage, stageCount, microBatchCount);
  for (const [index, place] of devices.entries()) {
    if (kept <= least) return least;
    const share = samples[index] ?? 0;
    const freeBytes =
      (problem.devices[place]?.memoryBytes ?? 0) - stageMemoryBytes(stageDemand(problem, ...layers, 0), share);
    const eachBytes = share * problem.sums.savedBytes(...layers);
    if (eachBytes > 0) kept = Math.min(kept, Math.floor(freeBytes / eachBytes));
  }
  return Math.max(kept, least);
}

/** How a stage of a pipeline runs its micro-batches: what schedule/pace.ts makes of the plan. */
export function paceOfStage(problem: Problem, layout: StageLayout, stage: number, stageCount: number): Pace {
  const { schedule, microBatchCount } = problem;
  const ahead = schedule.forwardsAhead(stage, stageCount, microBatchCount);
  if (layout.layers[1] <= problem.forwardOnlyLayers && !schedule.isStream)
    return { ahead: microBatchCount, delay: undefined };
  if (!isSplitStage(problem, layout)) return { ahead, delay: undefined };
  return { ahead, delay: keptByStage(problem, layout, stage, stageCount) - ahead };
}

/** Whether a stage computes input and weight gradients apart; false if the stage before it needs no gradients. */
export function isSplitStage(problem: Problem, { layers }: StageLayout): boolean {
  return problem.schedule.splitsBackward && gradientsCross(problem, layers[0]);
}

/** Number of places where a bucket may begin; evenly spread in stages with more layers. */
const borderLimit = 12;

/**
 * A group's buckets, the deepest first. With C(a) for the time when the last member's gradients of layers a and above
 * are final, and R for rule 5's time, the AllReduce of layers [a, end) in at most k buckets ends at E_k(a) = min over b
 * of max(C(a), E_{k−1}(b)) + R(a, b).
 */
export function bucketsOfStage(problem: Problem, times: ShareTimes, layout: StageLayout): readonly Range[] {
  const { layers, devices, samples } = layout;
  const [first, end] = layers;
  const isSplit = isSplitStage(problem, layout);
  const borders = bordersOf(first, end);
  const last = borders.length - 1;
  const reduceMs = ringTimes(problem, devices);
  const finalMs = borders.map((border) =>
    Math.max(...devices.map((place, index) => finalPassMs(times, place, [border, end], samples[index] ?? 0, isSplit))),
  );
  let ends = borders.map((_, a) => (finalMs[a] ?? 0) + reduceMs(borders[a] ?? 0, end));
  /** By number of buckets and border: the end of the bucket that begins there. */
  const choices: number[][] = [borders.map(() => last)];
  for (let count = 2; count <= Math.min(bucketLimit, last); count++) {
    const shorter = ends;
    const chosen = [...(choices.at(-1) ?? [])].map(() => -1);
    ends = shorter.map((best, a) => {
      let least = best;
      for (let b = a + 1; b < last; b++) {
        const found = Math.max(finalMs[a] ?? 0, shorter[b] ?? 0) + reduceMs(borders[a] ?? 0, borders[b] ?? 0);
        // An additional bucket must be worth it.
        if (found < least - 1e-9 * best) [least, chosen[a]] = [found, b];
      }
      return least;
    });
    choices.push(chosen);
  }
  const found: Range[] = [];
  for (let [a, count] = [0, choices.length - 1]; a < last; ) {
    const b = choices[count]?.[a] ?? last;
    if (b !== -1) {
      found.push([borders[a] ?? 0, borders[b] ?? 0]);
      a = b;
    }
    count--;
  }
  return found.reverse();
}

function bordersOf(first: number, end: number): number[] {
  const count = Math.min(borderLimit, end - first);
  return Array.from({ length: count + 1 }, (_, index) => first + Math.round((index * (end - first)) / count));
}

/** Rule 5's AllReduce time of a group, by layers. */
function ringTimes({ table, sums }: Problem, devices: readonly number[]): (first: number, end: number) => number {
  const { bandwidthMbps, latencyMs } = slowestInGroup(table, devices);
  const steps = 2 * (devices.length - 1);
  return (first, end) =>
    (steps * sums.weightBytes(first, end) * 8) / (devices.length * bandwidthMbps * 1000) + steps * latencyMs;
}

/** The time of the pass that makes weight gradients final. */
function finalPassMs(times: ShareTimes, place: number, [first, end]: Range, samples: number, isSplit: boolean): number {
  return isSplit ? times.backwardWeightMs(place, first, end, samples) : times.backwardMs(place, first, end, samples);
}
