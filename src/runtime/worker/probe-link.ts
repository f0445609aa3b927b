// Measures one link: latency, bandwidth, and the computing that its bytes cost both ends.

import { defined } from '../../assert.ts';
import type { Clock } from '../../clock.ts';
import { bytesInMiB } from '../../cluster/memory.ts';
import { type Tensor, wrap } from '../../graph/tensor.ts';
import type { LinkMeasurement } from '../protocol/messages.ts';

/** The arrival of an answer, and the computing that both ends had spent on links by then; undefined: not known. */
export interface Echo {
  readonly atMs: number;
  readonly ownLinkWorkMs: number | undefined;
  readonly peerLinkWorkMs: number | undefined;
}

export type Probe = Omit<LinkMeasurement, 'peer'>;

/** Round trips of small frames, one after the other. */
const tripCount = 15;

/**
 * Bandwidth is measured with pieces of this size, for `rateMs` or up to `pieceLimit` of them (48 MiB). A slow link
 * takes longer: a burst of 64 KiB, as shapers and network cards let through, is then little of what is counted.
 */
const pieceBytes = 2 ** 18;
const pieceLimit = 192;
const rateMs = 300;
const countedPieces = 8;
const longestRateMs = 1_000;
/** Pieces on their way; the window doubles if all of it arrives within `fastMs`. */
const smallestWindow = 4;
const largestWindow = 32;
const fastMs = 60;

/**
 * Measures a link. `echo` sends ballast, if given, and behind it a small frame, and resolves with the answer.
 *
 * Latency is half of the shortest round trip: queues and processors that a quota stops make trips longer, and are not
 * part of the way. Bandwidth is the rate at which pieces arrive. Counting begins with the arrival of a piece, when the
 * burst that a shaper or a buffer takes is over, and ends after `rateMs` and `countedPieces`, `longestRateMs`, or
 * `pieceLimit` pieces.
 */
export async function probeLink(echo: (ballast?: Tensor) => Promise<Echo>, clock: Clock): Promise<Probe> {
  let shortestMs = Number.POSITIVE_INFINITY;
  for (let count = 0; count < tripCount; count++) {
    const sentMs = clock.now();
    const { atMs } = await echo();
    shortestMs = Math.min(shortestMs, atMs - sentMs);
  }
  return { latencyMs: shortestMs / 2, ...(await measureRate(echo)) };
}

/**
 * Keeps a window of pieces on their way, small at first, so that a slow link holds little. When a window arrives fast,
 * it doubles and counting begins again: neither a long way nor processors that quotas stop by turns, which pass one
 * window in each period, then look like a slow link.
 */
async function measureRate(echo: (ballast: Tensor) => Promise<Echo>): Promise<Omit<Probe, 'latencyMs'>> {
  const onTheirWay: Promise<Echo>[] = [];
  const ballast = wrap('uint8', [pieceBytes], new Uint8Array(pieceBytes));
  let [window, sentCount, countedFrom] = [smallestWindow, 0, 1];
  let first: Echo | undefined;
  const arrivalsMs: number[] = [];
  for (let arrivedCount = 1; ; arrivedCount++) {
    while (onTheirWay.length < window && sentCount < pieceLimit) {
      const arrival = echo(ballast);
      arrival.catch(() => {}); // awaited in its turn
      onTheirWay.push(arrival);
      sentCount++;
    }
    const latest = await defined(onTheirWay.shift(), 'a piece on its way');
    if (first === undefined || arrivedCount <= countedFrom) first = latest;
    arrivalsMs.push(latest.atMs);
    const elapsedMs = latest.atMs - first.atMs;
    const count = arrivedCount - countedFrom;
    const isLong = elapsedMs >= (count >= countedPieces ? rateMs : longestRateMs);
    const isOver = arrivedCount === pieceLimit || (isLong && count >= 2);
    if (isOver) return rateBetween(first, latest, count * pieceBytes);
    // From the first of a window to its last: what passes before the first is a pause, or part of the way.
    const windowMs = latest.atMs - (arrivalsMs.at(-window) ?? first.atMs);
    if (count < window || windowMs >= fastMs || window === largestWindow) continue;
    window *= 2;
    countedFrom = arrivedCount + window; // earlier pieces left when the window was small
  }
}

/** Bandwidth, and the computing that a MiB cost, between two arrivals with `bytes` in between. */
function rateBetween(first: Echo, last: Echo, bytes: number): Omit<Probe, 'latencyMs'> {
  const costPerMiB = (from: number | undefined, to: number | undefined): number | undefined =>
    from === undefined || to === undefined ? undefined : Math.max(0, to - from) / (bytes / bytesInMiB);
  const sendingMsPerMiB = costPerMiB(first.ownLinkWorkMs, last.ownLinkWorkMs);
  const receivingMsPerMiB = costPerMiB(first.peerLinkWorkMs, last.peerLinkWorkMs);
  return {
    bandwidthMbps: (bytes * 8) / (Math.max(last.atMs - first.atMs, 1e-3) * 1e3),
    ...(sendingMsPerMiB === undefined ? {} : { sendingMsPerMiB }),
    ...(receivingMsPerMiB === undefined ? {} : { receivingMsPerMiB }),
  };
}
