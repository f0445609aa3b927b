// What transfers cost a device's processor, and what a link carries when no processor holds it up, both from
// measurements in which the processors at the two ends took part.

import type { DeviceTimes } from '../../cluster/cluster.ts';
import { knowsLinks, withLinkCosts } from '../../cluster/overhead.ts';
import { mean, median, middle } from '../../statistics.ts';
import type { LinkMeasurement } from '../protocol/messages.ts';

function note(into: Map<string, number[]>, device: string, ms: number | undefined): void {
  if (ms !== undefined) into.set(device, [...(into.get(device) ?? []), ms]);
}

/**
 * By device: what a transferred MiB costs its processor, in milliseconds. The least that was measured: the code that
 * moves bytes becomes fast only while it runs.
 */
export function transferCostByDevice(
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
  // A device sends as many bytes as it receives (gradients go back where activations came from): the mean of both.
  const costs = [...new Set([...sending.keys(), ...receiving.keys()])].map((device): [string, number] => {
    const directions = [sending.get(device), receiving.get(device)]
      .filter((values) => values !== undefined)
      .map((values) => Math.min(...values));
    return [device, mean(directions)];
  });
  return new Map(costs);
}

/**
 * What a MiB of an AllReduce costs the devices that share one `DeviceTimes`, in milliseconds of their processors, by
 * that object: the median over the links between them. The median and not the least, because there the processors at
 * both ends are alike and hold each other up, and all of that is paid. A device that shares its times with no other is
 * missing.
 */
export function reduceCostByTimes(
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
    const directions = (['sendingMsPerMiB', 'receivingMsPerMiB'] as const).map((key) =>
      inside.map(({ [key]: ms }) => ms).filter((ms) => ms !== undefined),
    );
    return [of, mean(directions.filter((values) => values.length > 0).map((values) => median(values)))];
  });
  return new Map(costs.filter(([, ms]) => !Number.isNaN(ms)));
}

/**
 * The processors at both ends hold a link up if together they work for this part of the time in which it is measured
 * (under quotas they work by turns).
 */
const cpuBoundShare = 0.7;
/**
 * If at least half of the links, and at least `leastEvenCount`, carried this part of what the fastest carried, it was
 * not the processors that held them up: processors do not work that evenly.
 */
const evenPart = 0.97;
const leastEvenCount = 3;
/** Milliseconds a MiB at `value` Mbps, and Mbps at `value` milliseconds a MiB. */
const inverse = (value: number): number => (2 ** 20 * 8) / (value * 1000);

/** Whether the processors at its ends held a link up while it was measured. */
function isCpuBound({ bandwidthMbps, sendingMsPerMiB = 0, receivingMsPerMiB = 0 }: LinkMeasurement): boolean {
  return (sendingMsPerMiB + receivingMsPerMiB) / inverse(bandwidthMbps) >= cpuBoundShare;
}

/** Returns whether a link was measured without being held up by a processor. */
function freeLinks(links: readonly LinkMeasurement[]): (link: LinkMeasurement) => boolean {
  const evenMbps = evenPart * Math.max(...links.map(({ bandwidthMbps }) => bandwidthMbps));
  const evenCount = links.filter(({ bandwidthMbps }) => bandwidthMbps >= evenMbps).length;
  const isEven = evenCount >= Math.max(leastEvenCount, links.length / 2);
  return (link) => !isCpuBound(link) || (isEven && link.bandwidthMbps >= evenMbps);
}

/**
 * What links carry by themselves, in Mbps. If a processor held a link up, one short measurement says little about the
 * link: it is assumed to carry what its ends' processors usually manage (their cost is counted separately), but no more
 * than the fastest link of either end that no processor held up. Links that carried the same as most others count as
 * not held up, however hard the processors worked. `costs`: see transferCostByDevice.
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
 * Device times completed with what transfers cost. Times that training has corrected already contain it and stay as
 * they are. Devices that share one `DeviceTimes` get the middle of their costs. `costs`: see transferCostByDevice;
 * `reduceCosts`: see reduceCostByTimes.
 */
export function withTransferCosts(
  times: ReadonlyMap<string, DeviceTimes>,
  costs: ReadonlyMap<string, number>,
  reduceCosts: ReadonlyMap<DeviceTimes, number>,
): ReadonlyMap<string, DeviceTimes> {
  const sharers = new Map<DeviceTimes, number[]>();
  for (const [device, of] of times) {
    const perMiB = knowsLinks(of) ? undefined : costs.get(device);
    if (perMiB !== undefined) sharers.set(of, [...(sharers.get(of) ?? []), perMiB]);
  }
  const found = new Map(
    [...sharers].map(([of, perMiB]) => [
      of,
      withLinkCosts(of, { transferMsPerMiB: middle(perMiB), reduceMsPerMiB: reduceCosts.get(of) }),
    ]),
  );
  return new Map([...times].map(([device, of]) => [device, found.get(of) ?? of]));
}
