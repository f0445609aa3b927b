// Asteroid's communication volumes of one round, eq. 1 and eq. 2: bytes over all links together, for two ways to
// combine pipelines with data parallelism. The paper's Table 2 compares them.

import type { PlanLayout, Profile, StagePlan } from '../cluster/cluster.ts';
import { layerSums } from '../cluster/memory.ts';

/** A group of hybrid data parallelism: a pipeline over the whole model. */
export interface DataParallelGroup {
  /** β_i: the samples of a round that this group handles. */
  readonly samples: number;
  /** a_{i,j}: bytes a sample at each of its |g_i| − 1 borders. */
  readonly borderBytes: readonly number[];
}

/**
 * Eq. 1, hybrid data parallelism with a parameter server (HetPipe): 2GP + Σ_i 2β_i Σ_j a_{i,j} for G > 1 groups; a
 * single group needs no server and has 2β Σ_j a_j. `weightBytes` is P.
 */
export function dataParallelVolume(groups: readonly DataParallelGroup[], weightBytes: number): number {
  const piped = groups.reduce((sum, { samples, borderBytes }) => sum + 2 * samples * total(borderBytes), 0);
  return groups.length > 1 ? 2 * groups.length * weightBytes + piped : piped;
}

/** A group of hybrid pipeline parallelism: one stage. */
export interface PipelineGroup {
  /** |g_i|. */
  readonly deviceCount: number;
  /** P_i. */
  readonly weightBytes: number;
  /** a_i: bytes a sample at its border to the next; ignored for the last. */
  readonly borderBytes: number;
}

/** Eq. 2, hybrid pipeline parallelism: Σ_i 2(|g_i| − 1)P_i + 2β Σ_j a_j over the G − 1 borders. `batchSize` is β. */
export function pipelineVolume(groups: readonly PipelineGroup[], batchSize: number): number {
  const reduced = groups.reduce((sum, { deviceCount, weightBytes }) => sum + 2 * (deviceCount - 1) * weightBytes, 0);
  return reduced + 2 * batchSize * total(groups.slice(0, -1).map(({ borderBytes }) => borderBytes));
}

/** The volume of a plan: eq. 1 for one with virtual workers, else eq. 2. */
export function volumeBytes(plan: PlanLayout, profile: Profile): number {
  const sums = layerSums(profile);
  const borderBytes = (stage: StagePlan): number => profile.layers[stage.layers[1] - 1]?.outputBytes ?? 0;
  if (plan.virtualWorkers !== undefined) {
    const groups = plan.virtualWorkers.map(({ stages, microBatchCount }) => ({
      samples: microBatchCount * plan.microBatchSize,
      borderBytes: stages.slice(0, -1).map(borderBytes),
    }));
    return dataParallelVolume(groups, sums.weightBytes(0, profile.layers.length));
  }
  const groups = plan.stages.map((stage) => ({
    deviceCount: stage.devices.length,
    weightBytes: sums.weightBytes(...stage.layers),
    borderBytes: borderBytes(stage),
  }));
  return pipelineVolume(groups, plan.batchSize);
}

function total(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}
