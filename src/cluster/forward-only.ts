// Leading layers in which nothing is trained: they only run forward, keep nothing, and no gradient comes to them
// (Plan.forwardOnlyLayers).

import type { DeviceTimes, Profile } from './cluster.ts';
import { fusedForwardOnly } from './overhead.ts';

/**
 * How many leading layers a profile says to be frozen: none of their weights is trained, and some are frozen. Never all
 * layers.
 */
export function forwardOnlyCount({ layers }: Pick<Profile, 'layers'>): number {
  const trained = layers.findIndex(({ weightBytes, frozenBytes = 0 }) => weightBytes > frozenBytes);
  const count = trained === -1 ? layers.length - 1 : trained;
  return layers.slice(0, count).some(({ frozenBytes = 0 }) => frozenBytes > 0) ? count : 0;
}

/** The profile as planning sees it: these layers have no backward pass, and keep nothing for one. */
export function withoutBackward(profile: Profile, layerCount: number): Profile {
  if (layerCount === 0) return profile;
  const trainedOnly = (row: readonly number[]): number[] => row.map((ms, layer) => (layer < layerCount ? 0 : ms));
  const devices = Object.entries(profile.devices).map(([name, times]): [string, DeviceTimes] => [
    name,
    {
      ...times,
      backwardMs: times.backwardMs.map(trainedOnly),
      ...fusedForwardOnly(times, layerCount),
      ...(times.backwardInputMs === undefined ? {} : { backwardInputMs: times.backwardInputMs.map(trainedOnly) }),
      ...(times.backwardWeightMs === undefined ? {} : { backwardWeightMs: times.backwardWeightMs.map(trainedOnly) }),
    },
  ]);
  const layers = profile.layers.map((layer, index) => {
    if (index >= layerCount) return layer;
    const { recomputed: _, ...rest } = layer;
    return { ...rest, savedBytes: 0 };
  });
  return { ...profile, layers, devices: Object.fromEntries(devices) };
}
