// How long a range of layers takes at a share of the micro-batch (planner.md, rule 1): linear between two measured
// batch sizes, along the last segment beyond the last, in proportion below the first, nothing for no samples.
// Interpolation is linear in the measured times, so prefix sums over the layers at each measured size answer any range
// in constant time.

import { InputError } from '../errors.ts';
import type { DeviceSpec, DeviceTimes, Profile } from './cluster.ts';
import { calledMs, type FieldShape, fusedTables, overheadOf, overheadShapes, type TimeTable } from './overhead.ts';

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

/** Times of one device, in milliseconds, for layers [first, end) at `samples` samples, the engine's call included. */
export interface LayerTimes {
  forwardMs(first: number, end: number, samples: number): number;
  backwardMs(first: number, end: number, samples: number): number;
  /** Forward with one tangent. */
  tangentMs(first: number, end: number, samples: number): number;
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
  const tables = isStep ? fusedTables(times) : times;
  const forwardMs = rangeTimes(tables.forwardMs, batchSizes);
  const backwardMs = rangeTimes(tables.backwardMs, batchSizes);
  const inputMs = rangeTimes(backwardInputTable(times), batchSizes);
  const tangentMs = rangeTimes(tangentTable(times), batchSizes);
  const weightMs = times.backwardWeightMs && rangeTimes(times.backwardWeightMs, batchSizes);
  const update = times.updateMs === undefined ? undefined : prefixSums(times.updateMs);
  const overhead = overheadOf(times);
  const called =
    (rangeMs: RangeTimes): RangeTimes =>
    (first, end, samples) =>
      calledMs(overhead, samples === 0 || first >= end, rangeMs(first, end, samples));
  return {
    forwardMs: called(forwardMs),
    backwardMs: called(backwardMs),
    tangentMs: called(tangentMs),
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

/**
 * A pass with one tangent beside forward and backward together, where a profile says nothing: 0.4 to 0.65 in
 * bench/results/2026-11-21-forward-mode.md.
 */
const tangentFraction = 0.6;

/** The profile's times of passes with a tangent, estimated where it has none. [batchSize][layer] */
export function tangentTable({ forwardMs, backwardMs, tangentMs }: DeviceTimes): TimeTable {
  return (
    tangentMs ??
    forwardMs.map((row, point) => row.map((ms, layer) => tangentFraction * (ms + (backwardMs[point]?.[layer] ?? 0))))
  );
}

/** The profile's times of input gradients; half of the whole backward pass where it has none. [batchSize][layer] */
export function backwardInputTable({ backwardMs, backwardInputMs }: DeviceTimes): TimeTable {
  return backwardInputMs ?? backwardMs.map((row) => row.map((ms) => ms / 2));
}

/** The one enumeration of what a device's times consist of. */
const shapes: { readonly [Field in keyof DeviceTimes]-?: FieldShape } = {
  forwardMs: 'table',
  backwardMs: 'table',
  backwardInputMs: 'table',
  backwardWeightMs: 'table',
  tangentMs: 'table',
  updateMs: 'row',
  ...overheadShapes,
};

/** Numbers of a row, one of each device or just one. */
type RowMap = (rows: readonly (readonly number[])[]) => readonly number[];

/**
 * One device's times of several: `row` is given the devices' rows of a table (or of updates), or their single numbers
 * as rows of one. Fields that not all devices have are left out.
 */
export function combinedTimes(all: readonly DeviceTimes[], row: RowMap): DeviceTimes {
  const combined: Record<string, unknown> = {};
  for (const [field, shape] of Object.entries(shapes) as [keyof DeviceTimes, FieldShape][]) {
    const values = all.map((times) => times[field]).filter((value) => value !== undefined);
    if (values.length < all.length) continue;
    if (shape === 'number') combined[field] = row((values as number[]).map((value) => [value]))[0];
    else if (shape === 'row') combined[field] = row(values as (readonly number[])[]);
    else {
      const [first = [], ...others] = values as TimeTable[];
      combined[field] = first.map((own, point) => row([own, ...others.map((table) => table[point] ?? [])]));
    }
  }
  return combined as unknown as DeviceTimes;
}

/** The times of a device that takes `factor` times as long for everything. */
export function scaledTimes(times: DeviceTimes, factor: number): DeviceTimes {
  return combinedTimes([times], ([row = []]) => row.map((ms) => ms * factor));
}

/** The tables of a device's times by field, of those that it has. */
export function timeTables(times: DeviceTimes): readonly (readonly [field: keyof DeviceTimes, table: TimeTable])[] {
  return (Object.keys(shapes) as (keyof DeviceTimes)[]).flatMap((field) => {
    const table = shapes[field] === 'table' ? times[field] : undefined;
    return table === undefined ? [] : [[field, table as TimeTable] as const];
  });
}

const gridPerMs = 2 ** 30;

/** A time on the grid of 2^-30 ms on which the simulator's sums are exact. */
export function onGrid(ms: number): number {
  return Math.round(ms * gridPerMs) / gridPerMs;
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
