// The plan of a run: the planner's best, or, where every device is to compute, the best of the plans that leave none
// out.

import type { Plan } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import { type CompressInput, planCompressed, planCompressedSteps } from '../../planner/compress.ts';
import type { Steps } from '../../planner/steps.ts';

/** Planners to ask, after the chosen one, for a plan over all devices. */
const fallbacks = ['dp', 'straight'] as const;

/**
 * The chosen planner's plan. With `useAll`: if that leaves a device out, the fastest that does not; if there is none,
 * the planner's all the same.
 */
export function* choosePlanSteps(input: CompressInput, useAll: boolean): Steps<Plan> {
  const best = yield* planCompressedSteps(input);
  const deviceCount = input.cluster.devices.length;
  if (!useAll || usedDeviceCount(best) === deviceCount) return best;
  const others = fallbacks.flatMap((planner) => planOrNothing({ ...input, planner }) ?? []);
  const complete = others.filter((found) => usedDeviceCount(found) === deviceCount);
  return complete.sort((a, b) => a.predicted.roundMs - b.predicted.roundMs)[0] ?? best;
}

/** Devices that a plan gives work. */
export function usedDeviceCount(plan: Pick<Plan, 'stages'>): number {
  return new Set(plan.stages.flatMap((stage) => stage.devices)).size;
}

function planOrNothing(input: CompressInput): Plan | undefined {
  try {
    return planCompressed(input);
  } catch (error) {
    if (error instanceof InputError) return undefined; // this planner cannot plan this; another may
    throw error;
  }
}
