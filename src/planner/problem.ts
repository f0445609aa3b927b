// A planning problem with everything fixed but the plan: the micro-batch size is set, names are replaced by places,
// prefix sums are computed.

import type { Cluster, DeviceTimes, Profile } from '../cluster/cluster.ts';
import { forwardOnlyCount, withoutBackward } from '../cluster/forward-only.ts';
import { type LinkTable, links } from '../cluster/links.ts';
import {
  bytesInMiB,
  demandOf,
  type LayerSums,
  layerSums,
  type OptimizerState,
  type StageDemand,
} from '../cluster/memory.ts';
import { fusedTables, hasFusedTimes, type Overhead, overheadOf, type PassTables } from '../cluster/overhead.ts';
import { type KeptSums, keptSums, recomputeTable } from '../cluster/recomputation.ts';
import { backwardInputTable, deviceTimes, prefixSums } from '../cluster/times.ts';
import type { Schedule } from '../schedule/schedules.ts';

/** A device in planning. */
export interface PlannerDevice {
  readonly name: string;
  /** Index in cluster.devices, and in Problem.devices. */
  readonly place: number;
  readonly memoryBytes: number;
  /** Equal for devices with the same times. */
  readonly classIndex: number;
}

/** Prefix sums over the layers for each measured batch size. */
export interface ClassTimes extends PassSums {
  /** For a last stage that runs both passes of a micro-batch as one step; usually the same sums. */
  readonly steps: PassSums;
  /** The part of `backward` that computes the input gradients. */
  readonly backwardInput: readonly Float64Array[];
  /** The weight gradients as a separate pass; undefined: the remainder of `backward`. */
  readonly backwardWeight: readonly Float64Array[] | undefined;
  /** Of recomputing all activations that can be recomputed. */
  readonly recompute: readonly Float64Array[];
  /** Processor costs in addition to the layers. */
  readonly overhead: Overhead;
}

export interface PassSums {
  readonly forward: readonly Float64Array[];
  readonly backward: readonly Float64Array[];
  /** Forward plus backward of each layer separately. */
  readonly layers: readonly Float64Array[];
}

export interface Problem {
  readonly profile: Profile;
  readonly cluster: Cluster;
  readonly schedule: Schedule;
  readonly microBatchSize: number;
  readonly microBatchCount: number;
  readonly optimizerState: OptimizerState;
  /** Versions of the weights that stages keep for rounds in flight; 0 where rounds do not overlap (withStages). */
  readonly staleness: number;
  /** The staleness that is wished for, where a plan needs no more. */
  readonly leastStaleness: number;
  /** Rounds by which the first stage's forward passes are ahead; 0 where rounds do not overlap (withStages). */
  readonly roundsAhead: number;
  /** The most of them that a plan may need. */
  readonly maxStaleness: number;
  /** Whether layers that depend on the whole batch may be replicated nevertheless. */
  readonly replicateBatchDependent: boolean;
  /** Number of leading layers that only run forward; the profile has no backward times for them. */
  readonly forwardOnlyLayers: number;
  /** Whether activations that do not fit may be recomputed. */
  readonly recomputes: boolean;
  readonly kept: KeptSums;
  readonly table: LinkTable;
  readonly sums: LayerSums;
  /** Every device of the cluster. */
  readonly devices: readonly PlannerDevice[];
  /** Devices that a plan may use. */
  readonly available: readonly PlannerDevice[];
  /** Places that a plan may not use. */
  readonly excluded: readonly number[];
  /** By layer: exactly the places that must form the stage of this layer. */
  readonly pins: ReadonlyMap<number, readonly number[]>;
  /** By PlannerDevice.classIndex. */
  readonly classes: readonly ClassTimes[];
}

export interface ProblemInput {
  readonly profile: Profile;
  readonly cluster: Cluster;
  readonly schedule: Schedule;
  readonly batchSize: number;
  readonly microBatchSize: number;
  readonly optimizerState: OptimizerState;
  readonly replicateBatchDependent: boolean;
  readonly excluded?: readonly number[];
  /** Default: any number. */
  readonly maxStaleness?: number;
  /** Where rounds overlap, and a plan needs no more. Default 0. */
  readonly leastStaleness?: number;
  readonly pins?: ReadonlyMap<number, readonly number[]>;
  /** Default false; see recomputation.ts. */
  readonly recomputes?: boolean;
}

/** Prepares a problem. Throws InputError if a device has no times in the profile. */
export function createProblem(input: ProblemInput): Problem {
  const { cluster, batchSize, excluded = [], pins = new Map<number, readonly number[]>(), ...rest } = input;
  const forwardOnlyLayers = forwardOnlyCount(input.profile);
  const profile = withoutBackward(input.profile, forwardOnlyLayers);
  const canRecompute = profile.layers.some(({ recomputed }) => recomputed !== undefined);
  const classes: ClassTimes[] = [];
  const known = new Map<unknown, number>();
  const devices = cluster.devices.map((device, place): PlannerDevice => {
    const times = deviceTimes(profile, device);
    let classIndex = known.get(times);
    if (classIndex === undefined) {
      classIndex =
        classes.push({
          ...passSums(times),
          backwardInput: backwardInputTable(times).map(prefixSums),
          backwardWeight: times.backwardWeightMs?.map(prefixSums),
          overhead: overheadOf(times),
          recompute: canRecompute ? recomputeTable(profile, times).map(prefixSums) : [],
        }) - 1;
      known.set(times, classIndex);
    }
    return { name: device.name, place, memoryBytes: device.memoryMiB * bytesInMiB, classIndex };
  });
  const available = devices.filter(({ place }) => !excluded.includes(place));
  const microBatchCount = batchSize / input.microBatchSize;
  const settled = {
    staleness: 0,
    leastStaleness: 0,
    roundsAhead: 0,
    maxStaleness: Number.POSITIVE_INFINITY,
    recomputes: false,
    ...rest,
    profile,
    cluster,
    microBatchCount,
    excluded,
    pins,
    forwardOnlyLayers,
  };
  return {
    ...settled,
    table: links(cluster),
    sums: layerSums(profile),
    kept: keptSums(profile),
    devices,
    available,
    classes,
  };
}

