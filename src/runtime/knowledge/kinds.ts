// Devices of one kind measure themselves alike, but for noise: what else their processors did for a moment, and where a
// cache line fell. Together they know their times better than each alone, and a plan that finds them equal is the
// simpler one.

import type { DeviceTimes } from '../../cluster/cluster.ts';
import { knowsLinks, withLinkCosts } from '../../cluster/overhead.ts';
import { combinedTimes } from '../../cluster/times.ts';
import { mean, median, middle } from '../../statistics.ts';
import type { DeviceFacts } from '../coordinator/options.ts';
import type { LinkMeasurement } from '../protocol/messages.ts';

/** A device's own measurement. */
export interface Measured {
  readonly name: string;
  readonly facts: DeviceFacts;
  readonly times: DeviceTimes;
}

/**
 * A device whose whole model takes so many times as long as its kind's median, or so many times less, is slower or
 * faster, not unlucky.
 */
const leastDifference = 1.35;

/**
 * By device, its times: those of one kind share an object that holds the middle of what they measured, layer by layer;
 * all others have their own.
 */
export function timesByKind(devices: readonly Measured[]): ReadonlyMap<string, DeviceTimes> {
  const found = new Map(devices.map(({ name, times }) => [name, times]));
  const kinds = new Map<string, Measured[]>();
  for (const device of devices) {
    const kind = kindOf(device);
    kinds.set(kind, [...(kinds.get(kind) ?? []), device]);
  }
  for (const alike of kinds.values()) {
    const usualMs = middle(alike.map(totalMs));
    const equal = alike.filter((device) => {
      const ratio = totalMs(device) / usualMs;
      return ratio < leastDifference && ratio > 1 / leastDifference;
    });
    if (equal.length < 2) continue;
    const times = together(equal.map((device) => device.times));
    for (const { name } of equal) found.set(name, times);
  }
  return found;
}

/**
 * The same for devices that nothing is known to tell apart. Where the processor is not known, the device is of no kind
 * but its own.
 */
function kindOf({ name, facts }: Measured): string {
  const { cpuModel, cores, cpuQuotaCores, engine } = facts;
  return cpuModel === undefined
    ? `the device ${name}`
    : JSON.stringify([cpuModel, cores, cpuQuotaCores?.toFixed(3), engine]);
}

/** Forward and backward of the whole model at the largest size. */
function totalMs({ times: { forwardMs, backwardMs } }: Measured): number {
  return sum([...(forwardMs.at(-1) ?? []), ...(backwardMs.at(-1) ?? [])]);
}

/**
 * The middle of each entry, and of each row's sum: noise makes times longer, seldom shorter, and the middles of many
 * entries add up to less than devices take. Fields that not all have are left out.
 */
function together(all: readonly DeviceTimes[]): DeviceTimes {
  return combinedTimes(all, (rows) => {
    const middles = (rows[0] ?? []).map((_, layer) => middle(rows.map((row) => row[layer] ?? 0)));
    const [expected, found] = [middle(rows.map(sum)), sum(middles)];
    return found === 0 ? middles : middles.map((ms) => (ms * expected) / found);
  });
}

function note(into: Map<string, number[]>, device: string, ms: number | undefined): void {
  if (ms !== undefined) into.set(device, [...(into.get(device) ?? []), ms]);
}

/**
 * By device: what its links cost it, in milliseconds of computing a MiB. The least of what was measured: code that
 * moves bytes becomes fast only while it does.
 */
export function handlingByDevice(
  measurements: ReadonlyMap<string, readonly LinkMeasurement[]>,
): ReadonlyMap<string, number> {
  const sending = new Map<string, number[]>();
  const receiving = new Map<string, number[]>();
  for (const [device, links] of measurements) {
    for (const { peer, sendingMsPerMiB, receivingMsPerMiB } of links) {
      note(sending, device, sendingMsPerMiB);
      note(receiving, peer, receivingMsPerMiB);
    }
  }
  // What is handed on was received as much again: gradients go the way of activations.
  const costs = [...new Set([...sending.keys(), ...receiving.keys()])].map((device): [string, number] => {
    const ways = [sending.get(device), receiving.get(device)]
      .filter((values) => values !== undefined)
      .map((values) => Math.min(...values));
    return [device, mean(ways)];
  });
  return new Map(costs);
}

/**
 * By their times, what a MiB of an AllReduce costs devices that share them: of the links between these, which
 * processors of one kind work at both ends of and hold each other up: the median, since all of it is paid. Devices that
 * share their times with nobody are not in it.
 */
