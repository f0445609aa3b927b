// How many samples fit: eq. 3 solved for the share. The formula itself is in cluster/memory.ts, which the simulator
// uses, too.

import { type StageDemand, stageMemoryBytes } from '../cluster/memory.ts';

/**
 * The largest share, at most `limit`, with which a device of `memoryBytes` can hold a stage: bs_d of Asteroid's
 * Algorithm 1. 0 also if not even the weights fit. Recomputes as much as necessary and possible.
 */
export function largestShare(demand: StageDemand, memoryBytes: number, limit: number): number {
  const freeBytes = memoryBytes - stageMemoryBytes(demand, 0);
  if (freeBytes < 0) return 0;
  const { inFlight, workingBytes = 0, leastSavedBytes = demand.savedBytes } = demand;
  const perSampleBytes = inFlight * leastSavedBytes + workingBytes;
  return perSampleBytes === 0 ? limit : Math.min(limit, Math.floor(freeBytes / perSampleBytes));
}

/** Bytes of a stage that recomputes everything it can. */
export function leastMemoryBytes(demand: StageDemand, samples: number): number {
  return stageMemoryBytes({ ...demand, savedBytes: demand.leastSavedBytes ?? demand.savedBytes }, samples);
}
