// Plans for senders that choose the bits of activations (`--activation-bits auto`): which layers a device gets depends
// on what links carry, and so on the bits that will be chosen. Pure and deterministic.

import type { Plan } from '../../cluster/cluster.ts';
import { activationEncodingNames } from '../../cluster/compression.ts';
import type { Steps } from '../steps.ts';
import { type InferencePlanInput, planInferenceSteps } from './plan.ts';

/** What a plan with more bits may lose against the best, since bits cost accuracy. */
const worthOfBits = 0.95;

/** `isTimeUp` is asked whether a fraction of the time is over. */
export type AdaptivePlanInput = Omit<InferencePlanInput, 'encoding' | 'isAdaptive' | 'isTimeUp' | 'onBetter'> & {
  readonly isTimeUp?: (fraction: number) => boolean;
};

/** The plan with the most bits that is nearly as good as the best of any bits; it begins with them. */
export function* adaptivePlanSteps({ isTimeUp, ...input }: AdaptivePlanInput): Steps<Plan> {
  const plans: Plan[] = [];
  const count = activationEncodingNames.length;
  for (const [index, encoding] of activationEncodingNames.entries()) {
    const own = isTimeUp === undefined ? {} : { isTimeUp: () => isTimeUp((index + 1) / count) };
    const steps = planInferenceSteps({ ...input, ...own, encoding, isAdaptive: true });
    for (let step = steps.next(); ; step = steps.next()) {
      if (step.done === true) {
        plans.push(step.value);
        break;
      }
      yield (index + step.value) / count;
    }
  }
  const goodness = ({ predicted }: Plan): number =>
    input.objective === 'latency' ? 1 / (predicted.latencyMs ?? predicted.roundMs) : predicted.samplesPerS;
  const best = Math.max(...plans.map(goodness));
  return plans.find((plan) => goodness(plan) >= worthOfBits * best) as Plan;
}
