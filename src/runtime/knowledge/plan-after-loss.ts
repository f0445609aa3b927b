// The layout that comes in the place of one that lost devices, by the run's recovery policy; and FTPipeHD's layouts by
// capacity, which may come without a loss, too.

import type { Plan, PlanLayout } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import { planInGrains, planInSamples, profileInGrains } from '../../planner/grains.ts';
import { type Capacities, partitionedAgain } from '../../planner/replan/capacities.ts';
import { lightReplan } from '../../planner/replan/light.ts';
import { takeOver } from '../../planner/replan/respipe.ts';
import { fittingWithCopies, withCopies } from '../../planner/replan/room-for-copies.ts';
import { assumedProfile, type ReplanInput } from '../../planner/replan/survivors.ts';
import { program } from '../../schedule/generate.ts';
import { scheduleOf } from '../../schedule/schedules.ts';
import { withLeastStaleness } from '../../schedule/staleness.ts';
import { simulate } from '../../simulator/simulate.ts';
import { optimizerStateCount } from '../protocol/training-spec.ts';
import type { CapacityWatch } from './capacity-watch.ts';
import type { DeviceKnowledge } from './device-knowledge.ts';
import type { PlanningOptions } from './planning-options.ts';
import type { RecoveryPolicy } from './recovery-policies.ts';
import { withNames } from './renamed-plan.ts';

/** What is known when a layout is left. */
export interface LayoutsKnown {
  readonly options: PlanningOptions;
  readonly known: DeviceKnowledge;
  readonly capacities: CapacityWatch;
}

/** The plan, with the copies that the policy wants. */
export function withCopiesOf<Given extends PlanLayout>(plan: Given, { lastCopyTo }: Partial<RecoveryPolicy>): Given {
  return lastCopyTo === undefined ? plan : { ...plan, lastCopyTo };
}

/**
 * A plan close to the one before: spares in the places of lost devices, and the others' work by the recovery policy.
 * `devices` are those that are left, in any order. Throws InputError where they cannot hold it.
 */
export function planAfterLoss(
  layouts: LayoutsKnown,
  devices: readonly string[],
  from: Plan,
  lost: readonly string[],
): Plan {
  const substitutes = substitutesOf(layouts.known, devices, from, lost);
  const substituted = withNames(from, substitutes);
  const left = lost.filter((device) => !substitutes.has(device));
  const found = left.length === 0 ? substituted : withoutLost(layouts, devices, substituted, left);
  return (substitutes.size > 0 ? fasterWithout(layouts, devices, { from, lost, found }) : undefined) ?? found;
}

/**
 * The stream without spares, where it is faster than the one found with some: all wait for the slowest device, and a
 * spare has a whole stage to compile. Undefined where it is not, where that is not known, and where the others cannot
 * hold the model. Synchronous runs take spares as they are.
 */
function fasterWithout(
  layouts: LayoutsKnown,
  devices: readonly string[],
  { from, lost, found }: { readonly from: Plan; readonly lost: readonly string[]; readonly found: Plan },
): Plan | undefined {
  const { options, known } = layouts;
  const { isStream, gradients } = scheduleOf(found.schedule);
  const { grain } = options.subject.training;
  if (!isStream || gradients === 'tangent' || grain !== undefined || !known.isProfiled(devices)) return undefined;
  const [profile, cluster] = [known.profile(devices), known.cluster(devices)];
  try {
    const without = withoutLost(layouts, devices, from, lost);
    const { roundMs } = simulate(program(found), found, profile, cluster, { events: false });
    return without.predicted.roundMs < roundMs ? without : undefined;
  } catch (error) {
    if (error instanceof InputError) return undefined;
    throw error;
  }
}

/**
 * By lost device: a spare that can hold what that one held. Where nothing was predicted, a device that was killed for
 * want of memory takes a place only if nobody else is left.
 */
function substitutesOf(
  known: DeviceKnowledge,
  devices: readonly string[],
  from: Plan,
  gone: readonly string[],
): ReadonlyMap<string, string> {
  const used = new Set(workersOf(from));
  const spares = known.cluster(devices).devices.filter(({ name }) => !used.has(name));
  const substitutes = new Map<string, string>();
  for (const device of gone) {
    const heldMiB = from.predicted.peakMemoryMiB[device];
    const place = spares.findIndex(({ name, memoryMiB }) =>
      heldMiB === undefined ? gone.length === used.size || !known.budgets.isLowered(name) : heldMiB <= memoryMiB,
    );
    for (const { name } of place < 0 ? [] : spares.splice(place, 1)) substitutes.set(device, name);
  }
  return substitutes;
}

