// The plan of a run in this process: one device that computes the whole model.

import type { Plan } from '../../cluster/cluster.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';

/** The name of this process as a device. */
export const localDevice = 'this process';

/** The plan of a single device that computes all layers; nothing is predicted. */
export function localPlan(
  layerCount: number,
  batchSize: number,
  microBatchSize: number,
  { forwardGradient }: Pick<TrainingSpec, 'forwardGradient'> = {},
): Plan {
  return {
    planner: 'single',
    schedule: forwardGradient === undefined ? '1f1b' : 'forward-gradient',
    batchSize,
    microBatchSize,
    microBatchCount: batchSize / microBatchSize,
    stages: [{ layers: [0, layerCount], devices: [localDevice], samples: [microBatchSize], inFlight: 1 }],
    ...(forwardGradient === undefined ? {} : { tangentCount: forwardGradient.tangentCount }),
    predicted: { roundMs: 0, samplesPerS: 0, peakMemoryMiB: {} },
  };
}
