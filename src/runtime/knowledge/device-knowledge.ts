// What is known about a run's devices: the facts that they reported on joining, the links and profiles that they
// measured, and what training has corrected since. Makes the planner's documents of it: a Cluster and a Profile.

import { defined } from '../../assert.ts';
import type { Cluster, DeviceTimes, LayerProfile, Profile } from '../../cluster/cluster.ts';
import { bufferBytes, cutBytes, parameterBytes } from '../../graph/layers.ts';
import { filterBytes, trainingMiB, withRuntimeBytes } from '../device/memory-need.ts';
import type { DeviceFacts } from '../protocol/device-facts.ts';
import type { LinkMeasurement, ToCoordinator } from '../protocol/messages.ts';
import { timesByClass } from './device-classes.ts';
import { reduceCostByTimes, transferCostByDevice, wireMbps, withTransferCosts } from './link-costs.ts';
import { type LoweredBudget, MemoryBudgets } from './memory-budgets.ts';
import type { PlanningOptions } from './planning-options.ts';

/** What a device has for training at least: a plan that does not fit can then say what it lacks. */
const leastMiB = 1;

export class DeviceKnowledge {
  readonly budgets: MemoryBudgets = new MemoryBudgets();
  readonly #options: Pick<PlanningOptions, 'subject' | 'machine' | 'allowedMiB'>;
  /** A cluster with links as training has found them. */
  readonly #correctLinks: (cluster: Cluster) => Cluster;
  readonly #facts = new Map<string, DeviceFacts>();
  readonly #measurements = new Map<string, readonly LinkMeasurement[]>();
  readonly #profiles = new Map<string, ToCoordinator['profiled']>();
  /** Devices whose times were corrected by what they took in training. */
  readonly #corrected = new Set<string>();

  constructor(
    options: Pick<PlanningOptions, 'subject' | 'machine' | 'allowedMiB'>,
    correctLinks: (cluster: Cluster) => Cluster,
  ) {
    this.#options = options;
    this.#correctLinks = correctLinks;
  }

  /** Returns how what plans count on of the device's memory was lowered, if it was. */
  joined(device: string, facts: DeviceFacts): LoweredBudget | undefined {
    this.#facts.set(device, facts);
    return this.budgets.joined(device, facts);
  }

  measured(device: string, links: readonly LinkMeasurement[]): void {
    this.#measurements.set(device, links);
  }

  profiled(device: string, profile: ToCoordinator['profiled']): void {
    this.#profiles.set(device, profile);
    this.#corrected.delete(device);
  }

  /** Training has shown other times of a device. False, with no effect, without times or a profile of it. */
  correct(device: string, times: DeviceTimes | undefined): boolean {
    const before = this.#profiles.get(device);
    if (times === undefined || before === undefined) return false;
    this.#profiles.set(device, { ...before, times });
    this.#corrected.add(device);
    return true;
  }

  get profiledDevices(): readonly string[] {
    return [...this.#profiles.keys()];
  }

  isProfiled(devices: readonly string[]): boolean {
    return devices.every((device) => this.#profiles.has(device));
  }

  /** What plans count on of a device's memory; devices of one machine share it. */
  memoryMiB(device: string): number {
    return this.budgets.withinMiB(device, defined(this.#facts.get(device), device).memoryMiB);
  }

  /** Bytes of a layer's weights and statistics. */
  layerBytes(layer: number): number {
    const { sequence } = this.#options.subject;
    const found = sequence.layers[layer];
    return found === undefined ? 0 : parameterBytes(sequence, found) + bufferBytes(sequence, found);
  }

  /** The cluster of these devices, as they have measured it and training has corrected it. */
  cluster(devices: readonly string[]): Cluster {
    const machines = devices.map((name) => defined(this.#facts.get(name), name).machine);
    const carriedMbps = wireMbps(this.#measurements, transferCostByDevice(this.#measurements));
    const pairs = devices.flatMap((from) =>
      (this.#measurements.get(from) ?? [])
        .filter(({ peer }) => devices.includes(peer))
        .map((link) => ({
          between: [from, link.peer] as const,
          bandwidthMbps: carriedMbps(from, link),
          latencyMs: link.latencyMs,
        })),
    );
    const slowest = pairs.reduce(
      (least, pair) => (pair.bandwidthMbps < least.bandwidthMbps ? pair : least),
      pairs[0] ?? { bandwidthMbps: 1000, latencyMs: 0 },
    );
    return this.#correctLinks({
      devices: devices.map((name, index) => {
        const shareCount = machines.filter((machine) => machine === machines[index]).length;
        const { memoryMiB, machineMemoryMiB = memoryMiB, engine } = defined(this.#facts.get(name), name);
        const ownMiB = trainingMiB(Math.floor(Math.min(memoryMiB, machineMemoryMiB / shareCount)), engine);
        const allowedMiB = this.#options.allowedMiB?.(name) ?? Number.POSITIVE_INFINITY;
        return { name, memoryMiB: Math.min(allowedMiB, this.budgets.withinMiB(name, Math.max(leastMiB, ownMiB))) };
      }),
      links: { default: { bandwidthMbps: slowest.bandwidthMbps, latencyMs: slowest.latencyMs }, pairs },
    });
  }

  #times(devices: readonly string[]): ReadonlyMap<string, DeviceTimes> {
    const measured = devices.map((name) => ({
      name,
      facts: defined(this.#facts.get(name), name),
      times: defined(this.#profiles.get(name), name).times,
    }));
    const alike = timesByClass(measured.filter(({ name }) => !this.#corrected.has(name)));
    const times = new Map(measured.map(({ name, times: own }) => [name, alike.get(name) ?? own]));
    return withTransferCosts(
      times,
      transferCostByDevice(this.#measurements),
      reduceCostByTimes(this.#measurements, times),
    );
  }

  /** The profile of these devices, all of which have measured. */
  profile(devices: readonly string[]): Profile {
    const { machine } = this.#options;
    const { modelName, sequence, label, training } = this.#options.subject;
    const { layers } = defined(this.#profiles.get(defined(devices[0], 'a device')), 'a profile');
    return {
      model: modelName,
      inputBytes: cutBytes(sequence.inputs),
      labelBytes: cutBytes([label]),
      layers: (layers as readonly LayerProfile[]).map((layer, index) => {
        const filters = filterBytes(sequence, defined(sequence.layers[index], layer.name));
        return withRuntimeBytes(layer, filters, training);
      }),
      batchSizes: machine.batchSizesToProfile,
      devices: Object.fromEntries(this.#times(devices)),
    };
  }
}