function withoutLost(
  { options, known, capacities }: LayoutsKnown,
  devices: readonly string[],
  from: Plan,
  lost: readonly string[],
): Plan {
  const { recovery, subject, mayRecompute } = options;
  const { grain = 1 } = subject.training;
  const profile = known.isProfiled(devices) ? known.profile(devices) : undefined;
  const { staleness: _, ...before } = from; // of other stages
  const input: ReplanInput = {
    plan: grain === 1 ? before : planInGrains(before, grain),
    lost,
    profile: grain === 1 || profile === undefined ? profile : profileInGrains(profile, grain),
    cluster: known.cluster(devices),
    optimizerState: optimizerStateCount(subject.training),
    ...(mayRecompute === true ? { mayRecompute: true } : {}),
    weightBytes: (layer) => known.layerBytes(layer),
  };
  const workers = workersOf(from).filter((device) => devices.includes(device));
  const found = replanned(input, recovery?.replan ?? 'light', { workers, capacities });
  const plan = withLeastStaleness(grain === 1 ? found : planInSamples(found, grain), options.staleness ?? {});
  const copied = withCopiesOf(plan, recovery ?? {});
  if (profile === undefined || (recovery?.replan ?? 'light') !== 'light') return copied;
  const isCopied = options.machine.replicateEvery !== 0;
  const copies = { profile, optimizerState: input.optimizerState ?? 0, isCopied };
  // Where rounds follow each other a run goes on after a loss, though there may be little room for further copies.
  if (!scheduleOf(copied.schedule).isStream) return withCopies(copied, copies);
  return fittingWithCopies(copied, input.cluster, copies);
}

function replanned(
  input: ReplanInput,
  kind: RecoveryPolicy['replan'],
  { workers, capacities }: { readonly workers: readonly string[]; readonly capacities: CapacityWatch },
): Plan {
  try {
    if (kind === 'take-over') return takeOver({ ...input, profile: assumedProfile(input) });
    if (kind === 'capacities')
      return partitionedAgain({ ...input, workers, central: capacities.central }, capacities.capacities);
  } catch (error) {
    if (!(error instanceof InputError)) throw error; // what they would do does not fit: ours looks at memory
  }
  return lightReplan(input);
}

/** The workers of a pipeline, in its order. */
function workersOf({ stages }: PlanLayout): readonly string[] {
  return [...new Set(stages.flatMap(({ devices }) => devices))];
}

/** What looking at the capacities came to. */
export interface Repartition {
  readonly capacities: Capacities;
  /** The layout by these capacities; absent where it is the one that runs. */
  readonly plan?: Plan;
  /** Why the layout that runs stays, if the one by capacity cannot be held. */
  readonly refusal?: string;
}

/** The model partitioned by what the batches of this layout took, among its workers and then the other devices. */
export function planByCapacity(layouts: LayoutsKnown, devices: readonly string[], from: Plan): Repartition | undefined {
  const { options, capacities } = layouts;
  if (capacities.central === undefined || !layouts.known.isProfiled(devices)) return undefined;
  const profile = layouts.known.profile(devices);
  const workers = [...new Set([...workersOf(from), ...devices])].filter((device) => devices.includes(device));
  const known = capacities.estimate(from, profile);
  const estimated = Object.fromEntries(workers.map((worker) => [worker, known[worker] ?? 1]));
  const { staleness: _, ...before } = from;
  try {
    const plan = partitionedAgain(
      {
        ...{ plan: before, profile, cluster: layouts.known.cluster(devices), lost: [], central: capacities.central },
        optimizerState: optimizerStateCount(options.subject.training),
        workers,
      },
      estimated,
    );
    const stale = withCopiesOf(withLeastStaleness(plan, options.staleness ?? {}), options.recovery ?? {});
    return isSamePipeline(stale, from) ? { capacities: estimated } : { capacities: estimated, plan: stale };
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
    return { capacities: estimated, refusal: error.message };
  }
}

function isSamePipeline(a: PlanLayout, b: PlanLayout): boolean {
  const parts = ({ stages }: PlanLayout): string =>
    JSON.stringify(stages.map(({ layers, devices }) => [layers, devices]));
  return parts(a) === parts(b);
}