function passSums(times: DeviceTimes): PassSums & { readonly steps: PassSums } {
  const sums = ({ forwardMs, backwardMs }: PassTables): PassSums => ({
    forward: forwardMs.map(prefixSums),
    backward: backwardMs.map(prefixSums),
    layers: forwardMs.map((row, point) => sumsOfLayers(row, backwardMs[point] as readonly number[])),
  });
  const apart = sums(times);
  return { ...apart, steps: hasFusedTimes(times) ? sums(fusedTables(times)) : apart };
}

function sumsOfLayers(forwardMs: readonly number[], backwardMs: readonly number[]): Float64Array {
  const sums = new Float64Array(forwardMs.length);
  for (let layer = 0; layer < sums.length; layer++)
    sums[layer] = (forwardMs[layer] as number) + (backwardMs[layer] as number);
  return sums;
}

/** Whether a last stage that begins with layer `first` runs each backward right after its forward, as one graph. */
export function runsSteps(problem: Problem, first: number): boolean {
  const { schedule } = problem;
  if (schedule.overlapsAllReduce || (schedule.splitsBackward && gradientsCross(problem, first))) return false;
  return leastInFlight(problem, 0, 1) === 1;
}

/** K_p, as few as the schedule needs. */
export function leastInFlight({ schedule, microBatchCount }: Problem, stage: number, stageCount: number): number {
  return schedule.isStream
    ? schedule.inFlight(stage, stageCount, microBatchCount)
    : schedule.forwardsAhead(stage, stageCount, microBatchCount);
}

/** The problem for pipelines of that many stages: where rounds overlap, versions of the weights are kept for them. */
export function withStages(problem: Problem, stageCount: number): Problem {
  const { schedule, microBatchCount } = problem;
  const ahead = schedule.isStream ? schedule.forwardsAhead(0, stageCount, microBatchCount) : 0;
  const roundsAhead = Math.ceil(ahead / microBatchCount);
  const staleness = schedule.isStream ? Math.max(roundsAhead, problem.leastStaleness) : 0;
  const isSame = staleness === problem.staleness && roundsAhead === problem.roundsAhead;
  return isSame ? problem : { ...problem, staleness, roundsAhead };
}

/** Whether pipelines of that many stages are no staler than they may be. */
export function mayHaveStages(problem: Problem, stageCount: number): boolean {
  return withStages(problem, stageCount).staleness <= problem.maxStaleness;
}

/** The prefix sums that apply to a stage of layers [first, end). */
export function sumsFor(problem: Problem, times: ClassTimes, first: number, end: number): PassSums {
  const isLast = end === problem.profile.layers.length;
  return isLast && times.steps.forward !== times.forward && runsSteps(problem, first) ? times.steps : times;
}

/** Whether the pins let layers [first, end) run on these places. */
export function pinsAllow({ pins }: Problem, first: number, end: number, places: readonly number[]): boolean {
  for (const [layer, wanted] of pins) {
    if (layer < first || layer >= end) continue;
    if (wanted.length !== places.length || !wanted.every((place) => places.includes(place))) return false;
  }
  return true;
}

/** Whether layers [first, end) may be replicated. */
export function mayReplicate({ sums, replicateBatchDependent }: Problem, first: number, end: number): boolean {
  return replicateBatchDependent || sums.batchDependentCount(first, end) === 0;
}

/**
 * The problem with another micro-batch size, and another schedule if given; shares everything that does not depend on
 * them.
 */
export function withMicroBatchSize(
  problem: Problem,
  microBatchSize: number,
  schedule: Schedule = problem.schedule,
): Problem {
  const batchSize = problem.microBatchSize * problem.microBatchCount;
  return {
    ...problem,
    staleness: 0,
    roundsAhead: 0,
    schedule,
    microBatchSize,
    microBatchCount: batchSize / microBatchSize,
  };
}

/** Whether gradients travel back over the border in front of a layer. */
export function gradientsCross({ forwardOnlyLayers }: Problem, cut: number): boolean {
  return cut > forwardOnlyLayers;
}

/** A stage without its position in the pipeline. Devices are places; none has zero samples. */
export interface StageLayout {
  readonly layers: readonly [first: number, end: number];
  readonly devices: readonly number[];
  readonly samples: readonly number[];
}

/** The demand of layers [first, end) with K_p = inFlightCount. */
export function stageDemand(problem: Problem, first: number, end: number, inFlightCount: number): StageDemand {
  const { sums, optimizerState, staleness, recomputes, kept } = problem;
  const savedBytes = sums.savedBytes(first, end);
  const leastSavedBytes = recomputes ? kept.leastBytes(first, end) : savedBytes;
  const inFlight = inFlightCount;
  const overlap = { own: Math.ceil(Math.max(0, inFlight - 1) / problem.microBatchCount), most: problem.roundsAhead };
  return demandOf(sums, [first, end], { savedBytes, leastSavedBytes, inFlight, staleness, optimizerState, overlap });
}
