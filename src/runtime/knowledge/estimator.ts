// Corrects a profile by what devices report of their rounds under a plan: how fast the engine computes, and what wakes,
// transfers and AllReduces cost the main thread (docs/cost-model.md). FTPipeHD, section III-D, estimates capacities in
// the same way, from the time of a stage and that of its layers in the profile. Pure.

import type { Cluster, DeviceTimes, PlanLayout, Profile } from '../../cluster/cluster.ts';
import { correctedOverhead, type OverheadFactors, overheadOf, processorMs } from '../../cluster/overhead.ts';
import { deviceTimes, scaledTimes } from '../../cluster/times.ts';
import { program } from '../../schedule/generate.ts';
import { type DeviceProgram, isLastPiece, isPass } from '../../schedule/program.ts';
import { simulate } from '../../simulator/simulate.ts';
import { framesOfRound, trafficByDevice } from '../../simulator/traffic.ts';
import { median, quartiles } from '../../statistics.ts';
import type { RoundResult } from '../protocol/messages.ts';

export interface Refreshed {
  /** With the times of devices in `factors` under their own names; the same object where there are none. */
  readonly profile: Profile;
  /** How many times as long as the profile says a device computes: those that it is corrected by. */
  readonly factors: Readonly<Record<string, number>>;
}

/** What a device reports of a round's computing. */
export type DeviceRound = Pick<RoundResult, 'busyMs' | 'processMs' | 'linksMs' | 'reducingMs'>;

/** Fewer rounds say nothing. */
export const leastRoundCount = 5;
/** With smaller differences the profile stands: rounds are not more alike. */
const usualDifference = 0.05;

/**
 * The standard error of what a profile says, of its value, and of a pass's wake where it says nothing: trials of bytes
 * are steadier than those of wakes (bench/results/2026-11-27-reducing.md).
 */
const spreads = { wake: 0.5, transfer: 0.3, reduce: 0.5, unknownWakeMs: 0.5 };

/**
 * `rounds`: by device, what it reported of its rounds under this plan. The profile is corrected where three quarters of
 * the rounds say so, by their median. Devices without samples, and names that the plan does not have, are left out.
 * `difference`: the fraction up to which a device may be off without a correction.
 */
export function refreshProfile(
  profile: Profile,
  plan: PlanLayout,
  cluster: Cluster,
  rounds: Readonly<Record<string, readonly DeviceRound[]>>,
  difference: number = usualDifference,
): Refreshed {
  const predictions = predictedWork(profile, plan, cluster);
  const factors: Record<string, number> = {};
  const devices: Record<string, DeviceTimes> = {};
  for (const device of cluster.devices) {
    const predicted = predictions.get(device.name);
    const own = rounds[device.name] ?? [];
    if (predicted === undefined || predicted.computeMs === 0 || own.length < leastRoundCount) continue;
    const { engine, wake, transfer, reduce, unknownWakeMs } = correction(reportOf(own), predicted, difference);
    if ([engine, wake, transfer, reduce ?? 1].every((factor) => factor === 1) && unknownWakeMs === 0) continue;
    const known = deviceTimes(profile, device);
    factors[device.name] = engine;
    devices[device.name] = {
      ...scaledTimes(known, engine),
      ...correctedOverhead(known, { wake, transfer, reduce }, unknownWakeMs),
    };
  }
  const isSame = Object.keys(factors).length === 0;
  return { profile: isSame ? profile : { ...profile, devices: { ...profile.devices, ...devices } }, factors };
}

/** What the profile says of a device's round. */
interface PredictedWork {
  readonly computeMs: number;
  /** Of the main thread: for passes and frames, for bytes between stages, and for AllReduces. */
  readonly wakesMs: number;
  readonly transferMs: number;
  readonly reduceMs: number;
  readonly passCount: number;
}

