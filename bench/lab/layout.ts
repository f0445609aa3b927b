// Plans of a given form for a measured profile: devices in groups, shares by speed, and layers cut so that the slowest
// stage or link is as fast as possible. Not a planner: bandwidth is the cluster's default, latency is left out.

import { defined } from '../../dist/assert.js';
import type { Cluster, PlanLayout, Profile } from '../../dist/cluster/cluster.js';
import { scheduleOf } from '../../dist/schedule/schedules.js';
import { sum } from '../common/numbers.ts';

/** Devices in groups, each of which is a stage. */
export interface Form {
  readonly groups: readonly (readonly string[])[];
  readonly schedule: string;
  /** The first layer of each stage but the first; absent: where the slowest stage or link is fastest. */
  readonly cuts?: readonly number[];
}

export interface Sizes {
  readonly microBatchSize: number;
  readonly microBatchCount: number;
}

/** Milliseconds of layers [first, end) with this many samples. */
type StageTimes = (first: number, end: number, samples: number) => number;

/**
 * Forward and backward of layers on a device, and the bytes that it receives and sends; in a last stage both passes are
 * one graph, with its own times.
 */
function timesOf(profile: Profile, device: string): StageTimes {
  const { forwardMs, backwardMs, stepMs, handlingMsPerMiB = 0 } = defined(profile.devices[device], device);
  const layerCount = profile.layers.length;
  const outputBytes = (layer: number) => profile.layers[layer]?.outputBytes ?? 0;
  const cutBytes = (first: number, end: number) =>
    (first === 0 ? 0 : outputBytes(first - 1)) + (end === layerCount ? 0 : outputBytes(end - 1));
  const inner = forwardMs.map((row, size) =>
    runningSums(row.map((ms, layer) => ms + (backwardMs[size]?.[layer] ?? 0))),
  );
  const last = stepMs === undefined ? inner : stepMs.map(runningSums);
  return (first, end, samples) => {
    if (samples === 0) return 0;
    const sums = end === layerCount ? last : inner;
    const { low, high, fraction } = place(profile.batchSizes, samples);
    const of = (size: number) => defined(sums[size]?.[end], 'a time') - defined(sums[size]?.[first], 'a time');
    const handlingMs = (handlingMsPerMiB * 2 * samples * cutBytes(first, end)) / 2 ** 20;
    return of(low) + fraction * (of(high) - of(low)) + handlingMs;
  };
}

function runningSums(row: readonly number[]): number[] {
  let total = 0;
  return [0, ...row.map((ms) => (total += ms))];
}

/** Between which measured points a share lies; beyond them the last two. */
function place(batchSizes: readonly number[], samples: number): { low: number; high: number; fraction: number } {
  if (batchSizes.length === 1) return { low: 0, high: 0, fraction: 0 };
  let high = batchSizes.findIndex((size) => size >= samples);
  if (high <= 0) high = high === 0 ? 1 : batchSizes.length - 1;
  const [a, b] = [defined(batchSizes[high - 1], 'a batch size'), defined(batchSizes[high], 'a batch size')];
  return { low: high - 1, high, fraction: (samples - a) / (b - a) };
}

/** Whole shares in proportion to speeds, by largest remainders. */
function sharesOf(speeds: readonly number[], total: number): number[] {
  const exact = speeds.map((speed) => (total * speed) / sum(speeds));
  const shares = exact.map(Math.floor);
  const left = total - sum(shares);
  const order = exact.map((value, index) => ({ rest: value - Math.floor(value), index }));
  const favoured = new Set(
    order
      .sort((a, b) => b.rest - a.rest)
      .slice(0, left)
      .map(({ index }) => index),
  );
  return shares.map((share, index) => (favoured.has(index) ? share + 1 : share));
}

