// How many bytes a round moves between devices, by Asteroid's eq. 1 (hybrid data parallelism, HetPipe's) and eq. 2 (hybrid pipeline
// parallelism). Inputs and labels are not counted, as there.

import { assert } from '../assert.ts';
import type { PlanLayout, Profile, StagePlan } from '../cluster/cluster.ts';
import { layerSums } from '../cluster/memory.ts';

/** Eq. 1 for a plan with virtual workers, else eq. 2. */
export function volumeBytes(plan: PlanLayout, profile: Profile): number {
  return plan.virtualWorkers === undefined ? hppVolumeBytes(plan, profile) : hdpVolumeBytes(plan, profile);
}

/**
 * Eq. 1: V_HDP = 2GP + Σ_i 2β_i Σ_j a_{i,j}, without the first term for G = 1; P bytes of weights, G virtual workers, of which the i-th
 * computes β_i samples of a round in a pipeline whose j-th cut carries a_{i,j} bytes a sample.
 */
function hdpVolumeBytes({ virtualWorkers = [], microBatchSize }: PlanLayout, profile: Profile): number {
  assert(virtualWorkers.length > 0, 'a plan of virtual workers has one at least');
  const synchronized =
    virtualWorkers.length === 1 ? 0 : 2 * virtualWorkers.length * layerSums(profile).weightBytes(0, profile.layers.length);
  return virtualWorkers.reduce(
    (sum, { stages, microBatchCount }) => sum + 2 * microBatchCount * microBatchSize * cutBytesPerSample(stages, profile),
    synchronized,
  );
}

/** Eq. 2: V_HPP = Σ_i 2(|g_i| − 1)P_i + 2β Σ_j a_j; a single group has no cut, so that its two cases are one. */
function hppVolumeBytes({ stages, batchSize }: PlanLayout, profile: Profile): number {
  const sums = layerSums(profile);
  const reduced = stages.reduce((sum, { layers, devices }) => sum + 2 * (devices.length - 1) * sums.weightBytes(...layers), 0);
  return reduced + 2 * batchSize * cutBytesPerSample(stages, profile);
}

function cutBytesPerSample(stages: readonly StagePlan[], profile: Profile): number {
  return stages.slice(0, -1).reduce((sum, { layers: [, end] }) => sum + (profile.layers[end - 1]?.outputBytes ?? 0), 0);
}
