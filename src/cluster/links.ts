// Which speed the link between two devices has. Pairs are symmetric; a pair that the cluster does not list has the
// default's speed.

import { InputError } from '../errors.ts';
import type { Cluster } from './cluster.ts';

/** Speeds between devices, which are given by their place in `cluster.devices`. */
export interface LinkTable {
  /** Place of the device called `name`; InputError when there is none. */
  deviceIndex(name: string): number;
  bandwidthMbps(from: number, to: number): number;
  latencyMs(from: number, to: number): number;
  /** Whether every link is the same. */
  readonly isUniform: boolean;
  /** Time for which `bytes` occupy the link, without latency: bytes · 8 / (Mbps · 1000). */
  occupancyMs(from: number, to: number, bytes: number): number;
}

/** The link table of a cluster. */
export function links(cluster: Cluster): LinkTable {
  const indices = new Map(cluster.devices.map((device, index) => [device.name, index]));
  const count = cluster.devices.length;
  const deviceIndex = (name: string): number => {
    const index = indices.get(name);
    if (index === undefined)
      throw new InputError(`The cluster has no device "${name}"; name one that it has, or add it to the cluster.`);
    return index;
  };
  const pairs = new Map<number, { readonly bandwidthMbps: number; readonly latencyMs?: number }>();
  for (const pair of cluster.links.pairs ?? []) {
    const [a, b] = [deviceIndex(pair.between[0]), deviceIndex(pair.between[1])];
    pairs.set(a * count + b, pair);
    pairs.set(b * count + a, pair);
  }
  const standard = cluster.links.default;
  if (pairs.size === 0) {
    return {
      deviceIndex,
      isUniform: true,
      bandwidthMbps: () => standard.bandwidthMbps,
      latencyMs: () => standard.latencyMs ?? 0,
      occupancyMs: (_from, _to, bytes) => (bytes * 8) / (standard.bandwidthMbps * 1000),
    };
  }
  // As tables: planners ask millions of times.
  const mbps = new Float64Array(count * count).fill(standard.bandwidthMbps);
  const latencies = new Float64Array(count * count).fill(standard.latencyMs ?? 0);
  for (const [key, { bandwidthMbps, latencyMs = 0 }] of pairs) [mbps[key], latencies[key]] = [bandwidthMbps, latencyMs];
  return {
    deviceIndex,
    isUniform: false,
    bandwidthMbps: (from, to) => mbps[from * count + to] as number,
    latencyMs: (from, to) => latencies[from * count + to] as number,
    occupancyMs: (from, to, bytes) => (bytes * 8) / ((mbps[from * count + to] as number) * 1000),
  };
}

/** The slowest bandwidth and the longest latency among the pairs of a group: what paces a ring (Asteroid, eq. 5). */
export function slowestInGroup(
  table: LinkTable,
  group: readonly number[],
): { readonly bandwidthMbps: number; readonly latencyMs: number } {
  if (table.isUniform && group.length > 1)
    return { bandwidthMbps: table.bandwidthMbps(0, 1), latencyMs: table.latencyMs(0, 1) };
  let bandwidthMbps = Number.POSITIVE_INFINITY;
  let latencyMs = 0;
  for (let i = 0; i < group.length; i++) {
    for (let j = i + 1; j < group.length; j++) {
      const [a, b] = [group[i] as number, group[j] as number];
      bandwidthMbps = Math.min(bandwidthMbps, table.bandwidthMbps(a, b));
      latencyMs = Math.max(latencyMs, table.latencyMs(a, b));
    }
  }
  return { bandwidthMbps, latencyMs };
}
