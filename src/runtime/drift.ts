// Whether devices and links have become slower or faster than measured, from the rounds that devices report. The caller asks at a round boundary, and plans
// anew with what was found if that gains.

import type { Clock } from '../clock.ts';
import type { Cluster, DeviceTimes, Plan, Profile } from '../cluster/cluster.ts';
import { deviceTimes, scaledTimes } from '../cluster/times.ts';
import { program } from '../schedule/generate.ts';
import { simulate } from '../simulator/simulate.ts';
import { quartiles } from '../statistics.ts';
import { type LinkChange, LinkWatch } from './link-watch.ts';
import type { RoundResult } from './messages.ts';

export interface Refreshed {
  /** With the times of devices in `factors` under their own names; the same object where there are none. */
  readonly profile: Profile;
  /** How many times as long as the profile says a device computes: those that it is corrected by. */
  readonly factors: Readonly<Record<string, number>>;
  /** Of `factors`, those that are told. */
  readonly drift: Readonly<Record<string, number>>;
}

/** What a look at the rounds of a layout found. */
export interface Seen extends Refreshed {
  readonly links: readonly LinkChange[];
  /** Devices or links are so much otherwise than planned with that another plan may be better. */
  readonly mayGain: boolean;
}

/** Fewer rounds say nothing. */
const leastRoundCount = 5;
/** Between these a device is as it was, more or less, to whoever reads of it. */
const [slower, faster] = [1.25, 0.8];
/** Between these the profile stands: rounds are not more alike. */
const [longer, shorter] = [1.05, 0.95];
/** Where factors are less far apart nobody plans anew: it costs time, and the same plan is the best where all devices are slower alike. */
const leastSpread = 1.1;
/** The first rounds of a layout: code is compiled, memory is taken. They say nothing of those after them. */
const settlingMs = 10_000;
/** What lasts less is not worth another layout. Whoever finds that another may be better waits twice as long before looking again: a device that others use comes and goes. */
const [shortestWindowMs, longestWindowMs] = [10_000, 300_000];

/** The rounds of a layout, from one look at them to the next. */
export class DriftWatch {
  readonly links: LinkWatch;
  readonly #clock: Clock;
  #busyMs: Record<string, number[]> = {};
  #sinceMs: number;
  #windowMs = shortestWindowMs;
  #isSettling = true;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.links = new LinkWatch(clock);
    this.#sinceMs = clock.now();
  }

  /** A new layout begins: what devices took before says nothing of it. */
  begin(): void {
    this.#isSettling = true;
    this.#forget();
  }

  #forget(): void {
    this.#busyMs = {};
    this.links.begin();
    this.#sinceMs = this.#clock.now();
  }

  /** Notes a round. True when there are enough of them for `look`. */
  add(results: Readonly<Record<string, Pick<RoundResult, 'busyMs' | 'linkMbps'>>>): boolean {
    let roundCount = 0;
    for (const [device, { busyMs, linkMbps = {} }] of Object.entries(results)) {
      this.links.add(device, linkMbps);
      this.#busyMs[device] ??= [];
      roundCount = Math.max(roundCount, this.#busyMs[device].push(busyMs));
    }
    const elapsedMs = this.#clock.now() - this.#sinceMs;
    if (roundCount < leastRoundCount || elapsedMs < (this.#isSettling ? settlingMs : this.#windowMs)) return false;
    if (!this.#isSettling) return true;
    this.#isSettling = false;
    this.#forget();
    return false;
  }

  /** What the rounds since the last look, or since the layout has settled, say. `cluster` is as `links` corrected it. */
  look(profile: Profile, plan: Plan, cluster: Cluster): Seen {
    const refreshed = refreshProfile(profile, plan, cluster, this.#busyMs);
    const links = this.links.look(refreshed.profile, plan, cluster);
    const factors = Object.keys(this.#busyMs).map((device) => refreshed.factors[device] ?? 1);
    const isUneven = Math.max(...factors) >= leastSpread * Math.min(...factors);
    const mayGain = isUneven || Object.keys(refreshed.drift).length > 0 || links.length > 0;
    this.#windowMs = mayGain ? Math.min(longestWindowMs, this.#windowMs * 2) : Math.max(shortestWindowMs, this.#windowMs / 2);
    this.#forget();
    return { ...refreshed, links, mayGain };
  }
}

/**
 * `busyMs`: by device, the milliseconds that it computed in each round under this plan (RoundResult.busyMs). The profile is corrected, and a device has drifted,
 * where three quarters of its rounds say so; by their median. Devices without samples, and names that the plan does not have, are left out. (FTPipeHD, section
 * III-D, estimates capacities in this way, from the time of a stage beside that of the same layers in the profile.)
 */
export function refreshProfile(
  profile: Profile,
  plan: Plan,
  cluster: Cluster,
  busyMs: Readonly<Record<string, readonly number[]>>,
): Refreshed {
  const { devices: predicted } = simulate(program(plan), plan, profile, cluster, { events: false });
  const factors: Record<string, number> = {};
  const drift: Record<string, number> = {};
  const devices: Record<string, DeviceTimes> = {};
  for (const device of cluster.devices) {
    const { busyMs: mostMs = 0, handlingMs = 0 } = predicted[device.name] ?? {};
    // A device that has time to spare sends and receives in it, and takes no longer for its computing.
    const leastMs = mostMs - handlingMs;
    const rounds = busyMs[device.name] ?? [];
    if (leastMs === 0 || rounds.length < leastRoundCount) continue;
    const [low, median, high] = quartiles(rounds);
    const isBeyond = (above: number, below: number): boolean => low >= above * mostMs || high <= below * leastMs;
    if (!isBeyond(longer, shorter)) continue;
    const factor = median / (median > mostMs ? mostMs : leastMs);
    factors[device.name] = factor;
    if (isBeyond(slower, faster)) drift[device.name] = factor;
    devices[device.name] = scaledTimes(deviceTimes(profile, device), factor);
  }
  const isSame = Object.keys(factors).length === 0;
  return { profile: isSame ? profile : { ...profile, devices: { ...profile.devices, ...devices } }, factors, drift };
}
