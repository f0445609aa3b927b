// What a planner may choose of a stream: how many micro-batches are in flight.

import { type Schedule, schedules } from '../schedule/schedules.ts';
import type { Problem } from './problem.ts';
import { problemsOf, type Question } from './question.ts';

/**
 * The paces of a stream's stages. P − p micro-batches keep all stages busy if nothing travels: a micro-batch takes the
 * way to the last stage and back, and that many are on it. With 2(P − p) − 1, as under 1F1B, transfers may take as long
 * as passes; there may then be twice the staleness, unless a round has that many micro-batches.
 */
export const streamPaces: readonly Schedule[] = [
  schedules.async,
  {
    ...schedules.async,
    forwardsAhead: (stage, stageCount) => 2 * (stageCount - stage) - 2,
    inFlight: (stage, stageCount) => 2 * (stageCount - stage) - 1,
  },
];

/** problemsOf for planners that choose the schedule, or, where a stream is asked for, its pace. */
export function candidateProblems(
  question: Question,
  schedulesWithoutWish: readonly Schedule[],
): { readonly problem: Problem; readonly boundMs: number }[] {
  return question.schedule?.isStream === true
    ? problemsOf({ ...question, schedule: undefined }, question.isLeastStale ? streamPaces.slice(0, 1) : streamPaces)
    : problemsOf(question, schedulesWithoutWish);
}
