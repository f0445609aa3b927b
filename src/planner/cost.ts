// Asteroid's cost model (§3.3, eq. 4–8) for a given plan, as the paper states it. The search (asteroid.ts) evaluates
// the same latency incrementally in constant time; a test compares the two. Notation: M micro-batches, P stages, S = 2P
// − 1 steps, of which the even ones execute and the odd ones communicate; E_f, E_b times of a step for one micro-batch;
// T_w, T_e, T_a the three phases of a step.

import type { Cluster, LinkSpeed, PlanLayout, Profile, StagePlan } from '../cluster/cluster.ts';
import { withoutBackward } from '../cluster/forward-only.ts';
import { type LinkTable, links, slowestInGroup } from '../cluster/links.ts';
import { layerSums } from '../cluster/memory.ts';
import { overheadOf, processorMs } from '../cluster/overhead.ts';
import { deviceTimes, layerTimes } from '../cluster/times.ts';
import { effectiveInFlight } from '../schedule/pace.ts';
import { scheduleOf } from '../schedule/schedules.ts';

/** One step of the pipeline, execution or communication. */
export interface Step {
  /** E_f. */
  readonly forwardMs: number;
  /** E_b. */
  readonly backwardMs: number;
  /** T_a; 0 for communication and for a single device. */
  readonly allReduceMs: number;
}

/**
 * The index of the dominant step: the one with the most total time after alignment, M(E_f + E_b)(s) + Σ_{i<s}(E_f +
 * E_b)(i), and so with the fewest bubbles (eq. 11's rule).
 */
export function dominantStep(steps: readonly Step[], microBatchCount: number): number {
  let found = 0;
  let most = Number.NEGATIVE_INFINITY;
  let before = 0;
  for (const [index, step] of steps.entries()) {
    const each = step.forwardMs + step.backwardMs;
    const aligned = microBatchCount * each + before;
    if (aligned > most) [found, most] = [index, aligned];
    before += each;
  }
  return found;
}

/** The HPP-Round latency, max over the steps of T_w + T_e + T_a (eq. 4, with eq. 5 and 6). */
export function roundLatencyMs(steps: readonly Step[], microBatchCount: number): number {
  const dominant = dominantStep(steps, microBatchCount);
  const each = steps.map((step) => step.forwardMs + step.backwardMs);
  const sum = (from: number, end: number): number => each.slice(from, end).reduce((total, ms) => total + ms, 0);
  let latest = 0;
  let waitingMs = 0;
  for (const [index, step] of steps.entries()) {
    const shiftMs = index < dominant ? sum(index, dominant) : -sum(dominant, index);
    const executionMs = microBatchCount * (each[dominant] ?? 0) + shiftMs;
    latest = Math.max(latest, waitingMs + executionMs + step.allReduceMs);
    waitingMs += step.forwardMs;
  }
  return latest;
}

/** T_a of eq. 5: 2(|G| − 1)·Σw / (|G| · min bandwidth). `group` holds places in the cluster; 0 for a single device. */
export function allReduceMs(table: LinkTable, group: readonly number[], weightBytes: number): number {
  return group.length < 2 ? 0 : ringMs(group.length, slowestInGroup(table, group).bandwidthMbps, weightBytes);
}

/** T_a of eq. 5 for a group whose slowest bandwidth is known. */
export function ringMs(deviceCount: number, slowestMbps: number, weightBytes: number): number {
  return deviceCount < 2 ? 0 : (2 * (deviceCount - 1) * weightBytes * 8) / (deviceCount * slowestMbps * 1000);
}

/** One side of a border between stages: devices in order with their shares of a micro-batch. */
export interface Shares {
  /** Places in the cluster. */
  readonly devices: readonly number[];
  readonly samples: readonly number[];
}

/**
 * E_f = E_b of a communication step: the longest of the matched pieces, bytes over bandwidth plus latency; links work
 * in parallel.
 */
export function transferMs(table: LinkTable, from: Shares, to: Shares, bytesPerSample: number): number {
  let longest = 0;
  let [i, j] = [0, 0];
  let fromEnd = from.samples[0] ?? 0;
  let toEnd = to.samples[0] ?? 0;
  let start = 0;
  while (i < from.devices.length && j < to.devices.length) {
    const end = Math.min(fromEnd, toEnd);
    if (end > start) {
      const [a, b] = [from.devices[i] ?? 0, to.devices[j] ?? 0];
      longest = Math.max(longest, table.occupancyMs(a, b, (end - start) * bytesPerSample) + table.latencyMs(a, b));
    }
    start = end;
    if (fromEnd === end) fromEnd += from.samples[++i] ?? 0;
    else toEnd += to.samples[++j] ?? 0;
  }
  return longest;
}

/**
 * E_f of the step before the first: sends the samples from `holder` (a place) to the first stage; with one stage, the
 * labels too.
 */
export function feedMs(table: LinkTable, holder: number, first: Shares, bytesPerSample: number): number {
  let longest = 0;
  for (const [index, device] of first.devices.entries()) {
    const bytes = (first.samples[index] ?? 0) * bytesPerSample;
    if (device !== holder && bytes > 0)
      longest = Math.max(longest, table.occupancyMs(holder, device, bytes) + table.latencyMs(holder, device));
  }
  return longest;
}

