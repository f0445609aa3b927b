// What remains of a plan and a cluster after devices are lost, and the resulting planning problem. Without a profile,
// every layer is assumed to be the same work and every device equally fast.

import type { Cluster, DeviceTimes, LayerProfile, PlanLayout, Profile } from '../../cluster/cluster.ts';
import { layerSums, type OptimizerState } from '../../cluster/memory.ts';
import { InputError } from '../../errors.ts';
import { scheduleOf } from '../../schedule/schedules.ts';
import { createProblem, type Problem } from '../problem.ts';
import { withRecomputation } from '../recomputation.ts';

/** A plan that lost devices, and the known facts about model and cluster. */
export interface ReplanInput {
  /** The plan before the loss. */
  readonly plan: PlanLayout;
  /** Undefined if nothing was profiled: layers are then equal work and devices equally fast. */
  readonly profile: Profile | undefined;
  /** The remaining devices; may still include the lost ones. */
  readonly cluster: Cluster;
  /** Names of the lost devices, in any order. Names that the plan does not use are allowed. */
  readonly lost: readonly string[];
  /** Optimizer copies of each weight. Default 0 (plain SGD). */
  readonly optimizerState?: OptimizerState;
  /** Allows replicas of layers that depend on the whole batch. Default: whether the plan already has any. */
  readonly replicateBatchDependent?: boolean;
  /**
   * Lets devices recompute activations that do not fit, if the profile gives the cost. Default: whether the plan
   * already does.
   */
  readonly mayRecompute?: boolean;
  /** By stage of the plan: the device that keeps its copy. Default: `backups(plan)`. */
  readonly copies?: ReadonlyMap<number, string>;
  /**
   * Without a profile: the bytes of a layer's weights, so that memory is respected and few of them move. Default:
   * unknown.
   */
  readonly weightBytes?: (layer: number) => number;
}

/** A stage of the plan without its lost devices. */
export interface Survivors {
  /** Its index in the plan. */
  readonly stage: number;
  /** In the plan's order; not empty. */
  readonly devices: readonly string[];
}

/** How many layers the plan's model has. */
export function layerCountOf({ stages }: PlanLayout): number {
  return stages.at(-1)?.layers[1] ?? 0;
}

/**
 * The plan's stages that still have a device. Throws InputError if none has, and for plans that are not a single
 * pipeline.
 */
export function survivingStages({ stages, virtualWorkers, planner }: PlanLayout, lost: readonly string[]): Survivors[] {
  if (virtualWorkers !== undefined)
    throw new InputError(
      `The plan of planner "${planner}" is not a single pipeline and cannot be repaired; plan with planner best.`,
    );
  const left = stages.flatMap(({ devices }, stage) => {
    const alive = devices.filter((device) => !lost.includes(device));
    return alive.length === 0 ? [] : [{ stage, devices: alive }];
  });
  if (left.length === 0)
    throw new InputError('Every device of the plan is lost; start devices again and resume from a checkpoint.');
  return left;
}

/** The cluster without the lost devices, their links, and a data holder among them. */
export function remaining(cluster: Cluster, lost: readonly string[]): Cluster {
  const { devices, links, dataDevice } = cluster;
  const pairs = links.pairs?.filter(({ between }) => !between.some((name) => lost.includes(name)));
  return {
    devices: devices.filter(({ name }) => !lost.includes(name)),
    links: { default: links.default, ...(pairs === undefined ? {} : { pairs }) },
    ...(dataDevice === undefined || lost.includes(dataDevice) ? {} : { dataDevice }),
  };
}

/** The profile; if there is none, one in which all layers and all devices are equal. */
export function assumedProfile({ plan, profile, cluster, weightBytes = () => 0 }: ReplanInput): Profile {
  if (profile !== undefined) return profile;
  const layers = Array.from(
    { length: layerCountOf(plan) },
    (_, layer): LayerProfile => ({
      name: String(layer),
      outputBytes: 0,
      weightBytes: weightBytes(layer),
      savedBytes: 0,
      flops: 1,
    }),
  );
  const times: DeviceTimes = { forwardMs: [layers.map(() => 1)], backwardMs: [layers.map(() => 2)] };
  const devices = Object.fromEntries(cluster.devices.map(({ name }) => [name, times]));
  return { model: 'not profiled', inputBytes: 0, labelBytes: 0, layers, batchSizes: [1], devices };
}

/** Whether the plan computes layers that depend on the whole batch on several devices. */
function replicatesBatchDependent({ stages }: PlanLayout, profile: Profile): boolean {
  const sums = layerSums(profile);
  return stages.some(
    ({ layers, samples }) => samples.filter((share) => share > 0).length > 1 && sums.batchDependentCount(...layers) > 0,
  );
}

/** Whether a device of the plan recomputes activations. */
function recomputes({ stages }: PlanLayout): boolean {
  return stages.some(({ savedBytes }) => savedBytes !== undefined);
}

/**
 * The planning problem on the remaining devices, with the plan's micro-batches. Throws InputError if a device has no
 * times.
 */
export function remainingProblem(input: ReplanInput, schedule: string = input.plan.schedule): Problem {
  const { plan, cluster, lost, optimizerState = 0, mayRecompute = recomputes(plan) } = input;
  const profile = assumedProfile(input);
  const problem = createProblem({
    profile,
    cluster: remaining(cluster, lost),
    schedule: scheduleOf(schedule),
    batchSize: plan.batchSize,
    microBatchSize: plan.microBatchSize,
    optimizerState,
    replicateBatchDependent: input.replicateBatchDependent ?? replicatesBatchDependent(plan, profile),
  });
  return mayRecompute ? withRecomputation(problem) : problem;
}
