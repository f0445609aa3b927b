// The simulator's result as a plan's prediction.

import type { Cluster, Plan, PlanLayout, Profile } from '../cluster/cluster.ts';
import type { OptimizerState } from '../cluster/memory.ts';
import { program } from '../schedule/generate.ts';
import { simulate } from '../simulator/simulate.ts';

/**
 * The plan with its round, throughput and memory by the rules of the simulated world. The three agree (checkTogether).
 */
export function predictedPlan(
  layout: PlanLayout,
  profile: Profile,
  cluster: Cluster,
  optimizerState: OptimizerState,
): Plan {
  const { roundMs, samplesPerS, devices } = simulate(program(layout), layout, profile, cluster, {
    optimizerState,
    events: false,
  });
  const used = layout.stages.flatMap((stage) => stage.devices);
  const peakMemoryMiB = Object.fromEntries(used.map((name) => [name, devices[name]?.peakMemoryMiB ?? 0]));
  return { ...layout, predicted: { roundMs, samplesPerS, peakMemoryMiB } };
}
