// How often each of a device's links is measured, and which measurement counts.

import { RunError } from '../../errors.ts';
import { median } from '../../statistics.ts';
import type { LinkMeasurement } from '../protocol/messages.ts';

/**
 * A link slower than this fraction of the median of the others is measured again: something else may have held it up,
 * and an AllReduce is planned with the slowest of its links. Two measurements that differ by less agree.
 */
const doubtful = 0.97;
/** The most measurements of a link. The first may be slow: the processor is busy, or code runs for the first time. */
export const usualTries = 4;

/**
 * Measures the links to `peers` one after the other. A link that is slower than the others, or the only one, is
 * measured again until two measurements agree; the fastest counts. A peer whose link is lost is left out: the link
 * itself reports that.
 */
export async function measureLinks(
  peers: readonly string[],
  measure: (peer: string) => Promise<LinkMeasurement>,
  mostTries: number = usualTries,
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