/** The plan with these groups of devices as stages. */
export function layoutOf(profile: Profile, cluster: Cluster, form: Form & Sizes): PlanLayout {
  const { groups, schedule, microBatchSize, microBatchCount, cuts } = form;
  const layerCount = profile.layers.length;
  const largest = defined(profile.batchSizes.at(-1), 'a batch size');
  const groupTimes = groups.map((names) => names.map((name) => timesOf(profile, name)));
  const shares = groupTimes.map((times) =>
    sharesOf(
      times.map((time) => 1 / time(0, layerCount, largest)),
      microBatchSize,
    ),
  );
  const stageMs = (stage: number, first: number, end: number) =>
    Math.max(
      ...defined(groupTimes[stage], 'a stage').map((time, index) => time(first, end, shares[stage]?.[index] ?? 0)),
    );
  const sizes = groups.map(({ length }) => length);
  const linkMs = (stage: number, cut: number) => cutMs(profile, cluster, microBatchSize, sizes, stage, cut);
  const borders =
    cuts === undefined ? bestBorders(groups.length, layerCount, { stageMs, linkMs }) : [0, ...cuts, layerCount];
  return {
    planner: 'by hand',
    schedule,
    batchSize: microBatchSize * microBatchCount,
    microBatchSize,
    microBatchCount,
    stages: groups.map((devices, stage) => ({
      layers: [defined(borders[stage], 'a border'), defined(borders[stage + 1], 'a border')],
      devices,
      samples: defined(shares[stage], 'shares'),
      inFlight: scheduleOf(schedule).inFlight(stage, groups.length, microBatchCount),
    })),
  };
}

/** A sender's part of the cut after a stage at most: its group shares the bytes. */
function cutMs(
  profile: Profile,
  cluster: Cluster,
  microBatchSize: number,
  groupSizes: readonly number[],
  stage: number,
  cut: number,
): number {
  if (cut === profile.layers.length) return 0;
  const bytes = defined(profile.layers[cut - 1], 'a layer').outputBytes * microBatchSize;
  const senders = Math.max(groupSizes[stage] ?? 1, groupSizes[stage + 1] ?? 1);
  return (bytes * 8) / (cluster.links.default.bandwidthMbps * 1000) / senders;
}

interface CutCosts {
  stageMs(stage: number, first: number, end: number): number;
  /** Of the cut after a stage. */
  linkMs(stage: number, cut: number): number;
}

/** Cuts that make the slowest stage or link as fast as possible. */
function bestBorders(stageCount: number, layerCount: number, { stageMs, linkMs }: CutCosts): number[] {
  const none = { ms: Number.POSITIVE_INFINITY, first: 0 };
  // best[stage][end]: the least possible maximum with stages 0..stage over layers 0..end, and where the last begins.
  const best = Array.from({ length: stageCount }, () => Array.from({ length: layerCount + 1 }, () => none));
  const bestOf = (stage: number, end: number) => best[stage]?.[end] ?? none;
  for (const [stage, row] of best.entries()) {
    for (let end = stage + 1; end <= layerCount; end++) {
      for (let first = stage; first < end; first++) {
        if (stage === 0 && first > 0) break;
        const before = stage === 0 ? 0 : Math.max(bestOf(stage - 1, first).ms, linkMs(stage - 1, first));
        const ms = Math.max(before, stageMs(stage, first, end));
        if (ms < bestOf(stage, end).ms) row[end] = { ms, first };
      }
    }
  }
  const borders = [layerCount];
  for (let stage = stageCount - 1; stage >= 0; stage--) borders.unshift(bestOf(stage, borders[0] ?? 0).first);
  return borders;
}

/** A plan in a few characters: "nx-1:4+tx2-1:2 [0–3] → nano-1 [3–6], 1f1b, 8 x 10". */
export function formOf({ stages, schedule, microBatchSize, microBatchCount }: PlanLayout): string {
  const drawn = stages.map(({ devices, samples, layers }) => {
    const names = devices.map((name, index) => (devices.length > 1 ? `${name}:${samples[index]}` : name));
    return `${names.join('+')} [${layers.join('–')}]`;
  });
  return `${drawn.join(' → ')}, ${schedule}, ${microBatchCount} x ${microBatchSize}`;
}
