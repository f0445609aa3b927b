// Room for the copies that a loss is survived with (replication.ts). Planners see one stage at a time, and copies are
// of other stages: so a plan is looked for with as much less memory as the copies of the plan before would take, until
// both fit. Where rounds overlap copies count whole. Where they follow each other only what is beyond the slack counts:
// with few weights they fit into what a process is counted for and does not take, and plans are as if there were none.

import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import { hasRuntimeBuffers, type OptimizerState } from '../../cluster/memory.ts';
import { InputError } from '../../errors.ts';
import { scheduleOf } from '../../schedule/schedules.ts';
import type { Steps } from '../steps.ts';
import { copyMiB } from './replication.ts';

/** Searches with less memory each; two are usually enough. */
const mostSearches = 4;

export interface CopiesOptions {
  readonly profile: Profile;
  readonly optimizerState: OptimizerState;
  /** Whether the run makes copies. */
  readonly isCopied: boolean;
}

/**
 * MiB of copies that plans do not count where rounds follow each other: a process is counted with 160 MiB
 * (cluster/memory.ts) and takes 120 to 135.
 */
const slackMiB = 30;

/** By device: MiB of a plan's copies that count. Profiles that know nothing of the runtime's buffers count none. */
function countedMiB(plan: Plan, { profile, optimizerState, isCopied }: CopiesOptions): ReadonlyMap<string, number> {
  if (plan.virtualWorkers !== undefined || !isCopied) return new Map();
  const { isStream, gradients } = scheduleOf(plan.schedule);
  if (gradients === 'tangent') return new Map();
  if (!isStream && !hasRuntimeBuffers(profile)) return new Map();
  const copies = [...copyMiB(plan, profile, optimizerState)];
  return new Map(isStream ? copies : copies.map(([name, mib]) => [name, Math.max(0, mib - slackMiB)] as const));
}

/** The plan with what copies take in its prediction. */
export function withCopies(plan: Plan, options: CopiesOptions): Plan {
  const copies = countedMiB(plan, options);
  if (copies.size === 0) return plan;
  const { peakMemoryMiB, ...predicted } = plan.predicted;
  const withThem = Object.entries(peakMemoryMiB).map(([name, mib]) => [name, mib + (copies.get(name) ?? 0)] as const);
  return { ...plan, predicted: { ...predicted, peakMemoryMiB: Object.fromEntries(withThem) } };
}

/** The plan predicted with its copies. Throws InputError if there is no room for them. */
export function fittingWithCopies(plan: Plan, cluster: Cluster, options: CopiesOptions): Plan {
  const found = withCopies(plan, options);
  checkCopies(found, cluster, options);
  return found;
}

/** Throws InputError if a device of the cluster cannot hold its stage and the copies. `plan`: of `withCopies`. */
function checkCopies(plan: Plan, cluster: Cluster, options: CopiesOptions): void {
  const [worst] = overloads(plan, cluster);
  if (worst === undefined) return;
  const { name, memoryMiB, neededMiB } = worst;
  const copiesMiB = countedMiB(plan, options).get(name) ?? 0;
  if (copiesMiB === 0) return;
  throw new InputError(
    `Nothing fits: device "${name}" has ${Math.floor(memoryMiB)} MiB for training, and its part takes ` +
      `${Math.ceil(neededMiB)}, ${Math.ceil(copiesMiB)} of them for copies in case a device is lost; give it more ` +
      'memory, or --replicate-every 0 for no copies.',
  );
}

/** The plan of `find`, predicted with its copies, for which there is room. Throws InputError. */
export function* planWithCopies(
  cluster: Cluster,
  options: CopiesOptions,
  find: (cluster: Cluster) => Steps<Plan>,
): Steps<Plan> {
  const lessMiB = new Map<string, number>();
  let refusal: InputError | undefined;
  for (let search = 1; ; search++) {
    let found: Plan;
    try {
      found = withCopies(yield* find(withLess(cluster, lessMiB)), options);
    } catch (error) {
      throw refusal !== undefined && error instanceof InputError ? refusal : error;
    }
    const copies = countedMiB(found, options);
    if (overloads(found, cluster).every(({ name }) => (copies.get(name) ?? 0) === 0)) return found;
    try {
      checkCopies(found, cluster, options);
    } catch (error) {
      if (search === mostSearches || !(error instanceof InputError)) throw error;
      refusal = error;
    }
    for (const [name, mib] of copies) lessMiB.set(name, Math.max(lessMiB.get(name) ?? 0, mib));
  }
}

function withLess(cluster: Cluster, lessMiB: ReadonlyMap<string, number>): Cluster {
  if (lessMiB.size === 0) return cluster;
  const devices = cluster.devices.map((device) => {
    // Of a device that is left with nothing the planner would say that its memory is no memory.
    const memoryMiB = Math.max(1, device.memoryMiB - (lessMiB.get(device.name) ?? 0));
    return { ...device, memoryMiB };
  });
  return { ...cluster, devices };
}

/** Devices that a plan asks more memory of than they have, the worst first. */
function overloads(
  { predicted }: Plan,
  { devices }: Cluster,
): { name: string; memoryMiB: number; neededMiB: number }[] {
  return devices
    .map(({ name, memoryMiB }) => ({ name, memoryMiB, neededMiB: predicted.peakMemoryMiB[name] ?? 0 }))
    .filter(({ memoryMiB, neededMiB }) => neededMiB > memoryMiB * (1 + 1e-9))
    .sort((a, b) => b.neededMiB - b.memoryMiB - (a.neededMiB - a.memoryMiB));
}
