// The settings of a training run, as the library takes them; the command line makes them from flags and a config file
// (cli/settings.ts).

import type { RunningVariance } from '../../graph/graph.ts';
import type { CompressMode } from '../../planner/compress.ts';

/** Leaves the schedule to the planner. */
export const autoSchedule = 'auto';

/** All settings with their effective values. Absent ones have no default. */
export interface TrainSettings {
  readonly model: string;
  /** Gives the model a new classifier head with this many classes. */
  readonly headClasses?: number;
  readonly data: string;
  readonly evalData?: string;
  /** Updates between tests; 0: only at the end. Absent: one epoch, or more epochs for at most 20 tests. */
  readonly evalEvery?: number;
  readonly batch: number;
  readonly microBatch?: number;
  readonly epochs?: number;
  readonly steps?: number;
  readonly optimizer: 'sgd' | 'adam' | 'adamw';
  readonly lr: number;
  readonly lrSchedule: string;
  readonly momentum: number;
  readonly nesterov: boolean;
  readonly weightDecay: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly clipNorm?: number;
  readonly loss: 'cross-entropy' | 'mse';
  readonly freeze: readonly string[];
  readonly freezeAllBut: readonly string[];
  readonly planner: string;
  /** One of schedule/generate.ts, or `autoSchedule`. */
  readonly schedule: string;
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
  readonly insecure: boolean;
  /** Files of an own certificate and its key, instead of the cluster's. */
  readonly tlsCert?: string;
  readonly tlsKey?: string;
  readonly seed: number;
  readonly shuffle: boolean;
  readonly checkpointEvery?: number;
  readonly engine: 'onnxruntime' | 'reference';
  readonly threads: number;
  readonly replicateBatchNorm: boolean;
  /** Absent: as the model's producer has it. */
  readonly runningVariance?: RunningVariance;
  /** Rounds between two copies of a single-device stage to another device, at least; 0: no copies. */
  readonly replicateEvery?: number;
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
