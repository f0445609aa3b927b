// Predicts what happens if devices are lost: which layers are lost, who takes over, what travels and for how long, and
// the throughput before and after, for light re-planning and heavy rescheduling. Changes nothing in a cluster.

import type { Cluster, Plan, PlanLayout, Profile } from '../../cluster/cluster.ts';
import type { OptimizerState } from '../../cluster/memory.ts';
import { checkTogether } from '../../cluster/validate.ts';
import { InputError } from '../../errors.ts';
import { planSteps } from '../plan.ts';
import { predictedPlan } from '../predict.ts';
import { finish, type Steps } from '../steps.ts';
import { type PlannedRecovery, type RecoveryEstimate, recoveryEstimate } from './estimate.ts';
import { type HeavyInput, heavyReplanSteps } from './heavy.ts';
import { lightReplan } from './light.ts';
import { type ReplicationInterval, replicationInterval } from './replication.ts';
import { type CopiesOptions, fittingWithCopies, planWithCopies, withCopies } from './room-for-copies.ts';

export interface PredictLossInput {
  /** Including the devices to be lost. */
  readonly cluster: Cluster;
  readonly profile: Profile;
  /** The plan before; if absent, the planner's. */
  readonly current?: PlanLayout;
  readonly lost: readonly string[];
  readonly batchSize: number;
  readonly microBatchSize?: number;
  /** Used for the plan before and for heavy rescheduling. Default 'best'. */
  readonly planner?: string;
  /** Of the plan before, if there is no current one. Default: the planner's. */
  readonly schedule?: string;
  readonly optimizerState: OptimizerState;
  readonly replicateBatchDependent: boolean;
  /** Whether the run makes copies, for which streams need room. Default true. */
  readonly isCopied?: boolean;
  /** From the loss until it is detected for certain. */
  readonly detectionMs: number;
  /** See RecoveryInput.compileMs. */
  readonly compileMs?: number;
  /** A monotonic clock in milliseconds, to measure how long planning takes here. */
  readonly now: () => number;
}

export interface LossPrediction extends RecoveryEstimate {
  /**
   * Why the remaining devices cannot hold a plan like the one before; `light.plan` is then a new one, made after the
   * loss. Absent if they can.
   */
  readonly refusal?: string;
  readonly before: Plan;
  /** The cost of keeping copies. */
  readonly replication: ReplicationInterval;
}

/**
 * Predicts the simultaneous loss of devices. The plan for one lost device is held in reserve and costs no time; for
 * several it is made after the loss. Throws InputError for unknown devices, for the data's holder, and if nothing fits
 * afterwards.
 */
export function predictLoss(input: PredictLossInput): LossPrediction {
  const { cluster, profile, current, lost, optimizerState, planner = 'best', replicateBatchDependent, now } = input;
  checkLost(cluster, lost);
  const { batchSize, microBatchSize, schedule } = input;
  if (current !== undefined) checkTogether(current, profile, cluster);
  const copies = { profile, optimizerState, isCopied: input.isCopied ?? true };
  const before =
    current === undefined
      ? withRoom({ cluster }, copies, (given) =>
          planSteps({
            ...{ profile, batchSize, planner, optimizerState, replicateBatchDependent, ...given },
            ...(microBatchSize === undefined ? {} : { microBatchSize }),
            ...(schedule === undefined ? {} : { schedule }),
          }),
        )
      : withCopies(predictedPlan(current, profile, cluster, optimizerState), copies);
  const timed = (find: () => Plan): PlannedRecovery => {
    const startMs = now();
    const found = find();
    return { plan: found, planningMs: now() - startMs };
  };
  // What the plan replicates already may stay replicated, even without that option.
  const question = {
    plan: before,
    profile,
    cluster,
    lost,
    optimizerState,
    ...(replicateBatchDependent ? { replicateBatchDependent } : {}),
    mayRecompute: true,
  };
  const { found: light, refusal } = orRefusal(() =>
    timed(() => fittingWithCopies(lightReplan(question), cluster, copies)),
  );
  const heavy = timed(() => planFromScratch({ ...question, planner }, copies));
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
 * A new plan for the remaining devices, with the same micro-batches if possible, since batches are normalized over
 * them.
 */
function planFromScratch(question: HeavyInput, copies: CopiesOptions): Plan {
  const find = (more: Partial<HeavyInput>): Plan =>
    withRoom(question, copies, (given) => heavyReplanSteps({ ...given, ...more }));
  return orRefusal(() => find({})).found ?? find({ microBatchSize: 'any' });
}

/** What `find` plans, with room for its copies. */
function withRoom<Question extends { readonly cluster: Cluster }>(
  question: Question,
  copies: CopiesOptions,
  find: (question: Question) => Steps<Plan>,
): Plan {
  return finish(planWithCopies(question.cluster, copies, (cluster) => find({ ...question, cluster })));
}

/** The result of `find`, or the message of the InputError that it throws. */
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
