// What a plan and its schedule together say of one stage: whether it is trained, how it runs its micro-batches, how
// many it keeps, and in which buckets its gradients are reduced. Pure.

import type { PlanLayout } from '../cluster/cluster.ts';
import type { LayerRange } from './program.ts';
import { type Pace, type Schedule, scheduleOf } from './schedules.ts';

/** Leading layers that only run forward: all, where the schedule does not train. */
export function forwardOnlyLayersOf({ schedule, stages, forwardOnlyLayers = 0 }: PlanLayout): number {
  return scheduleOf(schedule).trains ? forwardOnlyLayers : (stages.at(-1)?.layers[1] ?? 0);
}

/** Whether nothing in a stage, nor before it, is trained: it runs forward, and no gradient comes to it. */
export function isForwardOnly(plan: PlanLayout, stage: number): boolean {
  return (plan.stages[stage]?.layers[1] ?? Number.POSITIVE_INFINITY) <= forwardOnlyLayersOf(plan);
}

/** Whether the stage before a stage has anything to train. */
export function isGradientWanted(plan: PlanLayout, stage: number): boolean {
  return (plan.stages[stage]?.layers[0] ?? 0) > forwardOnlyLayersOf(plan);
}

/** The pace of a plan's stage: what the plan's K_p allows. `schedule` is the plan's. */
export function paceOf(plan: PlanLayout, stage: number, schedule: Schedule = scheduleOf(plan.schedule)): Pace {
  const { stages, microBatchCount } = plan;
  if (isForwardOnly(plan, stage) && !schedule.isStream) return { ahead: microBatchCount, delay: undefined };
  if (schedule.gradients === 'tangent') {
    const staleness = plan.staleness?.[stage] ?? stages.length - 1 - stage;
    return { ahead: staleness * microBatchCount, delay: undefined };
  }
  const planned = stages[stage]?.inFlight;
  if (schedule.isStream) {
    const kept = schedule.isInFlightFixed ? undefined : planned;
    return { ahead: (kept ?? schedule.inFlight(stage, stages.length, microBatchCount)) - 1, delay: undefined };
  }
  const kept = Math.min(
    microBatchCount,
    schedule.isInFlightFixed || planned === undefined
      ? schedule.inFlight(stage, stages.length, microBatchCount)
      : planned,
  );
  if (!schedule.splitsBackward) return { ahead: kept, delay: undefined };
  const ahead = Math.min(kept, schedule.forwardsAhead(stage, stages.length, microBatchCount));
  return { ahead, delay: isGradientWanted(plan, stage) ? kept - ahead : undefined };
}

/**
 * The most micro-batches that a plan's stage really keeps: what the plan says, capped by M unless rounds overlap;
 * always M for gpipe, and for a stage that has no backward to wait for.
 */
export function effectiveInFlight(plan: PlanLayout, stage: number): number {
  const schedule = scheduleOf(plan.schedule);
  const { ahead, delay = 0 } = paceOf(plan, stage, schedule);
  return schedule.isStream ? ahead + 1 : ahead + delay;
}

/**
 * The most buckets of a stage. More would cost a device more in handing values from graph to graph than they hide. A
 * stage whose plan does not name them has as many as it can, of about as many layers each.
 */
export const bucketLimit: number = 4;

/**
 * The layers of a stage in the buckets in which their gradients are reduced, the deepest first; one where the schedule
 * does not overlap, or there is no group.
 */
export function bucketsOf(plan: PlanLayout, stage: number): readonly LayerRange[] {
  const found = plan.stages[stage];
  if (found === undefined) return [];
  const [first, end] = found.layers;
  if (!scheduleOf(plan.schedule).overlapsAllReduce || found.devices.length < 2 || isForwardOnly(plan, stage))
    return [[first, end]];
  const count = Math.min(bucketLimit, end - first);
  const even = Array.from(
    { length: count - 1 },
    (_, index) => first + Math.round(((index + 1) * (end - first)) / count),
  );
  const borders = [first, ...(found.buckets ?? even), end];
  return borders
    .slice(1)
    .map((border, index): LayerRange => [borders[index] as number, border])
    .reverse();
}
