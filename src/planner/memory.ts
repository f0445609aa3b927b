// How many samples fit: eq. 3 turned around. The formula itself is in cluster/memory.ts, where the simulator finds it too.

import type { OptimizerState } from '../cluster/memory.ts';
import { demandBytes, type StageDemand } from './problem.ts';

/**
 * The largest share, at most `limit`, with which a device of `memoryBytes` can hold such a stage: bs_d of Asteroid's Algorithm 1. 0 also
 * when not even the weights fit.
 */
export function largestShare(demand: StageDemand, memoryBytes: number, limit: number, optimizerState: OptimizerState): number {
  const free = memoryBytes - demandBytes(demand, 0, optimizerState);
  if (free < 0) return 0;
  const perSample = demand.inFlight * demand.savedBytes;
  return perSample === 0 ? limit : Math.min(limit, Math.floor(free / perSample));
}
