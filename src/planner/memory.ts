// How many samples fit: eq. 3 turned around. The formula itself is in cluster/memory.ts, where the simulator finds it
// too.

import { type StageDemand, stageMemoryBytes } from '../cluster/memory.ts';

/**
 * The largest share, at most `limit`, with which a device of `memoryBytes` can hold such a stage: bs_d of Asteroid's
 * Algorithm 1. 0 also when not even the weights fit. All is computed again that can be and has to.
 */
export function largestShare(demand: StageDemand, memoryBytes: number, limit: number): number {
  const freeBytes = memoryBytes - stageMemoryBytes(demand, 0);
  if (freeBytes < 0) return 0;
  const perSampleBytes = demand.inFlight * (demand.leastSavedBytes ?? demand.savedBytes);
  return perSampleBytes === 0 ? limit : Math.min(limit, Math.floor(freeBytes / perSampleBytes));
}

/** Bytes of such a stage with all computed again that can be. */
export function leastMemoryBytes(demand: StageDemand, samples: number): number {
  return stageMemoryBytes({ ...demand, savedBytes: demand.leastSavedBytes ?? demand.savedBytes }, samples);
}