export function reducingByTimes(
  measurements: ReadonlyMap<string, readonly LinkMeasurement[]>,
  times: ReadonlyMap<string, DeviceTimes>,
): ReadonlyMap<DeviceTimes, number> {
  const links = new Map<DeviceTimes, LinkMeasurement[]>();
  for (const [device, own] of measurements) {
    const of = times.get(device);
    const inside = own.filter(({ peer }) => times.get(peer) === of);
    if (of !== undefined && inside.length > 0) links.set(of, [...(links.get(of) ?? []), ...inside]);
  }
  const costs = [...links].map(([of, inside]): [DeviceTimes, number] => {
    const ways = (['sendingMsPerMiB', 'receivingMsPerMiB'] as const).map((key) =>
      inside.map(({ [key]: ms }) => ms).filter((ms) => ms !== undefined),
    );
    return [of, mean(ways.filter((values) => values.length > 0).map((values) => median(values)))];
  });
  return new Map(costs.filter(([, ms]) => !Number.isNaN(ms)));
}

/**
 * Processors at both ends that together work for this part of the time in which a link is measured are what holds it
 * up: under quotas they do by turns.
 */
const cpuBoundShare = 0.7;
/**
 * Processors do not work so evenly: where at least half of the links, and so many, carried as much as the fastest, up
 * to this part, something else says how much.
 */
const [alike, leastAlike] = [0.97, 3];
/** Milliseconds a MiB at so many Mbps, and Mbps at so many milliseconds a MiB. */
const inverse = (value: number): number => (2 ** 20 * 8) / (value * 1000);

/** Whether processors at its ends held a link up while it was measured. */
function isCpuBound({ bandwidthMbps, sendingMsPerMiB = 0, receivingMsPerMiB = 0 }: LinkMeasurement): boolean {
  return (sendingMsPerMiB + receivingMsPerMiB) / inverse(bandwidthMbps) >= cpuBoundShare;
}

/** Which of the links no processor held up. */
function freeLinks(links: readonly LinkMeasurement[]): (link: LinkMeasurement) => boolean {
  const evenMbps = alike * Math.max(...links.map(({ bandwidthMbps }) => bandwidthMbps));
  const evenCount = links.filter(({ bandwidthMbps }) => bandwidthMbps >= evenMbps).length;
  const isEven = evenCount >= Math.max(leastAlike, links.length / 2);
  return (link) => !isCpuBound(link) || (isEven && link.bandwidthMbps >= evenMbps);
}

/**
 * What links carry by themselves, in Mbps. Where a processor at its ends held a link up, one short measurement says
 * little of it: it is taken for as fast as those processors usually are, which are counted beside it, but for no faster
 * than the fastest of either end's links that none held up. Links that carried the same are none of these, however hard
 * processors worked. `costs`: see handlingByDevice.
 */
export function wireMbps(
  measurements: ReadonlyMap<string, readonly LinkMeasurement[]>,
  costs: ReadonlyMap<string, number>,
): (device: string, link: LinkMeasurement) => number {
  const isFree = freeLinks([...measurements.values()].flat());
  const fastest = new Map<string, number>();
  for (const [device, links] of measurements) {
    for (const link of links.filter(isFree))
      for (const end of [device, link.peer]) fastest.set(end, Math.max(fastest.get(end) ?? 0, link.bandwidthMbps));
  }
  return (device, link) => {
    const { peer, bandwidthMbps } = link;
    const usualMs = Math.max(costs.get(device) ?? 0, costs.get(peer) ?? 0);
    if (isFree(link) || usualMs === 0) return bandwidthMbps;
    const known = [device, peer].map((end) => fastest.get(end) ?? Number.POSITIVE_INFINITY);
    return Math.max(bandwidthMbps, Math.min(inverse(usualMs), ...known));
  };
}

/**
 * The times with what links cost, but for those that say it already: training corrected them. Devices that share an
 * object share the middle of their costs. `costs`: see handlingByDevice; `reducing`: see reducingByTimes.
 */
export function withHandling(
  times: ReadonlyMap<string, DeviceTimes>,
  costs: ReadonlyMap<string, number>,
  reducing: ReadonlyMap<DeviceTimes, number>,
): ReadonlyMap<string, DeviceTimes> {
  const sharers = new Map<DeviceTimes, number[]>();
  for (const [device, of] of times) {
    const perMiB = knowsLinks(of) ? undefined : costs.get(device);
    if (perMiB !== undefined) sharers.set(of, [...(sharers.get(of) ?? []), perMiB]);
  }
  const found = new Map(
    [...sharers].map(([of, perMiB]) => [
      of,
      withLinkCosts(of, { transferMsPerMiB: middle(perMiB), reduceMsPerMiB: reducing.get(of) }),
    ]),
  );
  return new Map([...times].map(([device, of]) => [device, found.get(of) ?? of]));
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
