// ResPipe's recovery, as FTPipeHD describes and measures it (§IV-E, its reference 37): the next worker of a failed one
// takes over all of its layers, of which it has the copy. Nothing moves, and nothing is balanced again. A baseline.

import type { Plan, PlanLayout, Profile, StagePlan } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import { scheduleOf } from '../../schedule/schedules.ts';
import { predictedPlan } from '../predict.ts';
import { type ReplanInput, remaining, survivingStages } from './survivors.ts';

/**
 * The plan in which the stage after a lost one has its layers too; the last one's go to the stage before. A stage that
 * keeps a device is not a lost one: its first device gets the samples of those that are gone. InputError, with the
 * device and what it lacks, if that does not fit.
 */
export function takeOver(input: ReplanInput & { readonly profile: Profile }): Plan {
  const { plan, profile, lost, optimizerState = 0 } = input;
  const cluster = remaining(input.cluster, lost);
  const found = predictedPlan(takenOver(plan, lost), profile, cluster, optimizerState);
  for (const [name, neededMiB] of Object.entries(found.predicted.peakMemoryMiB)) {
    const hasMiB = cluster.devices.find((device) => device.name === name)?.memoryMiB ?? 0;
    if (neededMiB > hasMiB)
      throw new InputError(
        `Device "${name}" would have to take over the layers of a lost one, for which it needs ` +
          `${Math.ceil(neededMiB)} MiB and has ${Math.floor(hasMiB)}; let the layers be shared out again.`,
      );
  }
  return found;
}

/** The layout alone. */
export function takenOver(plan: PlanLayout, lost: readonly string[]): PlanLayout {
  const survivors = survivingStages(plan, lost);
  const { staleness: _, ...rest } = plan;
  const schedule = scheduleOf(plan.schedule);
  const stages = survivors.map(({ stage, devices }, index): StagePlan => {
    const before = plan.stages[stage] as StagePlan;
    const first = index === 0 ? 0 : (plan.stages[survivors[index - 1]?.stage ?? 0]?.layers[1] ?? 0);
    const end = index === survivors.length - 1 ? (plan.stages.at(-1)?.layers[1] ?? 0) : before.layers[1];
    const kept = before.devices.flatMap((device, place) => (devices.includes(device) ? [place] : []));
    const samples = kept.map((place) => before.samples[place] ?? 0);
    const missing = plan.microBatchSize - samples.reduce((sum, share) => sum + share, 0);
    const { savedBytes: __, buckets: ___, ...same } = before;
    return {
      ...same,
      layers: [first, end],
      devices,
      samples: samples.map((share, place) => (place === 0 ? share + missing : share)),
      inFlight: Math.min(before.inFlight, schedule.inFlight(index, survivors.length, plan.microBatchCount)),
    };
  });
  return { ...rest, stages };
}
