// A straight pipeline over all devices, with about as many floating-point operations on each: what a run that only
// infers does where nothing is measured.

import type { BitsWish } from '../../cluster/activation-bits.ts';
import type { Plan } from '../../cluster/cluster.ts';
import type { LayerSequence } from '../../graph/layers.ts';
import { inferenceSchedule } from '../../schedule/schedules.ts';

/** The name of the planner. */
export const unmeasuredPlanner = 'unmeasured';

/** Samples of a round, and of its micro-batches. */
export interface RoundSize {
  readonly batchSize: number;
  readonly microBatchSize: number;
}

export interface UnmeasuredOptions extends RoundSize {
  /** In what activations travel. Absent: as they are. */
  readonly bits?: BitsWish;
}

/** Devices beyond the number of layers stay without work. Nothing is predicted. */
export function unmeasuredPlan(
  { layers }: Pick<LayerSequence, 'layers'>,
  devices: readonly string[],
  { batchSize, microBatchSize, bits }: UnmeasuredOptions,
): Plan {
  const count = Math.min(devices.length, layers.length);
  const total = layers.reduce((sum, { flops }) => sum + flops, 0);
  const cuts = [0];
  let passed = 0;
  for (const [layer, { flops }] of layers.entries()) {
    const left = count - cuts.length;
    const isDue = total > 0 && passed + flops / 2 >= (cuts.length * total) / count;
    // Each stage gets a layer at least.
    const isLast = layers.length - layer <= left;
    if (layer > 0 && layer > (cuts.at(-1) ?? 0) && left > 0 && (isDue || isLast)) cuts.push(layer);
    passed += flops;
  }
  return {
    planner: unmeasuredPlanner,
    schedule: inferenceSchedule,
    batchSize,
    microBatchSize,
    microBatchCount: Math.ceil(batchSize / microBatchSize),
    stages: cuts.map((first, stage) => ({
      layers: [first, cuts[stage + 1] ?? layers.length],
      devices: [devices[stage] as string],
      samples: [microBatchSize],
      inFlight: Math.ceil(batchSize / microBatchSize),
    })),
    ...(bits === undefined || cuts.length === 1
      ? {}
      : { compression: { activation: bits.encoding, ...(bits.isAdaptive ? { adaptive: {} } : {}) } }),
    predicted: { roundMs: 0, samplesPerS: 0, peakMemoryMiB: {} },
  };
}
