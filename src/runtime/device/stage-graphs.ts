import type { Activity } from '../../autodiff/activity-perturbation.ts';
import type { DropoutInput } from '../../autodiff/dropout.ts';
import type { BufferUpdate } from '../../autodiff/forward.ts';
import type { Graph } from '../../graph/graph.ts';
import type { CutTensor, LayerSequence } from '../../graph/layers.ts';
import type { Aggregation } from '../../training/aggregation.ts';
import type { OptimizerGraph } from '../../training/optimizers.ts';
import type { TensorSpec } from '../protocol/model-message.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';
import type { StageForm } from './stage-form.ts';
import type { StatePack } from './stage-state.ts';

/** What a stage is made of. */
export interface StageOptions {
  readonly sequence: LayerSequence;
  /** Half-open range of layers. */
  readonly layers: readonly [first: number, end: number];
  /** Samples of each micro-batch that this device computes; 0: it only keeps its weights in step with its group. */
  readonly sampleCount: number;
  readonly training: TrainingSpec;
  readonly label: CutTensor;
  /** Dropout depends on a sample's place in the batch: microBatch · microBatchSize + its place in the micro-batch. */
  readonly microBatchSize: number;
  readonly form: StageForm;
  /**
   * Bytes that one micro-batch may keep for its backward pass; what does not fit is computed again. Default: no limit.
   */
  readonly savedBudgetBytes?: number | undefined;
  /**
   * Micro-batches in flight at once, whose budgets together have to hold what a pass needs while it runs.
   * Default: it has memory of its own.
   */
  readonly budgetCount?: number | undefined;
  /** In a stream: by how many rounds the weights that a round reads lag behind. Absent: rounds do not overlap. */
  readonly staleness?: number;
  /** In a stream whose weights are aggregated: K, and the versions that the stage trains with at once. */
  readonly aggregation?: Pick<Aggregation, 'every' | 'versionCount'>;
}

/**
 * The graphs of a stage. `filters` makes what the pass takes of weights once for all micro-batches
 * (kept-filters.ts). `tangent` is all passes of a stage that trains by forward gradients. Else, of the pass, either
 * `step` (forward pass, loss and backward pass in one, and perhaps the update) or those between; both where the last
 * micro-batch comes in pieces.
 */
export type StageGraphName =
  | 'filters'
  | 'tangent'
  | 'step'
  | 'forward'
  | 'backward'
  | 'backwardInput'
  | 'backwardWeight'
  | 'loss'
  | 'update'
  | 'accumulate'
  | 'zeros'
  | 'squaredNorm'
  | IndexedGraphName;

/** A piece of the last micro-batch's pass. */
type PieceGraphName = `piece${number}`;

/** The mean of so many versions of the trained parameters. */
type MeanGraphName = `mean${number}`;

type IndexedGraphName = PieceGraphName | MeanGraphName;

/**
 * Something for each of the graphs that a stage has: `loss` on the last one, `backward` whole or in two halves, `zeros`
 * where sums of gradients begin with them, `accumulate` where a strict run adds such sums up.
 */
export type ByGraph<T> = Readonly<
  Partial<Record<Exclude<StageGraphName, IndexedGraphName>, T>> & Record<IndexedGraphName, T>
>;

/**
 * What is to be known of the pass besides its graphs; JSON. Names are those of the graphs: packs stand in place of
 * their members.
 */
export interface PassNotes {
  /** Values that `forward` computes and the backward graphs read. */
  readonly saved: readonly string[];
  /** Inputs of `forward` that they read. */
  readonly savedInputs: readonly string[];
  /** Values that `backwardInput` computes and `backwardWeight` reads. */
  readonly intermediates: readonly string[];
  readonly bufferUpdates: readonly BufferUpdate[];
  /**
   * `step` updates: it takes the optimizer's state and scalars too, gives new values and `squaredNormName` in place of
   * gradients, and is the only graph.
   */
  readonly isUpdating: boolean;
  /** Graphs that make gradients take their sums, and give them with the gradients added (`withSums`). */
  readonly isSumming: boolean;
  /** The inputs that get a gradient. */
  readonly inputGradients: readonly string[];
  /** The parameters that do. */
  readonly gradients: readonly string[];
  /** `sampleAxis`: where the samples are; absent for masks that do not depend on the samples. */
  readonly dropouts: readonly (DropoutInput & { readonly sampleAxis?: number })[];
  /**
   * By bucket, where the last micro-batch's pass comes in pieces: what a piece carries for those after it, and the
   * parameters whose gradients it gives.
   */
  readonly pieces: readonly { readonly carried: readonly string[]; readonly gradients: readonly string[] }[];
  /** What the pass moves in place of weights, whose noise it takes. Absent: nothing. */
  readonly activities?: readonly Activity[];
}

/** What a stage holds, as its graphs take it. Found without differentiation. */
export interface StageLayout {
  /** All parameters of the stage, frozen ones included, and its buffers. */
  readonly parameters: readonly TensorSpec[];
  readonly buffers: readonly TensorSpec[];
  /** The buffers that a forward pass replaces: replicas average them. */
  readonly statistics: readonly TensorSpec[];
  /** The parameters that an update changes, as the graphs take them: small ones in a pack. */
  readonly trained: readonly TensorSpec[];
  /** The trained parameters by the buckets in which their gradients are reduced. */
  readonly buckets: readonly (readonly TensorSpec[])[];
  readonly packs: readonly StatePack[];
  readonly optimizer: OptimizerGraph;
}

/** A stage's graphs and what is to be known of them. */
export interface StageDesign {
  /** Undefined for a device without samples. */
  readonly pass: PassNotes | undefined;
  readonly graphs: ByGraph<Graph>;
}

/** What the inputs and outputs of the loss are called in a `step`, where the model may use the short names. */
export const stepNames = {
  labels: 'step/labels',
  scale: 'step/scale',
  loss: 'step/loss',
  correct: 'step/correct',
} as const;

/** The cut tensors whose gradients travel. */
export function differentiableNames(cuts: readonly CutTensor[]): string[] {
  return cuts.filter((cut) => cut.differentiable).map((cut) => cut.name);
}
