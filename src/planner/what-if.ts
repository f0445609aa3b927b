// What happens when the cluster changes: a device joins, leaves or slows down, a link slows down. Gives the round
// before, the same plan afterwards if it can still run, the new plan, and the weights that devices must fetch for it.
// Pure: changes nothing in a cluster.

import type { Cluster, DeviceSpec, DeviceTimes, LinkSpeed, Plan, PlanLayout, Profile } from '../cluster/cluster.ts';
import type { OptimizerState } from '../cluster/memory.ts';
import { deviceTimes, scaledTimes } from '../cluster/times.ts';
import { checkTogether, parseCluster } from '../cluster/validate.ts';
import { InputError } from '../errors.ts';
import { inferenceSchedule, scheduleOf, tangentSchedule } from '../schedule/schedules.ts';
import { planTangentSteps, predictedTangentPlan, wishOfTangents } from './forward-gradient.ts';
import { inferencePlannerNames, planInference, predictedInference } from './inference/plan.ts';
import { type PlanInput, planSteps } from './plan.ts';
import { predictedPlan } from './predict.ts';
import { holdersAfter } from './replan/backups.ts';
import { linkLoads, moves, stateBytes, transferTimeMs } from './replan/moves.ts';
import { planWithCopies, withCopies } from './replan/room-for-copies.ts';
import { finish, type Steps } from './steps.ts';

export type Change =
  | { readonly kind: 'join'; readonly device: DeviceSpec }
  | { readonly kind: 'leave'; readonly device: string }
  /** The device runs at this fraction of its speed; above 1 it is faster. */
  | { readonly kind: 'slow'; readonly device: string; readonly share: number }
  /** One pair's link, or all links without a speed of their own in the cluster. Absent values stay. */
  | { readonly kind: 'link'; readonly between?: readonly [string, string]; readonly speed: Partial<LinkSpeed> };

export interface WhatIfInput extends Omit<PlanInput, 'profile'> {
  /** The cluster before the changes. */
  readonly cluster: Cluster;
  /** The profile for a cluster's devices; called again if a device joins. */
  readonly profileFor: (cluster: Cluster) => Profile;
  /** The plan before; if absent, the planner's. */
  readonly current?: PlanLayout;
  /** Of plans by forward gradients that are made here, whose schedule is asked for. Default 1. */
  readonly tangentCount?: number;
  /** Whether the run makes copies for the case of a loss. Default true. */
  readonly isCopied?: boolean;
  readonly changes: readonly Change[];
}

/** Weights that travel from one device to another. */
export interface Transfer {
  readonly from: string;
  readonly to: string;
  readonly bytes: number;
}

export interface Migration {
  readonly transfers: readonly Transfer[];
  /** Bytes of all transfers, plus `lostBytes`. */
  readonly bytes: number;
  /** Bytes of layers that only departed devices held: they come from a checkpoint or a replica. */
  readonly lostBytes: number;
  /** Milliseconds until the last transfer has arrived, each link by itself. */
  readonly moveMs: number;
}

export interface WhatIf {
  readonly before: Plan;
  /** The plan before, run after the change; absent if one of its devices has left. */
  readonly kept?: Plan;
  readonly after: Plan;
  readonly move: Migration;
}

/**
 * Plans before and after the changes. Throws InputError for an impossible change and if nothing fits afterwards. Not
 * for planner hetpipe.
 */
export function whatIf(input: WhatIfInput): WhatIf {
  const { cluster, profileFor, current, changes, tangentCount = 1, isCopied = true, ...asked } = input;
  // Rounds that overlap go on doing so.
  const isStream = current !== undefined && scheduleOf(current.schedule).isStream;
  const rest = isStream ? { schedule: current.schedule, ...asked } : asked;
  const profile = profileFor(cluster);
  const { batchSize, optimizerState } = input;
  if (current !== undefined) checkTogether(current, profile, cluster);
  const predicted = (layout: PlanLayout, of: Profile, on: Cluster): Plan => {
    if (layout.schedule === inferenceSchedule) return predictedInference(layout, of, on);
    if (layout.schedule === tangentSchedule)
      return predictedTangentPlan(layout, { profile: of, cluster: on, optimizerState });
    return withCopies(predictedPlan(layout, of, on, optimizerState), { profile: of, optimizerState, isCopied });
  };
  const wish = current === undefined ? { tangentCount } : wishOfTangents(current);
  const planned = (question: PlanInput): Plan => {
    const { staleness: _, ...own } = question;
    return own.schedule === tangentSchedule
      ? finish(planTangentSteps({ ...own, ...wish }))
      : plannedWithCopies(question, isCopied);
  };
  const before = current === undefined ? planned({ ...rest, profile, cluster }) : predicted(current, profile, cluster);
  const changed = changedCluster(cluster, changes);
  const changedProfile = slowed(profileFor(changed), changed, changes);
  const after =
    before.schedule === inferenceSchedule
      ? inferenceAfter(input, before, changedProfile, changed)
      : planned({ ...rest, batchSize, profile: changedProfile, cluster: changed });
  const left = new Set(changes.flatMap((change) => (change.kind === 'leave' ? [change.device] : [])));
  if ([before, after].some(({ virtualWorkers }) => virtualWorkers !== undefined))
    throw new InputError(
      'The plans of planner "hetpipe" are not pipelines of stages, so they cannot be kept or moved; use ' +
        'another planner.',
    );
  const isKept = before.stages.every((stage) => stage.devices.every((device) => !left.has(device)));
  return {
    before,
    ...(isKept ? { kept: predicted(before, changedProfile, changed) } : {}),
    after,
    move: weightsToMove(before, after, changedProfile, changed, optimizerState),
  };
}

