// What computing activations again costs and saves, as planning sees it: a device that keeps only a part of what its
// layers save for the backward pass runs that part of what can be computed again once more. Linear between keeping
// everything and keeping the least: the engine's choices (autodiff/recompute.ts) form a convex front, so that it takes
// no longer than this says.

import type { DeviceTimes, Profile } from './cluster.ts';
import { type StageDemand, stageMemoryBytes } from './memory.ts';
import { prefixSums, rangeOf } from './times.ts';

/** Sums over layer ranges, per sample. */
export interface KeptSums {
  /** Kept where nothing is computed again. */
  mostBytes(first: number, end: number): number;
  /** Kept where all that can be is computed again. */
  leastBytes(first: number, end: number): number;
}

/** Prefix sums of a profile's layers. */
export function keptSums({ layers }: Pick<Profile, 'layers'>): KeptSums {
  const most = prefixSums(layers.map(({ savedBytes }) => savedBytes));
  const least = prefixSums(
    layers.map(({ savedBytes, recomputed }) => Math.min(savedBytes, recomputed?.savedBytes ?? savedBytes)),
  );
  return {
    mostBytes: (first, end) => rangeOf(most, first, end),
    leastBytes: (first, end) => rangeOf(least, first, end),
  };
}

/** Which part of what can be computed again is, where a device keeps `keptBytes` a sample of these layers: 0 to 1. */
export function recomputeFraction(sums: KeptSums, first: number, end: number, keptBytes: number): number {
  const [most, least] = [sums.mostBytes(first, end), sums.leastBytes(first, end)];
  return keptBytes >= most ? 0 : (most - Math.max(keptBytes, least)) / (most - least);
}

/** Milliseconds by layer of computing all again that can be: [batchSize][layer]. */
export function recomputeTable(
  { layers }: Pick<Profile, 'layers'>,
  { forwardMs }: Pick<DeviceTimes, 'forwardMs'>,
): readonly (readonly number[])[] {
  const shares = layers.map(({ flops, recomputed }) =>
    recomputed === undefined ? 0 : flops > 0 ? recomputed.flops / flops : 1,
  );
  return forwardMs.map((row) => row.map((ms, layer) => ms * (shares[layer] ?? 0)));
}

/** Bytes a sample that a device with such a share keeps for its backward pass. */
export function keptBytes(demand: StageDemand, memoryBytes: number, samples: number): number {
  const { savedBytes, leastSavedBytes = savedBytes, inFlight } = demand;
  if (leastSavedBytes === savedBytes || samples === 0) return savedBytes;
  const room = Math.floor((memoryBytes - stageMemoryBytes(demand, 0)) / (inFlight * samples));
  return Math.min(savedBytes, Math.max(leastSavedBytes, room));
}
