// The settings of a training run, as the library takes them; the command line makes them from flags and a config file
// (cli/settings.ts).

import type { DeviceChoice } from '../../engine/engine.ts';
import type { RunningVariance } from '../../graph/graph.ts';
import type { NoiseKind } from '../../noise.ts';
import type { CompressMode } from '../../planner/compress.ts';
import type { DataSettings } from '../../training/data/data-settings.ts';
import type { LossKind } from '../../training/losses.ts';
import type { StalenessCorrection } from '../../training/staleness.ts';
import type { OptimizerKind } from '../../training/update-rules.ts';
import { type RecoveryName, type RecoveryPolicy, recoveryPolicies } from '../knowledge/recovery-policies.ts';
import type { Thoroughness } from '../protocol/profile-points.ts';
import type { BestMetric } from './best-metric.ts';

/** Leaves the schedule to the planner. */
export const autoSchedule = 'auto';

/** How rounds follow each other; auto: as is faster, one after the other or overlapping. */
export const trainModes = ['sync', 'async', 'forward-gradient', 'auto'] as const;

export type TrainMode = (typeof trainModes)[number];

/** What forward gradients move: weights, or what the layers with trained weights give. */
export const perturbedKinds = ['weights', 'activations'] as const;

export type PerturbedKind = (typeof perturbedKinds)[number];

/** All settings with their effective values. Absent ones have no default. */
export interface TrainSettings extends DataSettings {
  readonly model: string;
  /** Sizes of inputs that the model leaves open, as `x=N,3,224,224`. */
  readonly inputShape: readonly string[];
  /** Gives the model a new classifier head with this many classes. */
  readonly headClasses?: number;
  readonly data: string;
  readonly evalData?: string;
  /** Updates between tests; 0: only at the end. Absent: one epoch, or more epochs for at most 20 tests. */
  readonly evalEvery?: number;
  /** By which tests the best model is kept. Absent: the last is the result; with patience, the loss. */
  readonly keepBest?: BestMetric;
  /** Training ends after so many tests without a better one. */
  readonly patience?: number;
  /** Metrics are written as TensorBoard reads them, too. */
  readonly tensorboard: boolean;
  readonly batch: number;
  /** Resolved settings have none: it is in `batch` and `microBatch`. */
  readonly accumulate?: number;
  /** The samples that do not fill a last batch of an epoch are left out of it. */
  readonly dropLast: boolean;
  readonly microBatch?: number;
  readonly epochs?: number;
  readonly steps?: number;
  readonly optimizer: OptimizerKind;
  readonly lr: number;
  readonly lrSchedule: string;
  readonly momentum: number;
  readonly nesterov: boolean;
  readonly weightDecay: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly clipNorm?: number;
  /** The moving average of the weights is tested and kept: how much of it stays in each update. */
  readonly ema?: number;
  readonly loss: LossKind;
  /** The model's output that the loss takes. Absent: its first. */
  readonly output?: string;
  /** A label that is left out of loss, accuracy and gradient, besides −100. */
  readonly ignoreLabel?: number;
  readonly freeze: readonly string[];
  readonly freezeAllBut: readonly string[];
  /** Adapters, `PATTERN:rank=8,alpha=16,dropout=0.05` each; what they are beside is frozen. */
  readonly lora: readonly string[];
  /** The folder of an adapter of PEFT's, from which training goes on. */
  readonly adapter?: string;
  /** Of a run with adapters: weights that are trained whole. */
  readonly modulesToSave: readonly string[];
  /** How thoroughly devices measure the model before the first round. */
  readonly profile: Thoroughness;
  /** Patterns of tensors that are trained although the file does not show that they are parameters. */
  readonly train: readonly string[];
  /** Which statistics batch normalization uses; absent: the batch's, with a note where the file was for inference. */
  readonly batchNorm?: 'inference' | 'training';
  readonly planner: string;
  /** One of schedule/generate.ts, or `autoSchedule`. */
  readonly schedule: string;
  /** Absent: what the given plan is for; without a plan, sync. */
  readonly mode?: TrainMode;
  /** Of an asynchronous run: rounds by which weights lag, in all stages. Absent: the least that the plan allows. */
  readonly staleness?: number;
  /** Of an asynchronous run: whether a round computes with the same version in all stages. */
  readonly verticalSync: boolean;
  /**
   * K of FTPipeHD's weight aggregation: a stage with n versions averages them every K · n updates; 0: never.
   */
  readonly aggregate: number;
  /** Of an asynchronous run: what makes up for weights that lag behind. Absent: see `correctionIn`. */
  readonly stalenessCorrection?: StalenessCorrection;
  /** Of forward gradients: directions of a round, how they are drawn, and `PATTERN=ALPHA[:EPOCHS]` that scale them. */
  readonly tangents: number;
  readonly tangent: NoiseKind;
  readonly tangentScale: readonly string[];
  /** Of forward gradients: what is moved (activity-perturbation.ts). */
  readonly perturb: PerturbedKind;
  /** Of forward gradients: the step of two forward passes in place of tangents. Absent: tangents. */
  readonly tangentDifference?: number;
  /** Of forward gradients: `OUT=IN`, what steps of sequences hand to the next (sequences.ts). None: no sequences. */
  readonly state: readonly string[];
  /** What may travel in fewer bits over links, of a plan that is made here. */
  readonly compress: CompressMode;
  /** Every device computes, even where fewer would be faster. */
  readonly useAll: boolean;
  readonly plan?: string;
  readonly cluster?: string;
  readonly workers: number;
  readonly remote: number;
  readonly host: string;
  readonly port: number;
  /** ADDRESS[:PORT] that workers dial, if it is not where the coordinator listens. */
  readonly advertise?: string;
  readonly insecure: boolean;
  /** Files of an own certificate and its key, instead of the cluster's. */
  readonly tlsCert?: string;
  readonly tlsKey?: string;
  readonly seed: number;
  readonly shuffle: boolean;
  readonly checkpointEvery?: number;
  readonly engine: 'onnxruntime' | 'reference';
  /** What local workers compute on. */
  readonly device: DeviceChoice;
  readonly threads: number;
  readonly replicateBatchNorm: boolean;
  /** Absent: as the model's producer has it. */
  readonly runningVariance?: RunningVariance;
  /** Rounds between two copies of a single-device stage to another device, at least; 0: no copies. */
  readonly replicateEvery?: number;
  /** How the run follows slower devices and losses. Absent: ftpipehd with its planner in asynchronous runs. */
  readonly recovery?: RecoveryName;
  /**
   * The same bits whatever the plan: samples are computed in grains, and gradients added in their order. Needs
   * microBatch.
   */
  readonly strict: boolean;
  /** Samples of a grain in a strict run; absent: about a quarter of the micro-batch. */
  readonly grain?: number;
  /**
   * Activations are computed again where keeping them would take too much memory: bytes a device, or what its memory
   * allows.
   */
  readonly recompute: 'auto' | 'none' | number;
}

