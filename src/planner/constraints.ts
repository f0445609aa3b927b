// A user's constraints on a plan: excluded devices, and layers pinned to devices.

import type { Cluster, Profile } from '../cluster/cluster.ts';
import { InputError } from '../errors.ts';

/** A layer, by index or name, and a device that must compute it. */
export interface Pin {
  readonly layer: number | string;
  readonly device: string;
}

export interface Constraints {
  readonly pins?: readonly Pin[];
  readonly exclude?: readonly string[];
}

/**
 * The constraints as places and layer indices. Throws InputError for unknown names and for constraints that contradict
 * each other.
 */
export function settleConstraints(
  { pins = [], exclude = [] }: Constraints,
  profile: Profile,
  cluster: Cluster,
): { readonly excluded: readonly number[]; readonly pins: ReadonlyMap<number, readonly number[]> } {
  const placeOf = (name: string): number => {
    const place = cluster.devices.findIndex((device) => device.name === name);
    if (place === -1) {
      const names = cluster.devices.map((device) => device.name);
      throw new InputError(
        `The cluster has no device "${name}"; use one of ` +
          `${names.slice(0, 6).join(', ')}${names.length > 6 ? ', …' : ''}.`,
      );
    }
    return place;
  };
  const excluded = exclude.map(placeOf);
  if (new Set(excluded).size === cluster.devices.length)
    throw new InputError('Every device is excluded; leave at least one for the plan.');
  const settled = new Map<number, number[]>();
  for (const { layer, device } of pins) {
    const place = placeOf(device);
    if (excluded.includes(place))
      throw new InputError(
        `Device "${device}" is excluded and has layer ${layer} pinned to it; choose one of the two.`,
      );
    const index = layerOf(layer, profile);
    const places = settled.get(index) ?? [];
    if (!places.includes(place)) settled.set(index, [...places, place]);
  }
  checkOrder(settled, cluster);
  return { excluded, pins: settled };
}

function layerOf(layer: number | string, profile: Profile): number {
  const count = profile.layers.length;
  const named = profile.layers.findIndex(({ name }) => name === layer);
  if (named !== -1) return named;
  const index = typeof layer === 'number' ? layer : /^\d+$/.test(layer) ? Number(layer) : -1;
  if (Number.isInteger(index) && index >= 0 && index < count) return index;
  throw new InputError(`The model has no layer "${layer}"; give an index from 0 to ${count - 1}, or a layer's name.`);
}

/**
 * A stage's layers are contiguous and each device is in one stage, so no layer pinned to other devices may stand
 * between two layers pinned to one device.
 */
function checkOrder(pins: ReadonlyMap<number, readonly number[]>, cluster: Cluster): void {
  const sorted = [...pins].sort(([a], [b]) => a - b);
  const last = new Map<number, number>();
  for (const [position, [layer, places]] of sorted.entries()) {
    for (const place of places) {
      const earlier = last.get(place);
      const [before, group] = earlier === undefined ? [layer, places] : (sorted[position - 1] ?? [layer, places]);
      const isSame = group.length === places.length && group.every((other) => places.includes(other));
      if (earlier !== undefined && (earlier !== position - 1 || !isSame)) {
        const name = cluster.devices[place]?.name;
        throw new InputError(
          `Device "${name}" has layer ${layer} pinned to it, and an earlier one that other pins (layer ` +
            `${before}) part from it; pin layers that follow each other, with the same devices.`,
        );
      }
      last.set(place, position);
    }
  }
}
