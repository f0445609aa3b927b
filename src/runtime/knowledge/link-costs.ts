// What a device's links cost its processor and what they carry by themselves, from measurements in which processors at
// both ends took part.

import type { DeviceTimes } from '../../cluster/cluster.ts';
import { knowsLinks, withLinkCosts } from '../../cluster/overhead.ts';
import { mean, median, middle } from '../../statistics.ts';
import type { LinkMeasurement } from '../protocol/messages.ts';

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
/** Milliseconds a MiB at `value` Mbps, and Mbps at `value` milliseconds a MiB. */
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
 * little of it: it is taken for as fast as those processors usually are, which are counted separately, but for no faster
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