/** The planner's plan, with room for its copies. */
function plannedWithCopies(question: PlanInput, isCopied: boolean): Plan {
  const { profile, optimizerState } = question;
  const find = (cluster: Cluster): Steps<Plan> => planSteps({ ...question, cluster });
  return finish(planWithCopies(question.cluster, { profile, optimizerState, isCopied }, find));
}

/** A plan of inference for the changed cluster, by the planner that is asked for if it is one of inference. */
function inferenceAfter(
  { planner = 'best', microBatchSize }: WhatIfInput,
  { batchSize, compression }: Plan,
  profile: Profile,
  cluster: Cluster,
): Plan {
  return planInference({
    ...{ profile, cluster, batchSize, objective: 'throughput', encoding: compression?.activation },
    planner: inferencePlannerNames.includes(planner) ? planner : 'best',
    ...(microBatchSize === undefined ? {} : { microBatchSize }),
  });
}

/** The cluster after the changes, applied in order. Throws InputError. */
export function changedCluster(cluster: Cluster, changes: readonly Change[]): Cluster {
  const result = changes.reduce(applyChange, cluster);
  return parseCluster(result, 'the changed cluster');
}

function applyChange(cluster: Cluster, change: Change): Cluster {
  const { devices, links: speeds, dataDevice } = cluster;
  const mustHave = (name: string): void => {
    if (devices.some((device) => device.name === name)) return;
    throw new InputError(
      `The cluster has no device "${name}"; name one of ${devices.map((device) => device.name).join(', ')}.`,
    );
  };
  switch (change.kind) {
    case 'join':
      return { ...cluster, devices: [...devices, change.device] };
    case 'slow':
      mustHave(change.device);
      return cluster;
    case 'leave': {
      mustHave(change.device);
      if (dataDevice === change.device)
        throw new InputError(
          `Device "${change.device}" holds the data and cannot leave; name another dataDevice in the cluster first.`,
        );
      const pairs = speeds.pairs?.filter(({ between }) => !between.includes(change.device));
      return {
        ...cluster,
        devices: devices.filter((device) => device.name !== change.device),
        links: { ...speeds, ...(pairs === undefined ? {} : { pairs }) },
      };
    }
    case 'link': {
      const { between, speed } = change;
      if (between === undefined) return { ...cluster, links: { ...speeds, default: { ...speeds.default, ...speed } } };
      between.forEach(mustHave);
      const isThis = (pair: readonly [string, string]): boolean => between.every((name) => pair.includes(name));
      const known = speeds.pairs?.find((pair) => isThis(pair.between)) ?? speeds.default;
      const others = (speeds.pairs ?? []).filter((pair) => !isThis(pair.between));
      return { ...cluster, links: { ...speeds, pairs: [...others, { ...known, ...speed, between }] } };
    }
  }
}

function slowed(profile: Profile, cluster: Cluster, changes: readonly Change[]): Profile {
  const devices: Record<string, DeviceTimes> = { ...profile.devices };
  for (const change of changes) {
    if (change.kind !== 'slow') continue;
    const { device: name, share } = change;
    if (!(share > 0))
      throw new InputError(
        `Device "${name}" at ${share} of its speed does no work; give a share above 0, or let it leave.`,
      );
    const device = cluster.devices.find((spec) => spec.name === name);
    if (device === undefined) continue;
    devices[name] = scaledTimes(deviceTimes({ ...profile, devices }, device), 1 / share);
  }
  return { ...profile, devices };
}

/** The transfers by which each device of `after` gets weights and optimizer state of layers that it did not have. */
export function weightsToMove(
  before: PlanLayout,
  after: PlanLayout,
  profile: Profile,
  cluster: Cluster,
  optimizerState: OptimizerState,
): Migration {
  const present = new Set(cluster.devices.map((device) => device.name));
  const gone = before.stages.flatMap(({ devices }) => devices).filter((name) => !present.has(name));
  const bytes = (layer: number): number => stateBytes(profile, layer, optimizerState);
  const holders = holdersAfter(before, gone, new Map());
  const loads = linkLoads(moves({ holders, target: after, bytes, cluster }), bytes).filter((load) => load.bytes > 0);
  const transfers = loads.flatMap(({ from, to, bytes: own }) => (from === null ? [] : [{ from, to, bytes: own }]));
  const total = loads.reduce((sum, load) => sum + load.bytes, 0);
  const lostBytes = total - transfers.reduce((sum, load) => sum + load.bytes, 0);
  return { transfers, bytes: total, lostBytes, moveMs: transferTimeMs(transfers, cluster) };
}
