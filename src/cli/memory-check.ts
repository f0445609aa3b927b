// Refuses a given plan that asks more memory of a device than the cluster's file gives it.

import type { Cluster } from '../cluster/cluster.ts';
import { InputError } from '../errors.ts';

/** `neededMiB`: by device. `plan`: where the plan is from, such as a path. Throws InputError, which names the worst. */
export function refuseOverload(neededMiB: Readonly<Record<string, number>>, { devices }: Cluster, plan: string): void {
  const [worst, ...others] = devices
    .map(({ name, memoryMiB }) => ({ name, memoryMiB, needed: neededMiB[name] ?? 0 }))
    .filter(({ memoryMiB, needed }) => needed > memoryMiB * (1 + 1e-9))
    .sort((a, b) => b.needed - b.memoryMiB - (a.needed - a.memoryMiB));
  if (worst === undefined) return;
  const more = others.length === 0 ? '' : ` (${others.length} more lack memory, too)`;
  throw new InputError(
    `${plan} does not fit: device "${worst.name}" has ${Math.floor(worst.memoryMiB)} MiB, and its part takes ` +
      `${Math.ceil(worst.needed)}${more}; raise its memoryMiB, or take a plan of asteroid plan for this cluster.`,
  );
}
