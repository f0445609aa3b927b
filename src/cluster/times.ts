// How long a range of layers takes at a share of the micro-batch (planner.md, rule 1): linear between two measured
// batch sizes, along the last segment beyond the last, in proportion below the first, nothing for no samples.
// Interpolation is linear in the measured times, so prefix sums over the layers at each measured size answer any range
// in constant time.

import { InputError } from '../errors.ts';
import type { DeviceSpec, DeviceTimes, Profile } from './cluster.ts';

/** The profile's times for a device: by its name, else by its kind. InputError when it has neither. */
export function deviceTimes(profile: Profile, device: DeviceSpec): DeviceTimes {
  for (const key of [device.name, device.kind]) {
    if (key !== undefined && Object.hasOwn(profile.devices, key)) return profile.devices[key] as DeviceTimes;
  }
  const kind = device.kind === undefined ? 'no kind' : `kind "${device.kind}"`;
  const known = Object.keys(profile.devices);
  const fix =
    known.length === 0
      ? 'profile it first'
      : `profile it, or give it one of the profile's kinds (${known.slice(0, 6).join(', ')})`;
  throw new InputError(`The profile of "${profile.model}" has no times for device "${device.name}" (${kind}); ${fix}.`);
}

/**
 * The two measured points that a batch size lies between, by index, and their weights: time = lowerWeight·t[lower] +
 * upperWeight·t[upper].
 */
export interface Interpolation {
  readonly lower: number;
  readonly upper: number;
  readonly lowerWeight: number;
  readonly upperWeight: number;
}

/** Where `samples` lies among the ascending `batchSizes`; a single point is a line through zero. */
export function interpolation(batchSizes: readonly number[], samples: number): Interpolation {
  const first = batchSizes[0] as number;
  const last = batchSizes.length - 1;
  if (samples <= first || last === 0) return { lower: 0, upper: 0, lowerWeight: samples / first, upperWeight: 0 };
  let upper = 1;
  while (upper < last && (batchSizes[upper] as number) < samples) upper++;
  const from = batchSizes[upper - 1] as number;
  const upperWeight = (samples - from) / ((batchSizes[upper] as number) - from);
  return { lower: upper - 1, upper, lowerWeight: 1 - upperWeight, upperWeight };
}

/** Tables of a device's times, [batchSize][layer]. */
export interface PassTables {
  readonly forwardMs: readonly (readonly number[])[];
  readonly backwardMs: readonly (readonly number[])[];
}

/**
 * The two passes where both are one step (`stepMs`), which they share as they share their sum elsewhere. The same
 * tables where the profile has no steps.
 */
export function stepTables({ forwardMs, backwardMs, stepMs }: DeviceTimes): PassTables {
  if (stepMs === undefined) return { forwardMs, backwardMs };
  const forward = stepMs.map((row, point) =>
    row.map((ms, layer) => {
      const [own, other] = [forwardMs[point]?.[layer] ?? 0, backwardMs[point]?.[layer] ?? 0];
      return own + other > 0 ? (ms * own) / (own + other) : 0;
    }),
  );
  return {
    forwardMs: forward,
    backwardMs: stepMs.map((row, point) => row.map((ms, layer) => ms - (forward[point]?.[layer] ?? 0))),
  };
}

/** Times of one device, in milliseconds, for layers [first, end) at `samples` samples, the engine's call included. */
export interface LayerTimes {
  forwardMs(first: number, end: number, samples: number): number;
  backwardMs(first: number, end: number, samples: number): number;
  /** The part of backwardMs that gives the input gradients; never more than the whole. */
  backwardInputMs(first: number, end: number, samples: number): number;
  /** The weight gradients as a pass of their own: what the whole leaves, or more where the profile says so. */
  backwardWeightMs(first: number, end: number, samples: number): number;
  /** One optimizer update; 0 where the profile says nothing. */
  updateMs(first: number, end: number): number;
}

/** Milliseconds for layers [first, end) at `samples` samples. */
export type RangeTimes = (first: number, end: number, samples: number) => number;

/** The times of rows by batch size, of one entry a layer. */
export function rangeTimes(rows: readonly (readonly number[])[], batchSizes: readonly number[]): RangeTimes {
  const sums = rows.map(prefixSums);
  return (first, end, samples) => {
    const at = interpolation(batchSizes, samples);
    const lower = rangeOf(sums[at.lower] as Float64Array, first, end);
    const upper = at.upper === at.lower ? 0 : rangeOf(sums[at.upper] as Float64Array, first, end);
    return Math.max(0, at.lowerWeight * lower + at.upperWeight * upper);
  };
}

