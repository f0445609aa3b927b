// Which version of the weights a round reads where rounds overlap. Round t of stage p computes with version
// max(first, t − s_p), s_p being the stage's staleness and `first` the version that the stream began with; the gradient
// of round t makes version t + 1. Pure.
//
//   s = 2     round     0  1  2  3  4          what a stage keeps at round 4: versions 2, 3 and 4
//             version   0  0  0  1  2

import type { PlanLayout } from '../cluster/cluster.ts';
import { type Overlap, uncommittedUpdates } from '../cluster/memory.ts';
import { InputError } from '../errors.ts';
import { paceOf } from './pace.ts';
import { scheduleOf } from './schedules.ts';

/** Rounds by which a stage's first forward of a tick is ahead of the tick's backward, at most: ⌈(K_p − 1) / M⌉. */
export function roundsAhead(plan: PlanLayout, stage: number): number {
  const schedule = scheduleOf(plan.schedule);
  return schedule.isStream ? Math.ceil(paceOf(plan, stage, schedule).ahead / plan.microBatchCount) : 0;
}

/** The lead of the stage that is furthest ahead. */
function mostRoundsAhead(plan: PlanLayout): number {
  return Math.max(...plan.stages.map((_, stage) => roundsAhead(plan, stage)));
}

/** How a stage's rounds overlap with others. */
export function overlapOf(plan: PlanLayout, stage: number): Overlap {
  return { own: roundsAhead(plan, stage), most: mostRoundsAhead(plan) };
}

/**
 * The least staleness of each stage. With vertical sync, a round has the same version in all stages: as the first
 * stage, which is furthest ahead. Zeros for schedules whose rounds follow each other.
 */
export function leastStaleness(plan: PlanLayout, isVerticallySynchronous = true): readonly number[] {
  const most = mostRoundsAhead(plan);
  return plan.stages.map((_, stage) => (isVerticallySynchronous ? most : roundsAhead(plan, stage)));
}

/** The staleness of a plan's stages: its own, or the least with vertical sync. InputError for less than it needs. */
export function stalenessOf(plan: PlanLayout): readonly number[] {
  if (scheduleOf(plan.schedule).gradients === 'tangent') return tangentStaleness(plan);
  const { staleness, schedule } = plan;
  if (staleness === undefined) return leastStaleness(plan);
  for (const [stage, own] of staleness.entries()) {
    const least = roundsAhead(plan, stage);
    if (own > 0 && !scheduleOf(schedule).isStream)
      throw new InputError(
        `The plan has staleness ${own} in stage ${stage}, but rounds of its schedule "${schedule}" do not overlap; ` +
          'leave staleness out, or take schedule "async".',
      );
    if (own < least)
      throw new InputError(
        `The plan has staleness ${own} in stage ${stage}, whose forward passes lead by ${least}; ` +
          `raise it to at least ${least}.`,
      );
  }
  return staleness;
}

/** P − 1 − p, or what the plan says; a stage runs no round before the one before it has. */
function tangentStaleness({ staleness, stages }: PlanLayout): readonly number[] {
  const found = staleness ?? stages.map((_, stage) => stages.length - 1 - stage);
  for (const [stage, own] of found.entries()) {
    const before = found[stage - 1] ?? own;
    if (own > before)
      throw new InputError(
        `The plan has staleness ${own} in stage ${stage}, more than the ${before} of stage ${stage - 1}, whose ` +
          `activations would come too late; lower it to ${before}, or raise the other to ${own}.`,
      );
  }
  return found;
}

/** What a person may ask of a stream's staleness. */
export interface StalenessWish {
  /** The same in all stages. Absent: the least that the plan allows. */
  readonly staleness?: number | undefined;
  /** Whether a round has the same version in all stages. Default true. */
  readonly verticalSync?: boolean;
}

/**
 * The plan with the staleness that is wished for, written out; where nothing is, a plan keeps its own. InputError for
 * less than the plan needs.
 */
export function withStaleness<Given extends PlanLayout>(plan: Given, wish: StalenessWish): Given {
  const { staleness, verticalSync = true } = wish;
  const { isStream, gradients } = scheduleOf(plan.schedule);
  if (!isStream) return plan;
  if (gradients === 'tangent') {
    if (staleness === undefined) return { ...plan, staleness: tangentStaleness(plan) };
    if (staleness === 0) return { ...plan, staleness: plan.stages.map(() => 0) };
    throw new InputError(
      `--staleness ${staleness} is not for forward gradients: give 0, for rounds that follow each other, or leave ` +
        'it out.',
    );
  }
  const least = leastStaleness(plan, verticalSync);
  const needed = Math.max(...least);
  if (staleness !== undefined && staleness < needed)
    throw new InputError(
      `--staleness ${staleness} is less than the ${needed} that the plan needs (stages: ${plan.stages.length}, ` +
        `micro-batches a round: ${plan.microBatchCount}); give ${needed} or more, or more micro-batches.`,
    );
  if (staleness !== undefined) return { ...plan, staleness: least.map(() => staleness) };
  return { ...plan, staleness: plan.staleness !== undefined && verticalSync ? stalenessOf(plan) : least };
}

/** What a plan's own staleness, if it has one, says of the plans that come in its place. */
export function wishOf({ staleness }: PlanLayout): StalenessWish {
  if (staleness === undefined) return {};
  const [first = 0] = staleness;
  return staleness.every((own) => own === first) ? { staleness: first } : { verticalSync: false };
}

/** The plan with the staleness that is wished for, or the least that it needs where that is more. */
export function withLeastStaleness<Given extends PlanLayout>(plan: Given, wish: StalenessWish): Given {
  const { isStream, gradients } = scheduleOf(plan.schedule);
  if (!isStream) return plan;
  if (gradients === 'tangent') return withStaleness(plan, wish.staleness === 0 ? wish : {});
  const { verticalSync = true, staleness = 0 } = wish;
  const least = leastStaleness(plan, verticalSync);
  return { ...plan, staleness: least.map((needed) => Math.max(needed, staleness)) };
}

/**
 * Rounds whose updates may stand before they have committed, and that devices may begin beyond the oldest of them: 1
 * where rounds follow each other. Where they overlap, the first stage begins the rounds of its lead before it ends the
 * oldest, and one more hides the way to the coordinator and back.
 */
export function commitWindow(plan: PlanLayout): number {
  if (!scheduleOf(plan.schedule).isStream) return 1;
  return mostRoundsAhead(plan) + 2;
}

/**
 * Of a stage's rounds, those whose updates may stand before they have committed: fewer the nearer the stage is to the
 * first, whose backward pass is a round's last.
 */
export function updateWindow(plan: PlanLayout, stage: number): number {
  return uncommittedUpdates(overlapOf(plan, stage));
}

/**
 * Versions of a stage's weights that it keeps at most for the rounds of the stream, the live one among them: round t's
 * backward reads version t − s while version t is live. A stage without anything to train has one.
 */
export function weightVersionCount(plan: PlanLayout, stage: number): number {
  // A tick's pass reads the live version, and nothing reads it later.
  if (scheduleOf(plan.schedule).gradients === 'tangent') return 1;
  return (stalenessOf(plan)[stage] ?? 0) + 1;
}
