// How long a plan of inference takes for a round, by other times than it was made with.

import { defined } from '../../assert.ts';
import type { Cluster, PlanLayout, Profile } from '../../cluster/cluster.ts';
import { links } from '../../cluster/links.ts';
import { evaluate } from './evaluate.ts';
import { inferenceProblem } from './problem.ts';

/** Milliseconds in the steady state. Devices without samples take no part. */
export function inferenceRoundMs(plan: PlanLayout, profile: Profile, cluster: Cluster): number {
  const { microBatchSize, microBatchCount, compression } = plan;
  const problem = inferenceProblem({ profile, cluster, microBatchSize, encoding: compression?.activation });
  const table = links(cluster);
  const layouts = plan.stages.map(({ layers, devices, samples }) => {
    const busy = devices.flatMap((device, index) => {
      const count = defined(samples[index], 'samples');
      return count === 0 ? [] : [{ place: table.deviceIndex(device), count }];
    });
    return { layers, devices: busy.map(({ place }) => place), samples: busy.map(({ count }) => count) };
  });
  return microBatchCount * evaluate(problem, layouts).periodMs;
}
