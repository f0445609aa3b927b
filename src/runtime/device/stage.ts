// What is needed of a stage, one part of the model on one device, in parts: its cuts, the passes of micro-batches, the
// rounds, the gradients on their way to the group, the state, and the times. EngineStage computes on an engine; the
// rehearsal has one of exact arithmetic in its place. A stage knows nothing of links, other devices, or whether a round
// commits.

import type { CutTensor } from '../../graph/layers.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { BucketReduction } from '../../schedule/program.ts';
import type { Residuals } from './codec.ts';
import type { OrderedParts } from './ordered-all-reduce.ts';
import type { MicroBatchId } from './pieces.ts';
import type { RoundTotals } from './round-sums.ts';
import type { SegmentedVector } from './segmented-vector.ts';
import type { EntryOptions, StateEntry } from './stage-state.ts';
import type { UpdateOptions } from './stage-update.ts';

/** What a stage receives and sends. */
export interface StageCuts {
  /** The cut before the stage; in the first stage the model's inputs. */
  readonly inputs: readonly CutTensor[];
  /** The cut after it; in the last stage the model's output. */
  readonly outputs: readonly CutTensor[];
  readonly label: CutTensor;
  readonly isLast: boolean;
}

/** The passes of micro-batches. Work is queued in the order of the calls; tensors that come out are the caller's. */
export interface StagePasses {
  /**
   * Queues the forward pass of one micro-batch. `inputs` follow the stage's inputs and go to the stage; `firstSample`
   * is the first of this device's samples in the micro-batch. The last stage takes labels and adds to the round's loss;
   * where backward passes follow at once, all is left to them. Resolves with the stage's outputs, or nothing on the
   * last stage; of forward gradients, with the outputs and their tangents, or the derivatives of the loss's sum.
   */
  forward(
    microBatch: MicroBatchId,
    firstSample: number,
    inputs: readonly Tensor[],
    labels: Tensor | undefined,
  ): Promise<readonly Tensor[]>;
  /**
   * Queues the whole backward pass. `outputGradients` follow the differentiable outputs (none on the last stage).
   * Resolves with the gradients of the differentiable inputs. With `bucket`, the pass comes in pieces, called in turn:
   * the first takes the output gradients, the last resolves with the input gradients.
   */
  backward(microBatch: MicroBatchId, outputGradients: readonly Tensor[], bucket?: number): Promise<readonly Tensor[]>;
  /** Queues the first half of a split backward pass: input gradients only. */
  backwardInput(microBatch: MicroBatchId, outputGradients: readonly Tensor[]): Promise<readonly Tensor[]>;
  /** Queues the second half: weight gradients; with `bucket`, one piece of them, called in turn. */
  backwardWeight(microBatch: MicroBatchId, bucket?: number): void;
}

/** A round from its begin to its update. */
export interface StageRounds {
  /**
   * A stream of rounds that overlap begins in place of rounds that follow each other: what is live is version `first`.
   * What rounds have left is forgotten.
   */
  beginStream(first: number): void;
  /**
   * The live state is the one after `round` rounds and is kept as that; what an abandoned round left is forgotten.
   * `plannedUpdate`: how the round will be updated, which a stage whose step updates must know.
   * `firstInFlight`: of a stream, the first round before this one that is still in flight.
   */
  beginRound(round: number, plannedUpdate?: UpdateOptions, firstInFlight?: number): void;
  /**
   * Queues the round's sums at once, and resolves with them. `countNorm`: whether this device reports its gradients'
   * squared norm (one of each group does). `round`: needed where rounds overlap.
   */
  finishRound(countNorm: boolean, round?: number): Promise<RoundTotals>;
  /**
   * Queues the update with the round's gradients. The state before it stays where a version has it. In a stream, what
   * it makes is kept as the version after the round.
   */
  update(options: UpdateOptions, round?: number): void;
}

/** What a stage gives to an AllReduce: its sums, or, in a strict run, the parts that are added in their order. */
export type OwnGradients = SegmentedVector | OrderedParts;

