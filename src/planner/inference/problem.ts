// A problem of inference: forward passes alone. Nothing is trained, so a device keeps its stage's weights once and no
// gradients, and only forward times and what moving activations costs count.

import type { Cluster, DeviceTimes, Profile } from '../../cluster/cluster.ts';
import { type ActivationEncoding, codecMs, encodedFraction } from '../../cluster/compression.ts';
import { heldStage, layerSessionBytes, leastStageBytes, movedBytes } from '../../cluster/inference-memory.ts';
import { bytesInMiB } from '../../cluster/memory.ts';
import { withoutFused } from '../../cluster/overhead.ts';
import { schedules } from '../../schedule/schedules.ts';
import { createProblem, type Problem, type StageLayout } from '../problem.ts';
import { type ShareTimes, shareTimes } from '../share-times.ts';

export interface InferenceProblem {
  /** In the form that other planners share; its layers' outputs count as they travel. */
  readonly base: Problem;
  readonly times: ShareTimes;
  readonly microBatchSize: number;
  /** Bytes a sample in memory that cross the cut in front of each layer, the inputs' for 0, and those of the result. */
  readonly cutBytes: readonly number[];
  /** By memory and share: see lastEnds. */
  readonly knownEnds: Map<string, Int32Array>;
  /** What encoding and decoding a sample delays it at each of these cuts, in milliseconds. */
  readonly codecMs: readonly number[];
  /** Numbers of samples for which stages are compiled. */
  readonly sizeCount: number;
}

export interface InferenceInput {
  readonly profile: Profile;
  readonly cluster: Cluster;
  readonly microBatchSize: number;
  /** How activations travel; absent: as they are. */
  readonly encoding?: ActivationEncoding | undefined;
  /** Numbers of samples of which rounds come, and for which stages are compiled. Default 1. */
  readonly sizeCount?: number;
  /** Places of devices that get no layers. */
  readonly excluded?: readonly number[];
}

/** Prepares a problem. Throws InputError if a device has no times in the profile. */
export function inferenceProblem(input: InferenceInput): InferenceProblem {
  const { profile, cluster, microBatchSize, encoding, sizeCount = 1, excluded = [] } = input;
  const layerCount = profile.layers.length;
  const created = createProblem({
    ...{ cluster, microBatchSize, excluded, batchSize: microBatchSize, schedule: schedules['1f1b'] },
    profile: forwardOnly(profile, encodedFraction(encoding)),
    optimizerState: 0,
    // With the statistics that the model was trained to, a sample's result depends on no other sample.
    replicateBatchDependent: true,
  });
  const base = { ...created, forwardOnlyLayers: layerCount };
  const cutBytes = [profile.inputBytes, ...profile.layers.map(({ outputBytes }) => outputBytes)];
  const delays = cutBytes.map((bytes, cut) => (cut === 0 || cut === layerCount ? 0 : codecMs(encoding, bytes)));
  const times = shareTimes(base);
  return { base, times, microBatchSize, cutBytes, knownEnds: new Map(), codecMs: delays, sizeCount };
}

function forwardOnly(profile: Profile, fraction: number): Profile {
  const devices = Object.entries(profile.devices).map(([name, times]): [string, DeviceTimes] => {
    const { backwardInputMs: _input, backwardWeightMs: _weight, updateMs: _update, ...rest } = withoutFused(times);
    return [name, { ...rest, backwardMs: times.forwardMs.map((row) => row.map(() => 0)) }];
  });
  const layers = profile.layers.map(({ recomputed: _, ...layer }, index) => ({
    ...layer,
    // What training would keep is not there.
    ...(layer.runtimeBytes === undefined ? {} : { runtimeBytes: layerSessionBytes }),
    outputBytes: index + 1 === profile.layers.length ? layer.outputBytes : layer.outputBytes * fraction,
    frozenBytes: layer.weightBytes,
    savedBytes: 0,
  }));
  return { ...profile, labelBytes: 0, layers, devices: Object.fromEntries(devices) };
}

/** The least bytes on a device with a share of a micro-batch. */
export function leastBytes(
  { base, cutBytes }: InferenceProblem,
  [first, end]: readonly [number, number],
  samples: number,
): number {
  const { frozenBytes, runtimeBytes } = base.sums;
  const moved = movedBytes(cutBytes, [first, end], samples);
  return leastStageBytes({ sessionBytes: runtimeBytes(first, end), moved }, frozenBytes(first, end));
}

/**
 * The most bytes that a device with so much memory takes for a share of a micro-batch. Profiles that name nothing that
 * a runtime keeps are of other systems: these are counted with the least.
 */
export function inferenceBytes(
  problem: InferenceProblem,
  [first, end]: readonly [number, number],
  samples: number,
  memoryBytes: number,
): number {
  const { base, cutBytes, sizeCount } = problem;
  const sessionBytes = base.sums.runtimeBytes(first, end);
  if (sessionBytes === 0) return leastBytes(problem, [first, end], samples);
  const moved = movedBytes(cutBytes, [first, end], samples);
  const weightBytes = base.sums.frozenBytes(first, end);
  return heldStage({ weightBytes, sessionBytes, moved, memoryBytes, sizeCount }).bytes;
}

/**
 * By first layer: the end of the longest stage that a device with this memory and share can hold; a stage that is
 * longer needs more.
 */
export function lastEnds(problem: InferenceProblem, memoryBytes: number, samples: number): Int32Array {
  const key = `${memoryBytes} ${samples}`;
  const known = problem.knownEnds.get(key);
  if (known !== undefined) return known;
  const { base, cutBytes } = problem;
  const { frozenBytes, runtimeBytes } = base.sums;
  const L = base.profile.layers.length;
  const ends = Int32Array.from({ length: L }, (_, first) => {
    let widest = 0;
    for (let end = first + 1; end <= L; end++) {
      widest = Math.max(widest, (cutBytes[end - 1] as number) + (cutBytes[end] as number));
      const moved = movedBytes(cutBytes, [first, end], samples, widest);
      const bytes = leastStageBytes({ sessionBytes: runtimeBytes(first, end), moved }, frozenBytes(first, end));
      if (bytes > memoryBytes) return end - 1;
    }
    return L;
  });
  problem.knownEnds.set(key, ends);
  return ends;
}

/** Whether each device has the memory for its share of its stage. */
export function fits(problem: InferenceProblem, layouts: readonly StageLayout[]): boolean {
  return layouts.every(({ layers, devices, samples }) =>
    devices.every(
      (place, index) => leastBytes(problem, layers, samples[index] ?? 0) <= memoryBytes(problem, place) * (1 + 1e-12),
    ),
  );
}

export function memoryBytes({ base }: InferenceProblem, place: number): number {
  return (base.cluster.devices[place]?.memoryMiB ?? 0) * bytesInMiB;
}
