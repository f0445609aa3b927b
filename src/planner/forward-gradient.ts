// Planning for forward gradients. The profile is converted so that planners see passes with tangents as forward passes
// of a net in which nothing is trained: no backward passes, nothing kept, no gradients on links, no AllReduce, and
// tangents travel with the activations. Where rounds overlap, a round is a micro-batch of a long stream, so that the
// plan is the one with the shortest period. What the plan takes is then simulated as it runs.

import type { Cluster, DeviceTimes, LayerProfile, Plan, PlanLayout, Profile } from '../cluster/cluster.ts';
import { forwardOnlyCount } from '../cluster/forward-only.ts';
import type { OptimizerState } from '../cluster/memory.ts';
import { withoutFused } from '../cluster/overhead.ts';
import { tangentTable } from '../cluster/times.ts';
import { type PlanInput, planSteps } from './plan.ts';
import { predictedPlan } from './predict.ts';
import type { Steps } from './steps.ts';

/** What a run by forward gradients is planned for. */
export interface TangentPlanInput extends Omit<PlanInput, 'staleness'> {
  /** Tangents of a round. */
  readonly tangentCount: number;
  /** 0: rounds follow each other. Absent: P − 1 − p. */
  readonly staleness?: 0;
}

/**
 * The micro-batch of a run where nobody gives one: memory is in proportion to it, and the sum of the derivatives is the
 * same. With 16 of 64 samples MobileNetV3-Small takes half the memory of the whole batch and 6 % more time, with 8 a
 * tenth less memory and 9 % more time (bench/results/2026-11-28-forward-gradient.md).
 */
export function tangentMicroBatch(batchSize: number): number {
  const sizes = Array.from({ length: batchSize }, (_, index) => index + 1).filter((size) => batchSize % size === 0);
  const few = sizes.filter((size) => size <= largestMicroBatch).at(-1) ?? 1;
  // Batches of a prime number of samples: rather too many at once than one by one.
  return few > largestMicroBatch / 4 ? few : (sizes.find((size) => size > few) ?? few);
}

const largestMicroBatch = 16;

/** Rounds of the stream that planners see: filling and draining are little beside them. */
const streamRounds = 64;

/** The named planner's plan, in steps. Throws InputError as planSteps does. */
export function* planTangentSteps({ tangentCount, staleness, ...input }: TangentPlanInput): Steps<Plan> {
  const { profile, cluster, batchSize, optimizerState } = input;
  const isStream = staleness === undefined;
  const microBatchSize = input.microBatchSize ?? profile.fixedBatch ?? tangentMicroBatch(batchSize);
  const { schedule: _, onBetter: __, ...rest } = input;
  const found = yield* planSteps({
    ...rest,
    profile: tangentProfile(profile, tangentCount, optimizerState),
    batchSize: isStream ? streamRounds * batchSize : batchSize,
    microBatchSize,
    schedule: 'gpipe',
    mayRecompute: false,
  });
  const { predicted: ___, forwardOnlyLayers: ____, ...layout } = found;
  const forwardOnlyLayers = forwardOnlyCount(profile);
  return predictedTangentPlan(
    {
      ...layout,
      schedule: 'forward-gradient',
      batchSize,
      microBatchCount: batchSize / found.microBatchSize,
      stages: found.stages.map((stage) => ({ ...stage, inFlight: 1 })),
      staleness: found.stages.map((_stage, index) => (isStream ? found.stages.length - 1 - index : 0)),
      tangentCount,
      ...(forwardOnlyLayers === 0 ? {} : { forwardOnlyLayers }),
    },
    { profile, cluster, optimizerState },
  );
}

/** Such plans in the place of another, of as many tangents, whose rounds overlap or not as they did. */
export function wishOfTangents({
  staleness,
  tangentCount = 1,
}: PlanLayout): Pick<TangentPlanInput, 'tangentCount' | 'staleness'> {
  const overlaps = staleness === undefined || staleness.length === 1 || staleness.some((own) => own > 0);
  return { tangentCount, ...(overlaps ? {} : { staleness: 0 }) };
}

/** A plan with what the simulator says of it as it runs, and what its devices hold. */
export function predictedTangentPlan(
  plan: PlanLayout,
  input: { readonly profile: Profile; readonly cluster: Cluster; readonly optimizerState: OptimizerState },
): Plan {
  const profile = withTangentMemory(input.profile, plan.tangentCount ?? 1, input.optimizerState);
  return predictedPlan(plan, profile, input.cluster, 0);
}

/** The profile as planners see it. */
export function tangentProfile(profile: Profile, tangentCount: number, optimizerState: OptimizerState): Profile {
  const frozenCount = forwardOnlyCount(profile);
  const { layers, devices, ...rest } = withTangentMemory(profile, tangentCount, optimizerState);
  return {
    ...rest,
    layers: layers.map((layer, index) => ({
      ...layer,
      frozenBytes: layer.weightBytes,
      outputBytes: layer.outputBytes * (index < frozenCount || index === layers.length - 1 ? 1 : 1 + tangentCount),
    })),
    devices: Object.fromEntries(
      Object.entries(devices).map(([name, times]) => [name, forwardTimes(times, frozenCount)]),
    ),
  };
}

/** Passes with tangents as forward passes; leading layers without trained weights have none. */
function forwardTimes(times: DeviceTimes, frozenCount: number): DeviceTimes {
  const { backwardInputMs: _, backwardWeightMs: __, tangentMs: ___, ...rest } = withoutFused(times);
  return {
    ...rest,
    forwardMs: tangentTable(times).map((row, point) =>
      row.map((ms, layer) => (layer < frozenCount ? (times.forwardMs[point]?.[layer] ?? ms) : ms)),
    ),
    backwardMs: times.forwardMs.map((row) => row.map(() => 0)),
  };
}

/**
 * What a pass has at once, over a layer's inputs and outputs with their tangents: up to 3.0 in the runtime's own order
 * for six nets and one and four tangents, 1.6 to 2.5 for most (bench/results/2026-11-28-forward-gradient.md).
 */
const workingFactor = 3;

/**
 * The profile with nothing saved, and memory as forward gradients need it: of trained weights the version before the
 * last update, and either the directions, or the one estimate of the gradient; the optimizer's copies; and the
 * activations of one layer at a time, with their tangents.
 */
export function withTangentMemory(profile: Profile, tangentCount: number, optimizerState: OptimizerState): Profile {
  const frozenCount = forwardOnlyCount(profile);
  const layers = profile.layers.map((layer, index): LayerProfile => {
    const { recomputed: _, frozenBytes = 0, ...rest } = layer;
    const activationBytes = (profile.layers[index - 1]?.outputBytes ?? 0) + layer.outputBytes;
    const workingBytes = workingFactor * (index < frozenCount ? 1 : 1 + tangentCount) * activationBytes;
    const trainedBytes = layer.weightBytes - frozenBytes;
    // Of eq. 3's two copies, one is the gradient, which is not there beside the directions: it stands for the version.
    const more = (tangentCount + optimizerState) * trainedBytes;
    return {
      ...rest,
      weightBytes: layer.weightBytes + more,
      frozenBytes: frozenBytes + more,
      savedBytes: 0,
      workingBytes,
    };
  });
  return { ...profile, layers };
}
