// The form of a stage: all that a device's Program asks of the stage's graphs, as one value. `stageFormOf` is the only
// place that looks for it in a Program; what designs, compiles, keys and runs a stage reads the form.

import {
  type BucketReduction,
  bucketReductionOf,
  type DeviceProgram,
  isBackwardImmediate,
  isRoundSingle,
  isUpdateImmediate,
} from '../../schedule/program.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';

/**
 * How the passes of a micro-batch follow each other:
 * - `whole`: forward passes, and backward passes that come later.
 * - `split`: backward passes in two halves, input gradients and weight gradients.
 * - `step`: each backward pass follows its forward pass at once; on the last stage one graph can be both, with the loss
 *   between them.
 * - `step-with-update`: a step whose gradients, unscaled, are all that the round's update takes; where it is one graph,
 *   the update is in it.
 * - `tangent`: forward passes with tangents, whose derivatives the update takes (tangent-passes.ts).
 * - `forward`: forward passes alone, of a device that never updates: weights are constants.
 */
export type StagePasses = 'whole' | 'split' | 'step' | 'step-with-update' | 'tangent' | 'forward';

/** What a stage's graphs have to be. */
export interface StageForm {
  readonly passes: StagePasses;
  /** Who adds up a round's gradients: nobody, if one backward pass (of a grain) makes them all, or its graphs. */
  readonly sums: 'none' | 'in-graph';
  /** Parts of a micro-batch whose gradients are summed apart: a strict run's grains (grained-passes.ts), else 1. */
  readonly grains: number;
  /** The buckets in which gradients are reduced during computing, and the pass that comes in pieces for them. */
  readonly pieces?: BucketReduction;
  /**
   * Of a smaller last share (rest-stage.ts), whose passes take weights as they are: filters are kept for the others.
   */
  readonly isRest?: true;
}

/** The form in which nothing is joined, split or in pieces. */
export const wholeForm: StageForm = { passes: 'whole', sums: 'in-graph', grains: 1 };

/** What a device's Program asks for. An update with clipped gradients waits for their norm and is in no step. */
export function stageFormOf(program: DeviceProgram, { clipNorm }: Pick<TrainingSpec, 'clipNorm'>): StageForm {
  const pieces = bucketReductionOf(program);
  return {
    ...wholeForm,
    passes: passesOf(program, clipNorm !== null),
    sums: isRoundSingle(program) ? 'none' : 'in-graph',
    ...(pieces === undefined ? {} : { pieces }),
  };
}

function passesOf(program: DeviceProgram, isClipped: boolean): StagePasses {
  if (program.instructions.some(({ kind }) => kind === 'tangent')) return 'tangent';
  if (!program.instructions.some(({ kind }) => kind === 'update')) return 'forward';
  if (program.instructions.some(({ kind }) => kind === 'backward-input')) return 'split';
  if (!isBackwardImmediate(program)) return 'whole';
  return isUpdateImmediate(program) && !isClipped ? 'step-with-update' : 'step';
}

/** Whether each backward pass follows its forward pass at once. */
export function isStep({ passes }: StageForm): boolean {
  return passes === 'step' || passes === 'step-with-update';
}
