// Which speed the link between two devices has. Pairs are symmetric; a pair that the cluster does not list has the default's speed.

import { InputError } from '../errors.ts';
import type { Cluster } from './cluster.ts';

/** Speeds between devices, which are given by their place in `cluster.devices`. */
export interface LinkTable {
  /** Place of the device called `name`; InputError when there is none. */
  deviceIndex(name: string): number;
  bandwidthMbps(from: number, to: number): number;
  latencyMs(from: number, to: number): number;
  /** Time for which `bytes` occupy the link, without latency: bytes · 8 / (Mbps · 1000). */
  occupancyMs(from: number, to: number, bytes: number): number;
}

/** The link table of a cluster. */
export function links(cluster: Cluster): LinkTable {
  const indices = new Map(cluster.devices.map((device, index) => [device.name, index]));
  const count = cluster.devices.length;
  const deviceIndex = (name: string): number => {
    const index = indices.get(name);
    if (index === undefined) throw new InputError(`The cluster has no device "${name}"; name one that it has, or add it to the cluster.`);
    return index;
  };
  const pairs = new Map<number, { readonly bandwidthMbps: number; readonly latencyMs?: number }>();
  for (const pair of cluster.links.pairs ?? []) {
    const [a, b] = [deviceIndex(pair.between[0]), deviceIndex(pair.between[1])];
    pairs.set(a * count + b, pair);
    pairs.set(b * count + a, pair);
  }
  const standard = cluster.links.default;
  const speed = pairs.size === 0 ? () => standard : (from: number, to: number) => pairs.get(from * count + to) ?? standard;
  return {
    deviceIndex,
    bandwidthMbps: (from, to) => speed(from, to).bandwidthMbps,
    latencyMs: (from, to) => speed(from, to).latencyMs ?? 0,
    occupancyMs: (from, to, bytes) => (bytes * 8) / (speed(from, to).bandwidthMbps * 1000),
  };
}

/** The slowest bandwidth and the longest latency among the pairs of a group: what paces a ring (Asteroid, eq. 5). */
export function slowestInGroup(table: LinkTable, group: readonly number[]): { readonly bandwidthMbps: number; readonly latencyMs: number } {
  let bandwidthMbps = Number.POSITIVE_INFINITY;
  let latencyMs = 0;
  for (const [place, a] of group.entries()) {
    for (const b of group.slice(place + 1)) {
      bandwidthMbps = Math.min(bandwidthMbps, table.bandwidthMbps(a, b));
      latencyMs = Math.max(latencyMs, table.latencyMs(a, b));
    }
  }
  return { bandwidthMbps, latencyMs };
}