/** Bytes a sample that feedMs counts. */
export function fedBytes(profile: Profile, stageCount: number): number {
  return profile.inputBytes + (stageCount === 1 ? profile.labelBytes : 0);
}

/**
 * The steps of a plan: execution and communication alternately. If one device holds the data, an additional step in
 * front feeds the first stage (E_b = 0); in the paper every device holds its data.
 */
export function pipelineSteps(plan: PlanLayout, profile: Profile, cluster: Cluster): Step[] {
  const table = links(cluster);
  const sums = layerSums(profile);
  const steps: Step[] = [];
  const { forwardOnlyLayers = 0 } = plan;
  const trained = withoutBackward(profile, forwardOnlyLayers);
  const sharesOf = (stage: StagePlan): Shares => ({
    devices: stage.devices.map((name) => table.deviceIndex(name)),
    samples: stage.samples,
  });
  for (const [index, stage] of plan.stages.entries()) {
    const shares = sharesOf(stage);
    const before = plan.stages[index - 1];
    if (before !== undefined) {
      const ms = transferMs(table, sharesOf(before), shares, profile.layers[stage.layers[0] - 1]?.outputBytes ?? 0);
      steps.push({ forwardMs: ms, backwardMs: stage.layers[0] > forwardOnlyLayers ? ms : 0, allReduceMs: 0 });
    } else if (cluster.dataDevice !== undefined) {
      const ms = feedMs(table, table.deviceIndex(cluster.dataDevice), shares, fedBytes(profile, plan.stages.length));
      steps.push({ forwardMs: ms, backwardMs: 0, allReduceMs: 0 });
    }
    const isStep = index === plan.stages.length - 1 && isStepped(plan);
    steps.push(
      executionStep(stage, shares, {
        profile: trained,
        cluster,
        table,
        weightBytes: sums.weightBytes(...stage.layers),
        isStep,
      }),
    );
  }
  return steps;
}

interface StageContext {
  readonly profile: Profile;
  readonly cluster: Cluster;
  readonly table: LinkTable;
  readonly weightBytes: number;
  /** Whether forward and backward of a micro-batch run as one step. */
  readonly isStep: boolean;
}

/** Whether the last stage runs each backward right after its forward. */
function isStepped(plan: PlanLayout): boolean {
  const { stages } = plan;
  const { overlapsAllReduce, splitsBackward } = scheduleOf(plan.schedule);
  if (overlapsAllReduce || (splitsBackward && stages.length > 1)) return false;
  return effectiveInFlight(plan, stages.length - 1) === 1;
}

/** Bytes of a sample that a stage receives and sends: the same forward and backward. */
export function passedBytes({ layers }: Profile, [first, end]: readonly [number, number]): number {
  const inBytes = first === 0 ? 0 : (layers[first - 1]?.outputBytes ?? 0);
  const outBytes = end === layers.length ? 0 : (layers[end - 1]?.outputBytes ?? 0);
  return inBytes + outBytes;
}

/**
 * Frames of a micro-batch that a stage of one device between two others receives and sends, forward and backward.
 * Inputs and labels are frames, too.
 */
export function passedFrames(
  { layers }: Profile,
  [first, end]: readonly [number, number],
): { readonly forward: number; readonly backward: number } {
  const [isFirst, isLast] = [first === 0, end === layers.length];
  const backward = (isFirst ? 0 : 1) + (isLast ? 0 : 1);
  return { forward: backward + (isFirst ? 1 : 0) + (isLast ? 1 : 0), backward };
}

/**
 * Eq. 8: the slowest device's forward and the slowest device's backward, plus the processor's cost of bytes, which the
 * paper leaves out.
 */
function executionStep(
  stage: StagePlan,
  shares: Shares,
  { profile, cluster, table, weightBytes, isStep }: StageContext,
): Step {
  const frames = passedFrames(profile, stage.layers);
  let forwardMs = 0;
  let backwardMs = 0;
  for (const [index, place] of shares.devices.entries()) {
    const device = cluster.devices[place];
    if (device === undefined) continue;
    const measured = deviceTimes(profile, device);
    const times = layerTimes(measured, profile.batchSizes, isStep);
    const share = stage.samples[index] ?? 0;
    const bytes = share * passedBytes(profile, stage.layers);
    const besidesMs = (frameCount: number): number =>
      processorMs(overheadOf(measured), { bytes, frames: frameCount, passes: 1 });
    forwardMs = Math.max(forwardMs, times.forwardMs(...stage.layers, share) + besidesMs(frames.forward));
    backwardMs = Math.max(backwardMs, times.backwardMs(...stage.layers, share) + besidesMs(frames.backward));
  }
  return { forwardMs, backwardMs, allReduceMs: allReduceMs(table, shares.devices, weightBytes) };
}

/** A link that no link of the cluster exceeds in bandwidth or undercuts in latency. */
export function fastestLink({ links }: Cluster): LinkSpeed {
  let { bandwidthMbps, latencyMs = 0 } = links.default;
  for (const pair of links.pairs ?? []) {
    bandwidthMbps = Math.max(bandwidthMbps, pair.bandwidthMbps);
    latencyMs = Math.min(latencyMs, pair.latencyMs ?? 0);
  }
  return { bandwidthMbps, latencyMs };
}
