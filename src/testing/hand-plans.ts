// Plans written in one line: cuts, shares, schedule and micro-batches.

import type { PlanLayout } from '../cluster/cluster.ts';
import { createRandom, type Random } from '../random.ts';
import { scheduleNames, scheduleOf } from '../schedule/schedules.ts';

/** What a plan is made of; devices are called a, b, c, … in the order of the stages. */
export interface HandPlan {
  readonly schedule: string;
  /** The first layer of each stage but the first. */
  readonly cuts: readonly number[];
  /** For each stage, the samples of its devices. */
  readonly shares: readonly (readonly number[])[];
  readonly microBatchCount: number;
}

/** The plan for a model of so many layers. */
export function handPlan({ schedule, cuts, shares, microBatchCount }: HandPlan, layerCount: number): PlanLayout {
  const borders = [0, ...cuts, layerCount];
  const microBatchSize = (shares[0] ?? []).reduce((sum, share) => sum + share, 0);
  let device = 0;
  return {
    planner: 'by hand',
    schedule,
    batchSize: microBatchSize * microBatchCount,
    microBatchSize,
    microBatchCount,
    stages: shares.map((samples, stage) => ({
      layers: [borders[stage] as number, borders[stage + 1] as number],
      devices: samples.map(() => String.fromCharCode(97 + device++)),
      samples,
      inFlight: scheduleOf(schedule).inFlight(stage, shares.length, microBatchCount),
    })),
  };
}

/**
 * A random plan for a batch of `batchSize`: up to three stages of up to three devices, some of them without samples.
 */
export function randomHandPlan(seed: number, layerCount: number, batchSize: number): HandPlan {
  const random = createRandom(seed, 0x91a4);
  const stageCount = 1 + random.integer(Math.min(3, layerCount));
  const microBatchCounts = [1, 2, 4].filter((count) => batchSize % count === 0);
  const microBatchCount = microBatchCounts[random.integer(microBatchCounts.length)] as number;
  const borders = new Set<number>();
  while (borders.size < stageCount - 1) borders.add(1 + random.integer(layerCount - 1));
  return {
    schedule: scheduleNames[random.integer(scheduleNames.length)] as string,
    cuts: [...borders].sort((a, b) => a - b),
    shares: Array.from({ length: stageCount }, () =>
      randomShares(batchSize / microBatchCount, 1 + random.integer(3), random),
    ),
    microBatchCount,
  };
}

function randomShares(total: number, count: number, random: Random): number[] {
  const cuts = Array.from({ length: count - 1 }, () => random.integer(total + 1)).sort((a, b) => a - b);
  return [...cuts, total].map((cut, index) => cut - (cuts[index - 1] ?? 0));
}
