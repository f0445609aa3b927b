// Recomputation on one device: how many bytes its kept activations may take, and what is computed again so that they
// fit (autodiff/recompute.ts).

import type { DifferentiateOptions } from '../../autodiff/differentiate.ts';
import { type Recomputation, recomputationFront, withinBudget } from '../../autodiff/recompute.ts';
import { recomputationProblem, recomputations } from '../../autodiff/saving.ts';
import type { ForwardPass } from '../../autodiff/split-backward.ts';
import type { LayerProfile } from '../../cluster/cluster.ts';
import { bytesInMiB, stageMemoryBytes } from '../../cluster/memory.ts';
import { type LayerSequence, parameterBytes } from '../../graph/layers.ts';
import type { StageGraph } from '../../graph/stage.ts';
import { passes } from '../../schedule/passes.ts';
import { type DeviceProgram, isPass } from '../../schedule/program.ts';
import { optimizerStateCount, type TrainingSpec } from '../protocol/training-spec.ts';
import { bufferBytes, filterBytes, trainingMiB } from './memory-need.ts';

/** What a stage's share of memory depends on. */
export interface BudgetOptions {
  readonly sequence: LayerSequence;
  readonly program: DeviceProgram;
  readonly training: TrainingSpec;
  /** The device's memory; undefined if it is not known. */
  readonly memoryBytes: number | undefined;
}

/**
 * Bytes that one micro-batch may keep for its backward pass; undefined if there is no limit. Never more than the
 * plan says; `auto` gives the micro-batches in flight what eq. 3 leaves of the device's memory.
 */
export function savedBudgetBytes(options: BudgetOptions): number | undefined {
  const { savedBytes, samples } = options.program;
  const ownBytes = ownBudgetBytes(options);
  return savedBytes === undefined
    ? ownBytes
    : Math.min(savedBytes * (samples[1] - samples[0]), ownBytes ?? Number.POSITIVE_INFINITY);
}

/** Micro-batches over which what a pass needs besides is spread; undefined if bytes to keep were given. */
export function budgetCount({ program, training }: Pick<BudgetOptions, 'program' | 'training'>): number | undefined {
  return typeof training.recompute === 'number' ? undefined : Math.max(1, forwardsInFlight(program));
}

/** `savedBudgetBytes` without a word of the plan. */
function ownBudgetBytes({ sequence, program, training, memoryBytes }: BudgetOptions): number | undefined {
  const { recompute } = training;
  if (recompute === undefined || (recompute === 'auto' && memoryBytes === undefined)) return undefined;
  const inFlight = Math.max(1, forwardsInFlight(program));
  if (recompute !== 'auto') return recompute / inFlight;
  const weights = sequence.layers
    .slice(...program.layers)
    .map((layer) => ({ weightBytes: parameterBytes(sequence, layer), filterBytes: filterBytes(sequence, layer) }));
  const demand = {
    weightBytes: weights.reduce((sum, { weightBytes }) => sum + weightBytes, 0),
    runtimeBytes: weights.reduce((sum, layer) => sum + bufferBytes(layer, training), 0),
    savedBytes: 0,
    inFlight,
    optimizerState: optimizerStateCount(training),
  };
  return (
    Math.max(0, trainingMiB((memoryBytes as number) / bytesInMiB) * bytesInMiB - stageMemoryBytes(demand, 0)) / inFlight
  );
}

/** The most forward passes of a round that wait for their backward pass at once. */
export function forwardsInFlight({ instructions }: Pick<DeviceProgram, 'instructions'>): number {
  let [count, most] = [0, 0];
  for (const step of instructions) {
    if (isPass(step)) count += passes[step.kind].keeps;
    most = Math.max(most, count);
  }
  return most;
}

/**
 * What to compute again so that the rest fits, with the least time; where nothing fits, what keeps the least. Empty
 * where all fits as it is.
 */
export function recomputeWithin(pass: ForwardPass, budgetBytes: number): ReadonlySet<string> {
  const kept = pass.required.reduce((sum, value) => sum + finite(pass.bytes.get(value)), 0);
  if (kept <= budgetBytes) return new Set();
  const front = recomputationFront(recomputationProblem(pass));
  return (withinBudget(front, budgetBytes) ?? (front.at(-1) as Recomputation)).recompute;
}

/** What a pass keeps where all that can be is computed again. */
export interface LeastKept {
  /** Of the whole batch. */
  readonly savedBytes: number;
  /** What runs once more, of the forward pass's time. */
  readonly forwardShare: number;
}

/** The least that a layer can keep for its backward pass. */
export function leastKept(stage: StageGraph, options: Omit<DifferentiateOptions, 'recompute'>): LeastKept | undefined {
  const least = recomputations(stage, options, { forwardMs: 1 }).at(-1);
  return least === undefined ? undefined : { savedBytes: least.savedBytes, forwardShare: least.extraMs };
}

/**
 * Recomputing for a profile; nothing if computing again would not keep less. `savedBytes` is what the layer keeps
 * otherwise, a sample.
 */
export function recomputedSizes(
  least: LeastKept | undefined,
  { savedBytes, flops, batchSize }: { readonly savedBytes: number; readonly flops: number; readonly batchSize: number },
): Pick<LayerProfile, 'recomputed'> {
  const leastBytes = Math.ceil((least?.savedBytes ?? Number.POSITIVE_INFINITY) / batchSize);
  return least === undefined || leastBytes >= savedBytes
    ? {}
    : { recomputed: { savedBytes: leastBytes, flops: Math.ceil(least.forwardShare * flops) } };
}

/** Views are never kept. */
function finite(bytes: number | undefined): number {
  return bytes !== undefined && Number.isFinite(bytes) ? bytes : 0;
}
