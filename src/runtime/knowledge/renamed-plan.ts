// A plan whose work is done by other devices, one for one.

import type { Plan } from '../../cluster/cluster.ts';

/** The plan with devices renamed; devices that `names` lacks keep their names. */
export function withNames(plan: Plan, names: ReadonlyMap<string, string>): Plan {
  const nameOf = (name: string): string => names.get(name) ?? name;
  const held = Object.entries(plan.predicted.peakMemoryMiB).map(
    ([name, memoryMiB]) => [nameOf(name), memoryMiB] as const,
  );
  return {
    ...plan,
    stages: plan.stages.map((stage) => ({ ...stage, devices: stage.devices.map(nameOf) })),
    predicted: { ...plan.predicted, peakMemoryMiB: Object.fromEntries(held) },
  };
}
