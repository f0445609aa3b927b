// Devices of a lab with the same quota are the same device: what they measure differs by noise, of which a planner
// would make the most.

import { defined } from '../../dist/assert.js';
import type { DeviceTimes, Profile } from '../../dist/cluster/cluster.js';

/** A profile in which devices with as many cores have the mean of their times. */
export function pooledProfile(
  profile: Profile,
  devices: readonly { readonly name: string; readonly cores: number }[],
): Profile {
  const timesOf = (name: string): DeviceTimes => defined(profile.devices[name], name);
  const pooled = devices.map(({ name, cores }) => {
    const alike = devices.filter((other) => other.cores === cores).map((other) => timesOf(other.name));
    return [name, meanOf(alike) as DeviceTimes] as const;
  });
  return { ...profile, devices: { ...profile.devices, ...Object.fromEntries(pooled) } };
}

/** The mean of numbers, or of values of one form number by number; of what only some have, of those. */
function meanOf(values: readonly unknown[]): unknown {
  const [first] = values;
  if (typeof first === 'number') return values.reduce((sum: number, each) => sum + Number(each), 0) / values.length;
  if (Array.isArray(first)) return first.map((_, index) => meanOf(values.map((each) => (each as unknown[])[index])));
  if (typeof first !== 'object' || first === null) return first;
  const keys = [...new Set(values.flatMap((each) => Object.keys(each as object)))];
  const known = (key: string): readonly unknown[] =>
    values.map((each) => (each as Readonly<Record<string, unknown>>)[key]).filter((each) => each !== undefined);
  return Object.fromEntries(keys.map((key) => [key, meanOf(known(key))]));
}
