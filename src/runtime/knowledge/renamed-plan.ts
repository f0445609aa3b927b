// A plan whose work is done by other devices, one for one.

import { defined } from '../../assert.ts';
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

/** The devices of a plan, each once. */
export function devicesOf({ stages }: Pick<Plan, 'stages'>): readonly string[] {
  return [...new Set(stages.flatMap((stage) => stage.devices))];
}

/** The plan with devices that are there in the places of those that are not; undefined where too few are there. */
export function withPresent(plan: Plan, present: readonly string[]): Plan | undefined {
  const named = devicesOf(plan);
  const gone = named.filter((device) => !present.includes(device));
  const others = present.filter((device) => !named.includes(device));
  if (gone.length > others.length) return undefined;
  return gone.length === 0
    ? plan
    : withNames(plan, new Map(gone.map((device, index) => [device, defined(others[index], device)])));
}