/** The run's recovery policy: FTPipeHD's goes with its planner, where rounds overlap. */
export function recoveryOf({ recovery, mode, planner }: TrainSettings): RecoveryPolicy {
  const isTheirs = mode === 'async' && planner === 'ftpipehd';
  return recoveryPolicies[recovery ?? (isTheirs ? 'ftpipehd' : 'asteroid')];
}

/**
 * What makes up for old weights in an asynchronous run: nesterov, which was never worse than nothing
 * (bench/results/2026-11-28-async-accuracy.md), unless another is asked for, by name or by the papers' own remedies
 * (aggregation, FTPipeHD's planner), or the optimizer has no momentum that gradients go into whole.
 */
export function correctionIn(
  settings: Pick<TrainSettings, 'stalenessCorrection' | 'aggregate' | 'planner' | 'optimizer' | 'momentum'>,
): StalenessCorrection {
  const { stalenessCorrection, aggregate, planner, optimizer, momentum } = settings;
  if (stalenessCorrection !== undefined) return stalenessCorrection;
  const hasOther = aggregate > 0 || planner === 'ftpipehd';
  return hasOther || optimizer === 'lion' || (optimizer === 'sgd' && momentum === 0) ? 'none' : 'nesterov';
}

/** Of a run, the rounds in which the learning rate of stale stages rises to what was asked for. */
const rampPart = 0.25;

/**
 * How long the learning rate of stale stages rises in a run of so many rounds (training/staleness.ts, `delayedRate`):
 * with Adam and nesterov alone, where it was measured.
 */
export function rampOf(
  { optimizer }: Pick<TrainSettings, 'optimizer'>,
  correction: StalenessCorrection,
  rounds: number,
): { readonly rampRounds?: number } {
  if (correction !== 'nesterov' || optimizer === 'sgd') return {};
  return { rampRounds: Math.max(1, Math.round(rampPart * rounds)) };
}
