// How long a device takes for its share of a stage, and a group for its AllReduce: the times of the simulator's
// compiler, for devices given as places of a problem.

import { slowestInGroup } from '../cluster/links.ts';
import { calledMs, type Overhead, overheadOf, processorMs, reduceCpuMs, type Traffic } from '../cluster/overhead.ts';
import { deviceTimes, type Interpolation, interpolation, layerTimes, onGrid, rangeOf } from '../cluster/times.ts';
import { type PassSums, type Problem, sumsFor } from './problem.ts';

/** Times in milliseconds, on the grid, of a device for layers [first, end) at a share. */
export interface ShareTimes {
  forwardMs(place: number, first: number, end: number, samples: number): number;
  backwardMs(place: number, first: number, end: number, samples: number): number;
  /** The part of backwardMs that computes input gradients. */
  backwardInputMs(place: number, first: number, end: number, samples: number): number;
  /** The weight gradients, as a separate pass. */
  backwardWeightMs(place: number, first: number, end: number, samples: number): number;
  updateMs(place: number, first: number, end: number): number;
  /** Processor time for traffic. */
  processorMs(place: number, traffic: Traffic): number;
}

/** The times of a problem's devices. */
export function shareTimes(problem: Problem): ShareTimes {
  const { profile, cluster, devices, classes } = problem;
  const at: Interpolation[] = [];
  const rangeMs = (sums: readonly Float64Array[] | undefined, first: number, end: number, samples: number): number => {
    if (sums === undefined || samples === 0) return 0;
    at[samples] ??= interpolation(profile.batchSizes, samples);
    const where = at[samples];
    const lower = rangeOf(sums[where.lower] as Float64Array, first, end);
    const upper = where.upper === where.lower ? 0 : rangeOf(sums[where.upper] as Float64Array, first, end);
    return Math.max(0, where.lowerWeight * lower + where.upperWeight * upper);
  };
  /** Adds the engine's call if there is anything to compute. */
  const called = (place: number, [first, end]: readonly [number, number], samples: number, ms: number): number =>
    onGrid(calledMs(overheadAt(problem, place), samples === 0 || first >= end, ms));
  const trained = (first: number, end: number): readonly [number, number] => [
    Math.max(first, problem.forwardOnlyLayers),
    end,
  ];
  const updates = cluster.devices.map((device) => {
    const times = deviceTimes(profile, device);
    return times.updateMs === undefined ? undefined : layerTimes(times, profile.batchSizes);
  });
  const sumsOf = (place: number, first: number, end: number): PassSums | undefined => {
    const times = classes[devices[place]?.classIndex ?? -1];
    return times && sumsFor(problem, times, first, end);
  };
  const wholeMs = (place: number, first: number, end: number, samples: number): number =>
    rangeMs(sumsOf(place, first, end)?.backward, first, end, samples);
  const inputMs = (place: number, first: number, end: number, samples: number): number => {
    const times = classes[devices[place]?.classIndex ?? -1];
    return Math.min(rangeMs(times?.backwardInput, first, end, samples), rangeMs(times?.backward, first, end, samples));
  };
  return {
    forwardMs: (place, first, end, samples) =>
      called(place, [first, end], samples, rangeMs(sumsOf(place, first, end)?.forward, first, end, samples)),
    backwardMs: (place, first, end, samples) =>
      called(place, trained(first, end), samples, wholeMs(place, first, end, samples)),
    backwardInputMs: (place, first, end, samples) =>
      called(place, trained(first, end), samples, inputMs(place, first, end, samples)),
    backwardWeightMs: (place, first, end, samples) => {
      const times = classes[devices[place]?.classIndex ?? -1];
      const leftMs = rangeMs(times?.backward, first, end, samples) - inputMs(place, first, end, samples);
      return called(
        place,
        trained(first, end),
        samples,
        Math.max(leftMs, rangeMs(times?.backwardWeight, first, end, samples)),
      );
    },
    updateMs: (place, first, end) => onGrid(updates[place]?.updateMs(first, end) ?? 0),
    processorMs: (place, traffic) => processorMs(overheadAt(problem, place), traffic, onGrid),
  };
}

/** Rule 5's AllReduce time of a group: at least as long as its members need to send and receive it. */
export function groupReduceMs(problem: Problem, devices: readonly number[], first: number, end: number): number {
  const { table, forwardOnlyLayers } = problem;
  const count = devices.length;
  if (count < 2 || end <= forwardOnlyLayers) return 0;
  const { bandwidthMbps, latencyMs } = slowestInGroup(table, devices);
  const bytes = ringBytes(problem, count, first, end);
  const costMs = Math.max(...devices.map((place) => reduceCostMs(problem, place, bytes)));
  return onGrid(Math.max((bytes * 8) / (bandwidthMbps * 1000), costMs) + 2 * (count - 1) * latencyMs);
}

/** Bytes that every member of a group sends, and receives, in an AllReduce. */
export function ringBytes({ sums }: Problem, count: number, first: number, end: number): number {
  return (2 * (count - 1) * sums.weightBytes(first, end)) / count;
}

/** What an AllReduce costs the processor of a member that sends and receives `bytes` each. */
export function reduceCostMs(problem: Problem, place: number, bytes: number): number {
  return onGrid(reduceCpuMs(overheadAt(problem, place), 2 * bytes));
}

const noOverhead = overheadOf({});

function overheadAt({ devices, classes }: Problem, place: number): Overhead {
  return classes[devices[place]?.classIndex ?? -1]?.overhead ?? noOverhead;
}