function predictedWork(profile: Profile, plan: PlanLayout, cluster: Cluster): ReadonlyMap<string, PredictedWork> {
  const steps = program(plan);
  const { devices: predicted } = simulate(steps, plan, profile, cluster, { events: false });
  const traffic = trafficByDevice(steps, profile, cluster);
  const programs = new Map(steps.devices.map((each) => [each.device, each]));
  const used = cluster.devices.filter(({ name }) => programs.has(name));
  return new Map(
    used.map((device) => {
      const { busyMs = 0, handlingMs = 0, reducingMs: reduceMs = 0 } = predicted[device.name] ?? {};
      const own = traffic.get(device.name);
      const passCount = passesOf(programs.get(device.name));
      const frames = own === undefined ? 0 : framesOfRound(own, plan.microBatchCount);
      const overhead = overheadOf(deviceTimes(profile, device));
      const wakesMs = Math.min(handlingMs, processorMs(overhead, { bytes: 0, frames, passes: passCount }));
      const transferMs = handlingMs - wakesMs;
      return [device.name, { computeMs: busyMs - handlingMs, wakesMs, transferMs, reduceMs, passCount }];
    }),
  );
}

/** What devices of a plan report of a whole round, by the profile. */
export function wholeRounds(profile: Profile, plan: PlanLayout, cluster: Cluster): ReadonlyMap<string, DeviceRound> {
  return new Map(
    [...predictedWork(profile, plan, cluster)].map(([device, { computeMs, wakesMs, transferMs, reduceMs }]) => {
      const linksMs = wakesMs + transferMs + reduceMs;
      return [device, { busyMs: computeMs, processMs: computeMs + linksMs, linksMs, reducingMs: reduceMs }] as const;
    }),
  );
}

/** Passes of a device in a round: one that is cut counts once. */
function passesOf(device: DeviceProgram | undefined): number {
  return device?.instructions.filter((step) => isPass(step) && isLastPiece(step, device)).length ?? 0;
}

/** What rounds report, by how much of the process is known. Milliseconds, one value per round. */
type Report =
  /** The engine alone. Whether bytes slowed it down is unknown: a device with idle time handles them then. */
  | { readonly kind: 'engine'; readonly busyMs: readonly number[] }
  /** All the process's computing. */
  | { readonly kind: 'process'; readonly processMs: readonly number[] }
  /** Engine and main thread separately, and the AllReduces' part of the latter if it is known. */
  | {
      readonly kind: 'threads';
      readonly computeMs: readonly number[];
      readonly mainMs: readonly number[];
      readonly reduceMs: readonly number[] | undefined;
    };

function reportOf(rounds: readonly DeviceRound[]): Report {
  const processMs = known(rounds.map((round) => round.processMs));
  if (processMs === undefined) return { kind: 'engine', busyMs: rounds.map((round) => round.busyMs) };
  const mainMs = known(rounds.map((round) => round.linksMs));
  if (mainMs === undefined) return { kind: 'process', processMs };
  const computeMs = processMs.map((ms, round) => ms - (mainMs[round] as number));
  return { kind: 'threads', computeMs, mainMs, reduceMs: known(rounds.map((round) => round.reducingMs)) };
}

/** Undefined if any value is missing. */
function known(values: readonly (number | undefined)[]): readonly number[] | undefined {
  return values.every((value) => value !== undefined) ? values : undefined;
}

/** How many times as much as predicted a device pays. */
interface Correction extends OverheadFactors {
  readonly engine: number;
  /** What a pass costs where the profile does not know it; 0 elsewhere. */
  readonly unknownWakeMs: number;
}

function correction(report: Report, predicted: PredictedWork, difference: number): Correction {
  const { computeMs, wakesMs, transferMs, reduceMs } = predicted;
  const wholeMs = computeMs + wakesMs + transferMs + reduceMs;
  switch (report.kind) {
    case 'engine':
      return uniform(rate(report.busyMs, [computeMs, wholeMs], difference));
    case 'process':
      return uniform(rate(report.processMs, [wholeMs, wholeMs], difference));
    case 'threads': {
      const engine = rate(report.computeMs, [computeMs, computeMs], difference);
      return { engine, ...mainThreadFactors(report, predicted, difference * wholeMs) };
    }
  }
}

