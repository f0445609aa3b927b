// One stage of the model on one device: its compiled graphs, its weights and optimizer state, and what each micro-batch in flight keeps.
// Everything heavy lives in the engine; calls queue work and return. It knows nothing of links, other devices, or whether a round commits.

import { assert, defined } from '../../assert.ts';
import { type StageGraphs, differentiate, gradientName } from '../../autodiff/differentiate.ts';
import { type DropoutMask, dropoutMask, replaceDropout } from '../../autodiff/dropout.ts';
import type { Engine, Executable, Value } from '../../engine/engine.ts';
import type { CutTensor, LayerSequence } from '../../graph/layers.ts';
import { extractStage } from '../../graph/stage.ts';
import { type Tensor, allocate, byteLength, elementCount, scalar, wrap } from '../../graph/tensor.ts';
import { squaredNormGraph } from '../../training/clipping.ts';
import { lossGraph } from '../../training/losses.ts';
import { type OptimizerGraph, accumulateGraph, optimizerGraph } from '../../training/optimizers.ts';
import type { StateRole, TensorSpec } from '../messages.ts';
import type { TrainingSpec } from '../training-spec.ts';

/** What a stage is made of. */
export interface StageOptions {
  readonly sequence: LayerSequence;
  /** Half-open range of layers. */
  readonly layers: readonly [first: number, end: number];
  /** Samples of each micro-batch that this device computes. */
  readonly sampleCount: number;
  readonly training: TrainingSpec;
  readonly label: CutTensor;
  /** Seeds of dropout differ by the sample's place in the batch: micro-batch · microBatchSize + sample. */
  readonly microBatchSize: number;
}

/** One named tensor of a stage's state. */
export interface StateEntry {
  readonly role: StateRole;
  readonly name: string;
  readonly value: Tensor;
}

interface InFlight {
  /** Kept for the backward pass. */
  readonly values: Record<string, Value>;
  /** Intermediate results between the two halves of a split backward pass. */
  readonly halves?: Record<string, Value>;
}

/** The sums of a round on this device. */
export interface RoundTotals {
  readonly lossSum: number;
  readonly correctCount: number;
  readonly squaredNorm: number;
  readonly finite: boolean;
}

interface Compiled {
  readonly graphs: StageGraphs;
  readonly masks: readonly DropoutMask[];
  readonly forward: Executable;
  readonly backward: Executable;
  readonly loss: Executable | undefined;
  readonly optimizer: OptimizerGraph | undefined;
  readonly update: Executable | undefined;
  readonly accumulate: Executable | undefined;
  readonly squaredNorm: Executable | undefined;
}
