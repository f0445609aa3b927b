// Planning for strict runs, in which devices compute samples in blocks of one size, the grains
// (runtime/device/grained-passes.ts). The profile is converted so that planners see a grain as a sample: they share out
// grains, and k grains take k times as long as one.

import type { DeviceTimes, LayerProfile, Plan, Profile } from '../cluster/cluster.ts';
import { withoutFused } from '../cluster/overhead.ts';
import { rangeTimes, timeTables } from '../cluster/times.ts';
import { InputError } from '../errors.ts';

/** The profile in grains instead of samples: a device's time for one grain is its time for `grain` samples. */
export function profileInGrains(profile: Profile, grain: number): Profile {
  const { batchSizes, layers, devices } = profile;
  // A strict last stage does not run a step as one graph.
  const inGrains = (times: DeviceTimes): DeviceTimes => {
    const tables = timeTables(withoutFused(times)).map(([field, table]) => {
      const timeMs = rangeTimes(table, batchSizes);
      return [field, [layers.map((_, layer) => timeMs(layer, layer + 1, grain))]];
    });
    return { ...withoutFused(times), ...Object.fromEntries(tables) };
  };
  const larger = ({ outputBytes, savedBytes, flops, recomputed, ...rest }: LayerProfile): LayerProfile => ({
    ...rest,
    outputBytes: grain * outputBytes,
    savedBytes: grain * savedBytes,
    flops: grain * flops,
    ...(recomputed === undefined
      ? {}
      : { recomputed: { savedBytes: grain * recomputed.savedBytes, flops: grain * recomputed.flops } }),
  });
  return {
    ...profile,
    inputBytes: grain * profile.inputBytes,
    labelBytes: grain * profile.labelBytes,
    layers: layers.map(larger),
    batchSizes: [1],
    devices: Object.fromEntries(Object.entries(devices).map(([name, times]) => [name, inGrains(times)])),
  };
}

/** A plan in grains instead of samples. Throws InputError if a share is not a multiple of the grain. */
export function planInGrains(plan: Plan, grain: number): Plan {
  checkGrains(plan, grain);
  return scaled(plan, 1 / grain);
}

/** A plan made in grains, converted back to samples. */
export function planInSamples(plan: Plan, grain: number): Plan {
  return scaled(plan, grain);
}

/** Throws InputError unless shares and micro-batches are multiples of the grain. */
export function checkGrains({ microBatchSize, stages }: Pick<Plan, 'microBatchSize' | 'stages'>, grain: number): void {
  const fits = (samples: number): boolean => samples % grain === 0;
  const odd = [microBatchSize, ...stages.flatMap(({ samples }) => samples)].find((samples) => !fits(samples));
  if (odd === undefined) return;
  throw new InputError(
    `A strict run computes ${grain} samples at a time, and the plan has a share of ${odd}: make shares and ` +
      `micro-batches multiples of ${grain}, or give another --grain.`,
  );
}

function scaled(plan: Plan, factor: number): Plan {
  const size = (samples: number): number => Math.round(samples * factor);
  const { predicted } = plan;
  return {
    ...plan,
    batchSize: size(plan.batchSize),
    microBatchSize: size(plan.microBatchSize),
    stages: plan.stages.map((stage) => ({
      ...stage,
      samples: stage.samples.map(size),
      ...(stage.savedBytes === undefined ? {} : { savedBytes: stage.savedBytes.map((bytes) => bytes / factor) }),
    })),
    predicted: { ...predicted, samplesPerS: predicted.samplesPerS * factor },
  };
}
