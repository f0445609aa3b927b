// Whether devices have become slower or faster than their profile says, from the rounds that they report. Pure. The caller asks at a round boundary
// with what it has heard since the plan began, and plans anew with the refreshed profile if that gains.

import type { Cluster, DeviceTimes, Plan, Profile } from '../cluster/cluster.ts';
import { deviceTimes, scaledTimes } from '../cluster/times.ts';
import { program } from '../schedule/generate.ts';
import { simulate } from '../simulator/simulate.ts';

export interface Refreshed {
  /** With the times of devices that drifted under their own names; the same object where none did. */
  readonly profile: Profile;
  /** How many times as long as the profile says a device computes: those only for which that matters. */
  readonly drift: Readonly<Record<string, number>>;
}

/** The median of the last rounds counts; fewer say nothing. */
const roundCount = 8;
const leastRoundCount = 5;
/** Between these the profile stands: predictions are off by some percent anyhow, and planning anew costs time. */
const [slower, faster] = [1.25, 0.8];

/**
 * `busyMs`: by device, the milliseconds that it computed in each round under this plan (RoundResult.busyMs), in order. Devices without samples, and
 * names that the plan does not have, are left out.
 */
export function refreshProfile(
  profile: Profile,
  plan: Plan,
  cluster: Cluster,
  busyMs: Readonly<Record<string, readonly number[]>>,
): Refreshed {
  const { devices: predicted } = simulate(program(plan), plan, profile, cluster, { events: false });
  const drift: Record<string, number> = {};
  const devices: Record<string, DeviceTimes> = {};
  for (const device of cluster.devices) {
    const expectedMs = predicted[device.name]?.busyMs ?? 0;
    const last = (busyMs[device.name] ?? []).slice(-roundCount);
    if (expectedMs === 0 || last.length < leastRoundCount) continue;
    const factor = median(last) / expectedMs;
    if (factor > faster && factor < slower) continue;
    drift[device.name] = factor;
    devices[device.name] = scaledTimes(deviceTimes(profile, device), factor);
  }
  const isSame = Object.keys(drift).length === 0;
  return { profile: isSame ? profile : { ...profile, devices: { ...profile.devices, ...devices } }, drift };
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] as number;
}
