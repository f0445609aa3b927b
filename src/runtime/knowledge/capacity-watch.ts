// What FTPipeHD's central node knows of the workers (§III-D): its own profile, and by worker the capacity that its
// batches have shown.

import { defined } from '../../assert.ts';
import type { Plan, Profile } from '../../cluster/cluster.ts';
import { deviceTimes } from '../../cluster/times.ts';
import {
  type Capacities,
  type CentralNode,
  measuredCapacities,
  profileByCapacity,
} from '../../planner/replan/capacities.ts';
import { mean } from '../../statistics.ts';
import type { RoundResult } from '../protocol/messages.ts';

export class CapacityWatch {
  #central: CentralNode | undefined;
  #capacities: Capacities = {};
  /** By worker: what its batches took since the layout began, or since capacities were last estimated. */
  #busyMs: Record<string, number[]> = {};

  /** The central node. Undefined: nothing has been profiled. */
  get central(): CentralNode | undefined {
    return this.#central;
  }

  /** As last estimated; empty before. */
  get capacities(): Capacities {
    return this.#capacities;
  }

  /**
   * The profile that the first plan is made from: the first device is the central node, and all are as fast as it is.
   */
  begin(profile: Profile, devices: readonly string[]): Profile {
    const name = defined(devices[0], 'a device');
    this.#central ??= { name, times: deviceTimes(profile, { name, memoryMiB: 0 }) };
    return profileByCapacity(profile, this.#central, devices, this.#capacities);
  }

  /** A new layout begins: what batches took before is of other layers. */
  layoutBegins(): void {
    this.#busyMs = {};
  }

  /** Notes what devices took for a batch. */
  add(results: Readonly<Record<string, RoundResult>>): void {
    for (const [device, { busyMs }] of Object.entries(results)) {
      this.#busyMs[device] ??= [];
      this.#busyMs[device].push(busyMs);
    }
  }

  /** Estimates the capacities of the workers that have reported batches of this layout; returns those of all. */
  estimate(plan: Plan, profile: Profile): Capacities {
    const { central } = this;
    if (central === undefined) return this.#capacities;
    const means = Object.entries(this.#busyMs).map(([device, ms]) => [device, mean(ms)] as const);
    const found = measuredCapacities(plan, profile, { central, batchMs: Object.fromEntries(means) });
    this.#capacities = { ...this.#capacities, ...found };
    this.#busyMs = {};
    return this.#capacities;
  }
}
