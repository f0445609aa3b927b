// What a planner of the rehearsal finds: any plan that fits, with a prediction.

import type { Cluster, Plan, PlanLayout } from '../cluster/cluster.ts';
import { bytesInMiB, stageMemoryBytes } from '../cluster/memory.ts';
import { InputError } from '../errors.ts';

/** Of one layer of the exact model, as it is profiled. */
export const layerMemory = { weightBytes: 8, savedBytes: 16 } as const;

/** Plans that are tried until one fits devices that are counted on for less than all their memory. */
const maxTryCount = 20;

/** The plan with a prediction of what its devices hold. */
export function predicted(plan: PlanLayout, roundMs: number): Plan {
  const peakMemoryMiB: Record<string, number> = {};
  for (const { layers, devices, samples, inFlight } of plan.stages) {
    const layerCount = layers[1] - layers[0];
    const demand = {
      ...{ weightBytes: layerCount * layerMemory.weightBytes, savedBytes: layerCount * layerMemory.savedBytes },
      ...{ inFlight, optimizerState: 1 as const },
    };
    for (const [index, device] of devices.entries())
      peakMemoryMiB[device] = stageMemoryBytes(demand, samples[index] ?? 0) / bytesInMiB;
  }
  return { ...plan, predicted: { roundMs, samplesPerS: (1000 * plan.batchSize) / roundMs, peakMemoryMiB } };
}

/**
 * One of the plans that `make` makes which fits the devices; where none of some does, one without those that are
 * counted on for less than they have.
 */
export function planWithin({ devices }: Cluster, memoryMiB: number, make: (devices: readonly string[]) => Plan): Plan {
  const isLowered = ({ memoryMiB: ownMiB }: Cluster['devices'][number]): boolean =>
    ownMiB < Math.floor(memoryMiB / devices.length);
  for (let count = 0; count < maxTryCount; count++) {
    const plan = make(devices.map(({ name }) => name));
    if (
      devices.every(
        (device) => !isLowered(device) || (plan.predicted.peakMemoryMiB[device.name] ?? 0) <= device.memoryMiB,
      )
    )
      return plan;
  }
  const others = devices.filter((device) => !isLowered(device));
  if (others.length === 0) throw new InputError('The devices that are left cannot hold the model.');
  return make(others.map(({ name }) => name));
}
