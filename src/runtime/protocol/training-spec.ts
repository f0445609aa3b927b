// A run's training settings, as plain data that travel to every device: loss, optimizer, clipping, seed. Validated
// wherever they are read.

import { z } from 'zod';
import type { OptimizerState } from '../../cluster/memory.ts';
import { type NoiseKind, noiseKinds } from '../../noise.ts';
import { type LossKind, lossKinds } from '../../training/losses.ts';
import type { Correction } from '../../training/staleness.ts';
import { type OptimizerKind, optimizerKinds } from '../../training/update-rules.ts';

/** Settings of the optimizer; each kind reads its own. */
export interface OptimizerSpec {
  readonly kind: OptimizerKind;
  readonly momentum: number;
  readonly nesterov: boolean;
  readonly weightDecay: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  /** Of the weights' moving average. Absent: none is kept. */
  readonly averageDecay?: number;
}

/** The settings of a run that every device must agree on. */
export interface TrainingSpec {
  /** Nothing is trained: only forward passes count, and the rest says nothing. Absent: it trains. */
  readonly isInference?: true;
  /** Samples of a round: gradients are those of the mean over them. */
  readonly batchSize: number;
  /** Samples of a smaller round at an epoch's end, for which devices get ready. Absent: the run comes to none. */
  readonly restSize?: number;
  readonly loss: LossKind;
  /** True if some labels are left out (`LossOptions.ignoresNegative`). Absent: all count. */
  readonly ignoresNegative?: boolean;
  readonly optimizer: OptimizerSpec;
  /** Largest global gradient norm; null: no clipping. */
  readonly clipNorm: number | null;
  /** Seeds dropout, together with the round and each sample's place in the batch. */
  readonly seed: number;
  /** Parameters that stay as they are. */
  readonly frozen: readonly string[];
  /** Bytes that kept activations may take on each device; 'auto': what its memory allows; absent: no limit. */
  readonly recompute?: 'auto' | number | undefined;
  /**
   * Strict: samples are computed in blocks of this size and gradients added in the blocks' order, so that plans with
   * the same micro-batches give the same bits. Shares are multiples of it. Absent: not strict.
   */
  readonly grain?: number | undefined;
  /** Where rounds overlap, K of weight aggregation (training/aggregation.ts). Absent: never. */
  readonly aggregate?: number;
  /** Where rounds overlap, what makes up for weights that lag behind (training/staleness.ts). Absent: nothing. */
  readonly stalenessCorrection?: Correction['kind'];
  /** Rounds until stale gradients get the whole learning rate (training/staleness.ts, `delayedRate`). Absent: none. */
  readonly rampRounds?: number;
  /** The run trains by forward gradients. Absent: by backpropagation. */
  readonly forwardGradient?: ForwardGradientSpec;
}

/** How directions are drawn (noise.ts, with the seed of the run), and which ones. */
export interface ForwardGradientSpec {
  /** Directions of a round, whose estimates are averaged. */
  readonly tangentCount: number;
  readonly kind: NoiseKind;
  /** Factors of directions other than 1, by parameter. */
  readonly scales: Readonly<Record<string, TangentScale>>;
  /** Ramps grow from epoch to epoch. */
  readonly roundsPerEpoch: number;
  /** What is moved in place of weights: what layers give (activity-perturbation.ts). Absent: weights. */
  readonly perturbs?: 'activations';
  /** The step of two forward passes that give the derivative (finite-difference.ts). Absent: tangents do. */
  readonly difference?: number;
}

/** α of a parameter's direction. */
export interface TangentScale {
  readonly factor: number;
  /** Epochs in which it grows from 0 in the first to `factor` (AsyncFGD, App. I.1); 0: it is constant. */
  readonly rampEpochs: number;
}

/** The factor of a parameter's direction in a round. */
export function tangentScaleOf({ scales, roundsPerEpoch }: ForwardGradientSpec, name: string, round: number): number {
  const { factor, rampEpochs } = (Object.hasOwn(scales, name) ? scales[name] : undefined) ?? {
    factor: 1,
    rampEpochs: 0,
  };
  return rampEpochs === 0 ? factor : factor * Math.min(1, Math.floor(round / roundsPerEpoch) / rampEpochs);
}

/** The most directions of a round: each is in the graphs. */
export const tangentLimit: number = 64;

const fraction = z.number().min(0).max(1);

export const trainingSpecSchema: z.ZodType<TrainingSpec> = z.object({
  isInference: z.literal(true).exactOptional(),
  batchSize: z.number().int().positive(),
  restSize: z.number().int().positive().exactOptional(),
  loss: z.enum(lossKinds),
  ignoresNegative: z.boolean().exactOptional(),
  optimizer: z.object({
    kind: z.enum(optimizerKinds),
    momentum: fraction,
    nesterov: z.boolean(),
    weightDecay: z.number().min(0),
    beta1: fraction,
    beta2: fraction,
    epsilon: z.number().positive(),
    averageDecay: z.number().min(0).lt(1).exactOptional(),
  }),
  clipNorm: z.number().positive().nullable(),
  seed: z.number().int(),
  frozen: z.array(z.string()),
  recompute: z.union([z.literal('auto'), z.number().min(0)]).optional(),
  grain: z.number().int().positive().max(1e6).optional(),
  aggregate: z.number().int().positive().max(1e9).exactOptional(),
  stalenessCorrection: z.enum(['predict', 'nesterov']).exactOptional(),
  rampRounds: z.number().int().positive().exactOptional(),
  forwardGradient: z
    .object({
      tangentCount: z.number().int().positive().max(tangentLimit),
      kind: z.enum(noiseKinds),
      scales: z.record(z.string(), z.object({ factor: z.number().min(0), rampEpochs: z.number().int().min(0) })),
      roundsPerEpoch: z.number().int().positive(),
      perturbs: z.literal('activations').exactOptional(),
      difference: z.number().positive().exactOptional(),
    })
    .exactOptional(),
});

/** Values that the optimizer keeps for each weight (eq. 3's s): momentum, Lion 1, Adam 2; a moving average one more. */
export function optimizerStateCount({
  optimizer: { kind, momentum, averageDecay },
}: Pick<TrainingSpec, 'optimizer'>): OptimizerState {
  const hasAverage = averageDecay !== undefined;
  if (kind === 'adam' || kind === 'adamw') return hasAverage ? 3 : 2;
  if (kind === 'lion' || momentum > 0) return hasAverage ? 2 : 1;
  return hasAverage ? 1 : 0;
}