/** The round's gradients on their way to the group and back. */
export interface GradientPort {
  /** Elements at the end of what `takeGradients` gives that are not gradients but running statistics. */
  readonly statisticCount: number;
  /** What an AllReduce in 8 bits has not sent yet. */
  readonly residuals: Residuals;
  /**
   * The round's weight gradients (and, weighted by this device's samples, its running statistics) for AllReduce, a
   * segment for each tensor; those of a bucket, if given, the statistics with the last. They are gone from the stage
   * until they are put back. What is queued after this call is not waited for. `round`: needed where rounds overlap.
   */
  takeGradients(bucket?: number, round?: number): Promise<OwnGradients>;
  /**
   * Puts the group's sums in place of the own gradients and statistics, of a bucket if given: a segment for each
   * tensor, whose memory is the stage's from here on.
   */
  putGradients(values: SegmentedVector, bucket?: number, round?: number): void;
}

/** Parameters, buffers and optimizer state: live, and as kept versions (stage-state.ts). */
export interface StageMemory {
  /**
   * Puts one tensor of the state in place. Later all can be replaced together, or single large ones; small ones share a
   * pack. The engine takes the tensor's buffer where it holds nothing else.
   */
  load(entry: StateEntry): void;
  /**
   * Compiles what could not be compiled before the state was in place; resolves when passes can be queued. Absent: they
   * can be at once.
   */
  finish?(): Promise<void>;
  /** The parameters and buffers that have not been loaded. Optimizer state that nobody loads starts from zeros. */
  missingState(): readonly string[];
  /** The state, copied out tensor by tensor: live, or of a version. */
  state(options?: EntryOptions): AsyncGenerator<StateEntry>;
  /** The versions that are kept, by the number of rounds committed before, ascending. */
  readonly versions: readonly number[];
  /** Keeps the live state as the one after `round` rounds. Costs handles, until an update replaces what they hold. */
  keepVersion(round: number): void;
  /** Lets go of a version, if there is one. */
  dropVersion(round: number): void;
  /** Goes back to a version; what rounds have left beyond it is forgotten. */
  returnTo(round: number): void;
  /** Lets go of all state and graphs; the stage is of no use afterwards. */
  dispose(): void;
}

/** What a stage costs its device. */
export interface StageCosts {
  /** Milliseconds of computing since this was asked last, or since the stage was made. */
  takeBusyMs(): number;
  /**
   * Resolves when everything queued so far is computed, with how many milliseconds ago that was; undefined if passes
   * count as done when they are queued.
   */
  computed(): Promise<number> | undefined;
  /**
   * Bytes of received tensors that may wait on this device: its share of two rounds, and the pieces of an AllReduce.
   */
  mailboxBytes(microBatchCount: number): number;
}

/** What a stage that trains by forward gradients has besides. */
export interface TangentPort {
  /** Tangents that its passes carry along. */
  readonly count: number;
  /** Draws what the round's passes move weights by, which the first of them would do. */
  draw(round: number): void;
  /**
   * Queues the round's gradients from the derivatives of the sum of its samples' losses, one for each tangent.
   */
  estimate(round: number, derivatives: readonly number[]): void;
}

/** What executing a round needs of a stage. */
export interface RoundStage extends StageCuts, StagePasses, StageRounds, GradientPort, StageCosts {
  /** Undefined where gradients come from backward passes. */
  readonly tangents?: TangentPort | undefined;
}

/** A device's part of a round of fewer samples than a batch has. */
export interface RestShare {
  /** The round's last micro-batch, and this device's samples of it. */
  readonly lastMicroBatch: number;
  readonly lastSampleCount: number;
  /** This device's samples of the round, over all of its samples. */
  readonly sampleShare: number;
  /** The pass that comes in pieces, where gradients are reduced in buckets. */
  readonly pieces: BucketReduction['pass'];
}

/** A whole stage, as a worker holds it. */
export interface StagePort extends RoundStage, StageMemory {
  /**
   * The stage as it computes a round of fewer samples than a batch has: the same state, and passes for this share,
   * which are compiled when it is first asked for. Rounds of both must not be in flight together.
   */
  rest(share: RestShare): Promise<RoundStage>;
  /** The lengths of shorter samples that it can compute. Absent: none. */
  readonly lengths?: readonly number[];
  /** The stage as it computes a round whose samples have one of these lengths, as `rest` does for fewer samples. */
  ofLength?(length: number): Promise<RoundStage>;
}