/**
 * The times of a device from its profile, in a stage that runs both passes of a micro-batch as one step if `isStep`. A
 * line that falls below zero beyond the last point (noise in the profile) counts as zero.
 */
export function layerTimes(times: DeviceTimes, batchSizes: readonly number[], isStep = false): LayerTimes {
  const tables = isStep ? stepTables(times) : times;
  const forwardMs = rangeTimes(tables.forwardMs, batchSizes);
  const backwardMs = rangeTimes(tables.backwardMs, batchSizes);
  const inputMs = rangeTimes(backwardInputTable(times), batchSizes);
  const weightMs = times.backwardWeightMs && rangeTimes(times.backwardWeightMs, batchSizes);
  const update = times.updateMs === undefined ? undefined : prefixSums(times.updateMs);
  const { callMs = 0 } = times;
  const called = (rangeMs: RangeTimes): RangeTimes =>
    callMs === 0
      ? rangeMs
      : (first, end, samples) => (samples === 0 || first >= end ? 0 : rangeMs(first, end, samples) + callMs);
  return {
    forwardMs: called(forwardMs),
    backwardMs: called(backwardMs),
    backwardInputMs: called((first, end, samples) =>
      Math.min(inputMs(first, end, samples), backwardMs(first, end, samples)),
    ),
    backwardWeightMs: called((first, end, samples) => {
      const wholeMs = backwardMs(first, end, samples);
      return Math.max(wholeMs - Math.min(inputMs(first, end, samples), wholeMs), weightMs?.(first, end, samples) ?? 0);
    }),
    updateMs: (first, end) => (update === undefined ? 0 : Math.max(0, rangeOf(update, first, end))),
  };
}

/** The profile's times of input gradients; half of the whole backward pass where it has none. [batchSize][layer] */
export function backwardInputTable({ backwardMs, backwardInputMs }: DeviceTimes): readonly (readonly number[])[] {
  return backwardInputMs ?? backwardMs.map((row) => row.map((ms) => ms / 2));
}

/** The times of a device that takes `factor` times as long for everything. */
export function scaledTimes(times: DeviceTimes, factor: number): DeviceTimes {
  const { forwardMs, backwardMs, backwardInputMs, backwardWeightMs, stepMs, updateMs, callMs } = times;
  const { handlingMsPerMiB, reducingMsPerMiB, frameMs, passMs } = times;
  const row = (values: readonly number[]): number[] => values.map((ms) => ms * factor);
  return {
    forwardMs: forwardMs.map(row),
    backwardMs: backwardMs.map(row),
    ...(backwardInputMs === undefined ? {} : { backwardInputMs: backwardInputMs.map(row) }),
    ...(backwardWeightMs === undefined ? {} : { backwardWeightMs: backwardWeightMs.map(row) }),
    ...(stepMs === undefined ? {} : { stepMs: stepMs.map(row) }),
    ...(updateMs === undefined ? {} : { updateMs: row(updateMs) }),
    ...(callMs === undefined ? {} : { callMs: callMs * factor }),
    ...(handlingMsPerMiB === undefined ? {} : { handlingMsPerMiB: handlingMsPerMiB * factor }),
    ...(reducingMsPerMiB === undefined ? {} : { reducingMsPerMiB: reducingMsPerMiB * factor }),
    ...(frameMs === undefined ? {} : { frameMs: frameMs * factor }),
    ...(passMs === undefined ? {} : { passMs: passMs * factor }),
  };
}

/**
 * Milliseconds of computing that a device loses to bytes that it sends or receives. A forward pass pays for what it is
 * given and what it hands on, and so does a backward pass (its first part, where it has several); the data's holder
 * pays with its forward passes for what it hands out. Each frame costs `frameMs` and each pass `passMs` besides.
 */
export function handlingMs({ handlingMsPerMiB = 0 }: DeviceTimes, bytes: number): number {
  return (handlingMsPerMiB * bytes) / 2 ** 20;
}

/** The same for bytes of an AllReduce, which takes no less than this. */
export function reducingMs(
  { handlingMsPerMiB = 0, reducingMsPerMiB = handlingMsPerMiB }: DeviceTimes,
  bytes: number,
): number {
  return (reducingMsPerMiB * bytes) / 2 ** 20;
}

/** sums[i] is the sum of the first i values. */
export function prefixSums(values: ArrayLike<number>): Float64Array {
  const sums = new Float64Array(values.length + 1);
  for (let index = 0; index < values.length; index++)
    sums[index + 1] = (sums[index] as number) + (values[index] as number);
  return sums;
}

/** The sum of the values [first, end) from their prefix sums. */
export function rangeOf(sums: Float64Array, first: number, end: number): number {
  return (sums[end] as number) - (sums[first] as number);
}
