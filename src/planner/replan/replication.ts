// How often the copies of Asteroid's topology-driven replication (§3.4) are updated: every round if the links have
// enough idle time, otherwise at the shortest interval whose excess costs little. Replication has the lowest priority
// on a link, so only what exceeds the idle time makes a round longer.

import type { Cluster, PlanLayout, Profile } from '../../cluster/cluster.ts';
import { links } from '../../cluster/links.ts';
import { bytesInMiB, layerSums, type OptimizerState } from '../../cluster/memory.ts';
import { InputError } from '../../errors.ts';
import { program } from '../../schedule/generate.ts';
import { simulate } from '../../simulator/simulate.ts';
import { backups } from './backups.ts';

/** The fraction of training time that copies may cost. */
export const copyCostLimit = 0.03;

export interface ReplicationInput {
  readonly plan: PlanLayout;
  readonly profile: Profile;
  readonly cluster: Cluster;
  /** Optimizer copies of each weight, which travel with it. Default 0. */
  readonly optimizerState?: OptimizerState;
  /** How much longer rounds may become on average, as a fraction. Default 0.03. */
  readonly limit?: number;
  /** Where stages are copied to. Default: `backups(plan)`. */
  readonly copies?: ReadonlyMap<number, string>;
}

export interface ReplicationInterval {
  /** Number of rounds from the start of one copy to the next. */
  readonly everyRounds: number;
  /** Bytes of all copies together, each time. Frozen weights do not change and are not counted. */
  readonly bytesPerRound: number;
  /**
   * How much longer rounds become on average by what exceeds the links' idle time, as a fraction; 0 if everything fits.
   */
  readonly predictedCost: number;
}

/** Versions of a stage's state that its copying keeps alive: the one that was copied last, and one on its way. */
const copiedVersions = 2;

/** Copies of the weights that the runtime's buffers count for a group's ring: a device alone does without. */
const ringCopies = 2;

/**
 * MiB that copies take on each device of a plan, where any are made: the versions of its own stage that a loss may
 * return to, and those of the stages that it keeps copies of. Frozen weights are not copied.
 */
export function copyMiB(
  plan: PlanLayout,
  profile: Profile,
  optimizerState: OptimizerState,
): ReadonlyMap<string, number> {
  const copies = backups(plan);
  const sums = layerSums(profile);
  const found = new Map<string, number>();
  if (copies.size === 0) return found;
  const add = (device: string, bytes: number): void => {
    found.set(device, (found.get(device) ?? 0) + bytes / bytesInMiB);
  };
  for (const [index, { layers, devices }] of plan.stages.entries()) {
    const weightBytes = sums.weightBytes(...layers);
    const trainedBytes = copiedVersions * (1 + optimizerState) * weightBytes;
    const ownBytes = trainedBytes - (devices.length === 1 ? ringCopies * weightBytes : 0);
    for (const device of devices) add(device, ownBytes);
    const keeper = copies.get(index);
    if (keeper !== undefined) add(keeper, trainedBytes);
  }
  return found;
}

/** The shortest interval whose predicted cost is within the limit, given the links' idle time in a simulated round. */
export function replicationInterval(input: ReplicationInput): ReplicationInterval {
  const { plan, profile, cluster, optimizerState = 0, limit = copyCostLimit, copies = backups(plan) } = input;
  if (!(limit > 0))
    throw new InputError(`The limit of replication's cost is ${limit}; give a fraction above 0, such as 0.03.`);
  const table = links(cluster);
  const sums = layerSums(profile);
  const { roundMs, links: traffic } = simulate(program(plan), plan, profile, cluster, { events: false });
  const busy = [...copies].flatMap(([index, to]) => {
    const stage = plan.stages[index];
    const from = stage?.devices[0];
    if (stage === undefined || from === undefined) return [];
    const bytes = (1 + optimizerState) * sums.weightBytes(...stage.layers);
    const copyMs = table.occupancyMs(table.deviceIndex(from), table.deviceIndex(to), bytes);
    return [{ bytes, copyMs, idleMs: Math.max(0, roundMs - (traffic[`${from}->${to}`]?.busyMs ?? 0)) }];
  });
  // A round holds idleMs of copying at no cost, and limit · roundMs more within the limit.
  const everyRounds = Math.max(
    1,
    ...busy.map(({ copyMs, idleMs }) => Math.ceil(copyMs / (idleMs + limit * roundMs) - 1e-9)),
  );
  const excess = busy.map(({ copyMs, idleMs }) => Math.max(0, copyMs - everyRounds * idleMs) / (everyRounds * roundMs));
  return {
    everyRounds,
    bytesPerRound: busy.reduce((sum, { bytes }) => sum + bytes, 0),
    predictedCost: Math.max(0, ...excess),
  };
}
