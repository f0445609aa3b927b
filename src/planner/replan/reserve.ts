// Reserve plans: what to do if this device is lost, computed before any is, in idle time.

import type { Plan } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import { lightReplan } from './light.ts';
import type { ReplanInput } from './survivors.ts';

/** The light plan without one device, or why there is none. */
export type ReservePlan =
  | { readonly device: string; readonly plan: Plan }
  | { readonly device: string; readonly plan?: undefined; readonly refusal: InputError };

/** For each device of the plan, in its order, the light plan for its loss; one is computed each time the generator is asked. */
export function* reservePlans(input: Omit<ReplanInput, 'lost'>): Generator<ReservePlan, void, void> {
  for (const device of input.plan.stages.flatMap(({ devices }) => devices)) {
    try {
      yield { device, plan: lightReplan({ ...input, lost: [device] }) };
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      yield { device, refusal: error };
    }
  }
}
