// Heavy rescheduling (Asteroid §3.4's straw man): the full planner on the remaining devices, ignoring the plan before.
// The baseline for light re-planning, and a later improvement in the background if it gains more than it costs.

import type { Plan } from '../../cluster/cluster.ts';
import { scheduleOf, tangentSchedule } from '../../schedule/schedules.ts';
import { planTangentSteps, wishOfTangents } from '../forward-gradient.ts';
import { planSteps } from '../plan.ts';
import { finish, type Steps } from '../steps.ts';
import { type ReplanInput, remainingProblem, survivingStages } from './survivors.ts';

export interface HeavyInput extends ReplanInput {
  /** See plannerNames. Default 'best'. */
  readonly planner?: string;
  /** Default: the plan's, so that batch normalization keeps its number of samples. */
  readonly microBatchSize?: number | 'any';
  readonly signal?: AbortSignal;
}

/**
 * The full planner's plan on the remaining devices; of a stream, a stream. Throws InputError if nothing fits, and the
 * signal's reason.
 */
export function heavyReplan(input: HeavyInput): Plan {
  return finish(heavyReplanSteps(input));
}

/** heavyReplan in steps, for callers that train meanwhile. */
export function* heavyReplanSteps(input: HeavyInput): Steps<Plan> {
  const { plan, lost, planner = 'best', microBatchSize = plan.microBatchSize, mayRecompute, signal } = input;
  survivingStages(plan, lost);
  const { profile, cluster, optimizerState, replicateBatchDependent } = remainingProblem(input);
  const { forwardOnlyLayers } = plan;
  const question = {
    ...{ profile, cluster, planner, batchSize: plan.batchSize, optimizerState, replicateBatchDependent },
    ...(scheduleOf(plan.schedule).isStream ? { schedule: plan.schedule } : {}),
    ...(microBatchSize === 'any' ? {} : { microBatchSize }),
    ...(mayRecompute === undefined ? {} : { mayRecompute }),
    ...(signal === undefined ? {} : { signal }),
  };
  const found = yield* plan.schedule === tangentSchedule
    ? planTangentSteps({ ...question, ...wishOfTangents(plan) })
    : planSteps(question);
  const layout = { ...found, ...(forwardOnlyLayers === undefined ? {} : { forwardOnlyLayers }) };
  return input.profile === undefined
    ? { ...layout, predicted: { roundMs: 0, samplesPerS: 0, peakMemoryMiB: {} } }
    : layout;
}
