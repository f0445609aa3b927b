// What would happen if devices vanished: what is lost, who takes over, what travels and for how long, and the
// throughput before and after, with light re-planning beside heavy rescheduling. Nothing is done to a cluster.

import type { Cluster, Plan, PlanLayout, Profile } from '../../cluster/cluster.ts';
import type { OptimizerState } from '../../cluster/memory.ts';
import { checkTogether } from '../../cluster/validate.ts';
import { InputError } from '../../errors.ts';
import { plan } from '../plan.ts';
import { predictedPlan } from '../predict.ts';
import { type PlannedRecovery, type RecoveryEstimate, recoveryEstimate } from './estimate.ts';
import { type HeavyInput, heavyReplan } from './heavy.ts';
import { lightReplan } from './light.ts';
import { type ReplicationInterval, replicationInterval } from './replication.ts';

export interface PredictLossInput {
  /** With the devices that are to be lost. */
  readonly cluster: Cluster;
  readonly profile: Profile;
  /** The plan before; absent: what the planner finds. */
  readonly current?: PlanLayout;
  readonly lost: readonly string[];
  readonly batchSize: number;
  readonly microBatchSize?: number;
  /** For the plan before, and for heavy rescheduling. Default 'best'. */
  readonly planner?: string;
  readonly optimizerState: OptimizerState;
  readonly replicateBatchDependent: boolean;
  /** From the loss until it is certain. */
  readonly detectionMs: number;
  /** See RecoveryInput. */
  readonly compileMs?: number;
  /** Monotonic milliseconds, for how long planning takes here. */
  readonly now: () => number;
}

export interface LossPrediction extends RecoveryEstimate {
  /**
   * Why the devices left cannot hold a plan like the one before; `light.plan` is then a new one, made when they are
   * lost. Absent: they can.
   */
  readonly refusal?: string;
  readonly before: Plan;
  /** What it costs to be prepared. */
  readonly replication: ReplicationInterval;
}

/**
 * Predicts the loss of devices, all at once. The plan for the loss of one is taken to be in reserve, and costs no time;
 * for several it is made when they are lost. InputError for devices that there are not, the data's holder, and where
 * nothing fits afterwards.
 */
export function predictLoss(input: PredictLossInput): LossPrediction {
  const { cluster, profile, current, lost, optimizerState, planner = 'best', replicateBatchDependent, now } = input;
  checkLost(cluster, lost);
  const { batchSize, microBatchSize } = input;
  if (current !== undefined) checkTogether(current, profile, cluster);
  const before =
    current === undefined
      ? plan({
          ...{ profile, cluster, batchSize, planner, optimizerState, replicateBatchDependent },
          ...(microBatchSize === undefined ? {} : { microBatchSize }),
        })
      : predictedPlan(current, profile, cluster, optimizerState);
  const timed = (find: () => Plan): PlannedRecovery => {
    const startMs = now();
    const found = find();
    return { plan: found, planningMs: now() - startMs };
  };
  // What the plan replicates already may stay so, even where it is not asked for.
  const question = {
    plan: before,
    profile,
    cluster,
    lost,
    optimizerState,
    ...(replicateBatchDependent ? { replicateBatchDependent } : {}),
    mayRecompute: true,
  };
  const { found: light, refusal } = orRefusal(() => timed(() => lightReplan(question)));
  const heavy = timed(() => anew({ ...question, planner }));
  const { detectionMs, compileMs = 0 } = input;
  const isReserved = light !== undefined && lost.length === 1;
  return {
    before,
    ...(refusal === undefined ? {} : { refusal: refusal.message }),
    replication: replicationInterval({ plan: before, profile, cluster, optimizerState }),
    ...recoveryEstimate({
      ...{ plan: before, profile, cluster, lost, optimizerState, detectionMs, compileMs, heavy },
      light: isReserved ? { ...light, planningMs: 0 } : (light ?? heavy),
    }),
  };
}

/**
 * A plan for the devices left as if there had been none, with the same micro-batches if it can be: batches are
 * normalized over them.
 */
function anew(question: HeavyInput): Plan {
  return orRefusal(() => heavyReplan(question)).found ?? heavyReplan({ ...question, microBatchSize: 'any' });
}

/** What is found, or the InputError that says why there is nothing. */
function orRefusal<Found>(find: () => Found): { readonly found?: Found; readonly refusal?: InputError } {
  try {
    return { found: find() };
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
    return { refusal: error };
  }
}

function checkLost({ devices, dataDevice }: Cluster, lost: readonly string[]): void {
  for (const name of lost) {
    if (!devices.some((device) => device.name === name))
      throw new InputError(
        `The cluster has no device "${name}"; name one of ${devices.map((device) => device.name).join(', ')}.`,
      );
    if (name === dataDevice)
      throw new InputError(
        `Device "${name}" holds the data, and nothing trains without it; name another dataDevice in the cluster first.`,
      );
  }
}
