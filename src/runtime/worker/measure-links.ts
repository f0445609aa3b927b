// One device measures its links, one after the other.

import { RunError } from '../../errors.ts';
import { median } from '../../statistics.ts';
import type { LinkMeasurement } from '../messages.ts';

/** A link of less than this part of the middle one may have been held up by something else: an AllReduce is planned with the slowest of its links. */
const doubtful = 0.97;

/**
 * Measures the links to `peers`, and those again that are slower than the others: the faster of two measurements counts. A peer whose link is lost is left
 * out: whoever has to know hears of that by itself.
 */
export async function measureLinks(
  peers: readonly string[],
  measure: (peer: string) => Promise<LinkMeasurement>,
): Promise<LinkMeasurement[]> {
  const found = new Map<string, LinkMeasurement>();
  const measureOne = async (peer: string): Promise<void> => {
    try {
      const link = await measure(peer);
      if ((found.get(peer)?.bandwidthMbps ?? 0) < link.bandwidthMbps) found.set(peer, link);
    } catch (error) {
      if (!(error instanceof RunError)) throw error;
    }
  };
  for (const peer of peers) await measureOne(peer);
  const speeds = [...found.values()].map(({ bandwidthMbps }) => bandwidthMbps);
  for (const { peer, bandwidthMbps } of [...found.values()]) if (bandwidthMbps < doubtful * median(speeds)) await measureOne(peer);
  return [...found.values()];
}
