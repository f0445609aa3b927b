// The plan of a run in this process: one device that computes the whole model.

import type { Plan } from '../../cluster/cluster.ts';
import { tangentMicroBatch } from '../../planner/forward-gradient.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';

/** The name of this process as a device. */
export const localDevice = 'this process';

/**
 * The plan of a single device that computes all layers; nothing is predicted. Micro-batches where none are asked for:
 * the batch, and those of forward gradients.
 */
export function localPlan(
  layerCount: number,
  batchSize: number,
  asked: number | undefined,
  { forwardGradient }: Pick<TrainingSpec, 'forwardGradient'> = {},
): Plan {
  const microBatchSize = asked ?? (forwardGradient === undefined ? batchSize : tangentMicroBatch(batchSize));
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
