// One device measures its links, one after the other.

import { RunError } from '../../errors.ts';
import { median } from '../../statistics.ts';
import type { LinkMeasurement } from '../protocol/messages.ts';

/**
 * A link of less than this part of the middle one of the others may have been held up by something else: an AllReduce
 * is planned with the slowest of its links. Two measurements that differ by less say the same.
 */
const doubtful = 0.97;
/**
 * Measurements of a link at most. A processor that a link keeps busy, and code that runs for the first time, need some.
 */
const mostTries = 4;

/**
 * Measures the links to `peers`, and those again that are slower than the others, or the only one, until two
 * measurements say the same: the fastest counts. A peer whose link is lost is left out: whoever has to know hears of
 * that by itself.
 */
export async function measureLinks(
  peers: readonly string[],
  measure: (peer: string) => Promise<LinkMeasurement>,
): Promise<LinkMeasurement[]> {
  const found = new Map<string, LinkMeasurement>();
  const settled = new Set<string>();
  const measureOne = async (peer: string): Promise<void> => {
    try {
      const link = await measure(peer);
      const before = found.get(peer);
      if (before !== undefined && isNear(before.bandwidthMbps, link.bandwidthMbps)) settled.add(peer);
      if ((before?.bandwidthMbps ?? 0) < link.bandwidthMbps) found.set(peer, link);
    } catch (error) {
      if (!(error instanceof RunError)) throw error;
      settled.add(peer);
    }
  };
  for (const peer of peers) await measureOne(peer);
  for (let tries = 1; tries < mostTries; tries++) {
    for (const { peer, bandwidthMbps } of [...found.values()]) {
      const others = [...found.values()].filter((link) => link.peer !== peer).map((link) => link.bandwidthMbps);
      const isDoubtful = others.length === 0 || bandwidthMbps < doubtful * median(others);
      if (isDoubtful && !settled.has(peer)) await measureOne(peer);
    }
  }
  return [...found.values()];
}

function isNear(a: number, b: number): boolean {
  return Math.min(a, b) >= doubtful * Math.max(a, b);
}
