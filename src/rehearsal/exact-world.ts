// What an exact stage takes from the world, and what it keeps of a micro-batch.

import type { Tensor } from '../graph/tensor.ts';
import type { Weights } from '../runtime/device/weight-versions.ts';
import type { ExactEngine } from './exact-engine.ts';

/** What a stage takes from the world. */
export interface StageWorld {
  readonly engine: ExactEngine;
  /** Milliseconds for one layer and one sample, forward; may change at any time. */
  msPerSample(): number;
  /** The membership epoch in which it computes. */
  epoch(): number;
  violate(what: string): void;
  /** The samples of a round. Default: those of a batch. */
  samplesIn?(round: number): number;
  /** Default: `held`. A backward pass that reads the weights as they are is a mistake, planted to be found. */
  readonly backwardReads?: 'held' | 'live';
  /** A planted mistake: weights are averaged one update after the one that is due. */
  readonly aggregatesLate?: boolean | undefined;
  /** A planted mistake: a version of the weights has one holder fewer than rounds that read it. */
  readonly forgetsEarly?: boolean | undefined;
  /** A planted mistake: an update draws other directions than its round's passes. */
  readonly drawsOtherDirections?: boolean | undefined;
}

/** A micro-batch between its forward and its backward pass. */
export interface Kept {
  readonly round: number;
  /** What the forward pass has read. */
  readonly weights: Weights;
  readonly samples: readonly number[];
  /** By layer, then sample: what went into the layer, and last what came out. */
  readonly values: readonly (readonly number[])[];
  readonly labels: readonly number[];
  /** By layer, then sample: the gradients of the layer's output. */
  gradients: readonly (readonly number[])[] | undefined;
  /** What goes to the stage before. */
  inputGradients: readonly Tensor[];
}
