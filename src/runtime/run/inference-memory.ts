// What devices hold in a run that only infers, of plans that were made without asking: those of the user, and those
// for which nothing was measured.

import type { Cluster, Plan } from '../../cluster/cluster.ts';
import {
  type HeldStageDemand,
  heldStage,
  layerSessionBytes,
  leastStageBytes,
  movedBytes,
} from '../../cluster/inference-memory.ts';
import { bytesInMiB } from '../../cluster/memory.ts';
import { InputError } from '../../errors.ts';
import { cutBefore, cutBytes, type LayerSequence, parameterBytes } from '../../graph/layers.ts';

/** What a device's stage needs. */
type Demand = Pick<HeldStageDemand, 'weightBytes' | 'sessionBytes' | 'moved'> & { readonly device: string };

function demands({ stages }: Pick<Plan, 'stages'>, sequence: LayerSequence): readonly Demand[] {
  const cuts = Array.from({ length: sequence.layers.length + 1 }, (_, cut) => cutBytes(cutBefore(sequence, cut)));
  return stages.flatMap(({ layers, devices, samples }) => {
    const own = sequence.layers.slice(...layers);
    const weightBytes = own.reduce((sum, layer) => sum + parameterBytes(sequence, layer), 0);
    return devices.map((device, index) => ({
      ...{ device, weightBytes },
      sessionBytes: own.length * layerSessionBytes,
      moved: movedBytes(cuts, layers, samples[index] ?? 0),
    }));
  });
}

/** By device, what its stage takes at most where it has enough memory. */
export function plannedInferenceMiB(
  plan: Pick<Plan, 'stages'>,
  sequence: LayerSequence,
  sizeCount: number,
): Readonly<Record<string, number>> {
  return Object.fromEntries(
    demands(plan, sequence).map(({ device, ...demand }) => [
      device,
      heldStage({ ...demand, memoryBytes: undefined, sizeCount }).bytes / bytesInMiB,
    ]),
  );
}

/** Throws InputError where a device has too little memory for its stage, though its weights lay in a file. */
export function checkInferenceMemory(plan: Plan, sequence: LayerSequence, { devices }: Cluster): void {
  for (const { device, weightBytes, ...demand } of demands(plan, sequence)) {
    const haveMiB = devices.find(({ name }) => name === device)?.memoryMiB ?? 0;
    const needMiB = leastStageBytes(demand, weightBytes) / bytesInMiB;
    if (needMiB > haveMiB)
      throw new InputError(
        `${device} would need at least ${Math.ceil(needMiB)} MiB for its part of the plan, and has ` +
          `${Math.floor(haveMiB)} MiB: add devices or memory, or take planner best.`,
      );
  }
}