function uniform(factor: number): Correction {
  return { engine: factor, wake: factor, transfer: factor, reduce: factor, unknownWakeMs: 0 };
}

/**
 * What three quarters of the values say of times between these two, by the median; 1 where they do not differ by more
 * than `difference`.
 */
function rate(values: readonly number[], [leastMs, mostMs]: readonly [number, number], difference: number): number {
  const [low, middle, high] = quartiles(values);
  if (low < (1 + difference) * mostMs && high > (1 - difference) * leastMs) return 1;
  return middle / (middle > mostMs ? mostMs : leastMs);
}

/** Of the main thread. `usualMs`: by how much rounds differ anyway. */
function mainThreadFactors(
  report: Extract<Report, { kind: 'threads' }>,
  { wakesMs, transferMs, reduceMs, passCount }: PredictedWork,
  usualMs: number,
): Omit<Correction, 'engine'> {
  const wakeSpreadMs = wakesMs > 0 ? spreads.wake * wakesMs : spreads.unknownWakeMs * passCount;
  const links: readonly Part[] = [
    { ms: wakesMs, spreadMs: wakeSpreadMs },
    { ms: transferMs, spreadMs: spreads.transfer * transferMs },
  ];
  const all: readonly Part[] = [...links, { ms: reduceMs, spreadMs: spreads.reduce * reduceMs }];
  const isUsual = (foundMs: number, parts: readonly Part[]): boolean => Math.abs(foundMs - total(parts)) <= usualMs;
  const unchanged: Omit<Correction, 'engine'> = { wake: 1, transfer: 1, reduce: undefined, unknownWakeMs: 0 };
  const factors = ([wakes = 0, transfers = 0, reduces = 0]: readonly number[]): Omit<Correction, 'engine'> => ({
    wake: wakesMs === 0 ? 1 : wakes / wakesMs,
    transfer: transferMs === 0 ? 1 : transfers / transferMs,
    reduce: reduceMs === 0 ? undefined : reduces / reduceMs,
    unknownWakeMs: wakesMs === 0 && passCount > 0 ? wakes / passCount : 0,
  });
  // Of a small AllReduce most is not its bytes but its frames and the thread's waking up: it says nothing of bytes.
  if (report.reduceMs === undefined || reduceMs === 0 || reduceMs < total(links)) {
    const mainMs = median(report.mainMs);
    return isUsual(mainMs, all) ? unchanged : factors(leastSquares(all, mainMs));
  }
  const { mainMs, reduceMs: reducedMs } = report;
  const [restMs, reduced] = [median(mainMs.map((ms, round) => ms - (reducedMs[round] as number))), median(reducedMs)];
  if (isUsual(restMs, links) && Math.abs(reduced - reduceMs) <= usualMs) return unchanged;
  return factors([...leastSquares(links, restMs), reduced]);
}

/** A part of a sum, with its standard error. Milliseconds. */
export interface Part {
  readonly ms: number;
  readonly spreadMs: number;
}

/**
 * The parts that add up to what was measured and are nearest to what was known, each difference in its standard error:
 * one step of recursive least squares with the known values as prior. None is below 0. What one sum cannot separate
 * stays in proportion to how uncertain it was; sums of other layouts separate it later.
 */
export function leastSquares(parts: readonly Part[], sumMs: number): readonly number[] {
  let found = parts.map(({ ms }) => ms);
  for (const _ of parts) {
    const error = sumMs - found.reduce((sum, ms) => sum + ms, 0);
    const weights = parts.map(({ spreadMs }, index) => (error > 0 || (found[index] ?? 0) > 0 ? spreadMs ** 2 : 0));
    const weight = weights.reduce((sum, each) => sum + each, 0);
    if (weight === 0 || error === 0) break;
    found = found.map((ms, index) => Math.max(0, ms + (error * (weights[index] ?? 0)) / weight));
  }
  return found;
}

function total(parts: readonly Part[]): number {
  return parts.reduce((sum, { ms }) => sum + ms, 0);
}
