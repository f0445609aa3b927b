// Rounds of another shape on a stage that was compiled for the usual one. Of shorter samples all passes are others. A
// round of fewer samples than a batch has is the last of an epoch. Its micro-batches are whole but for the last, whose
// share has another size on one device of the stage, and is empty on some. State, sums and optimizer are the stage's
// own; only passes of the odd share have graphs of their own.

import { assert, defined } from '../../assert.ts';
import type { PlanLayout } from '../../cluster/cluster.ts';
import type { LayerSequence } from '../../graph/layers.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { restProgram } from '../../schedule/generate.ts';
import { bucketReductionOf, type DeviceProgram, samplesWithin } from '../../schedule/program.ts';
import type { RoundBatch } from '../protocol/round-batch.ts';
import type { MicroBatchId } from './pieces.ts';
import type { GradientPort, RestShare, RoundStage, StageCuts, StagePasses, StagePort } from './stage.ts';
import type { StageForm } from './stage-form.ts';
import type { StageOptions } from './stage-graphs.ts';

/** What a device executes in a round. */
export interface RoundPart {
  readonly program: DeviceProgram;
  readonly stage: RoundStage;
}

/** The part of a device, with the stage that it usually runs, in a round of at most a batch of the plan. */
export async function partOf(
  usual: { readonly program: DeviceProgram; readonly stage: StagePort },
  plan: PlanLayout,
  { sampleCount, length }: Pick<RoundBatch, 'sampleCount'> & { readonly length?: number | undefined },
): Promise<RoundPart> {
  const { program: device, stage } = usual;
  if (length !== undefined) {
    assert(sampleCount === plan.batchSize && stage.ofLength !== undefined, 'whole batches of shorter samples');
    return { program: device, stage: await stage.ofLength(length) };
  }
  if (sampleCount === plan.batchSize) return { program: device, stage };
  const { program: own, share } = restOf(device, plan, sampleCount);
  return { program: own, stage: await stage.rest(share) };
}

/** What a device does in a round of fewer samples than the plan's batch, and its share of it. */
export function restOf(
  { device: name }: DeviceProgram,
  plan: PlanLayout,
  sampleCount: number,
): { readonly program: DeviceProgram; readonly share: RestShare } {
  const round = restProgram(plan, sampleCount);
  const own = defined(
    round.devices.find(({ device }) => device === name),
    'the device',
  );
  const { microBatchSize, microBatchCount, lastMicroBatchSize = microBatchSize } = round;
  const countOf = ([first, end]: readonly [number, number]): number => end - first;
  const lastSampleCount = countOf(samplesWithin(own, lastMicroBatchSize));
  const wholeCount = microBatchCount - 1;
  const ownCount = wholeCount * countOf(own.samples) + lastSampleCount;
  const share = {
    lastMicroBatch: wholeCount,
    lastSampleCount,
    sampleShare: ownCount / sampleCount,
    pieces: bucketReductionOf(own)?.pass,
  };
  return { program: own, share };
}

/**
 * What the passes of such a round are compiled for: `options`, of the usual passes (`compiledOptions`), with another
 * form, and with the odd share of the last micro-batch, if there is one. `isUpdating`: whether the usual step updates.
 */
export function restOptionsOf(
  options: StageOptions,
  { lastSampleCount, pieces }: RestShare,
  isUpdating: boolean,
): { readonly whole: StageOptions; readonly odd: StageOptions | undefined } {
  const form = restFormOf(options.form, pieces, isUpdating);
  // In a strict run `sampleCount` is a grain.
  const sampleCount = options.sampleCount === 0 ? 0 : lastSampleCount % options.sampleCount;
  const odd = sampleCount === 0 ? undefined : { ...options, sampleCount, form: { ...form, isRest: true as const } };
  return { whole: { ...options, form }, odd };
}

/** The form of a stage of form `form` in such a round. All of its steps update, or none. */
function restFormOf(form: StageForm, pieces: RestShare['pieces'], isUpdating: boolean): StageForm {
  const { pieces: planned } = form;
  const passes = form.passes === 'step-with-update' && !isUpdating ? 'step' : form.passes;
  if (planned === undefined) return { ...form, passes };
  const { buckets } = planned;
  return { ...form, passes, pieces: pieces === undefined ? { buckets } : { buckets, pass: pieces } };
}

/** What the passes of shorter samples are compiled for; filters are kept for the usual ones. */
export function shorterOptionsOf(options: StageOptions, sequence: LayerSequence): StageOptions {
  return { ...options, sequence, form: { ...options.form, isRest: true } };
}

/** The stage with other passes, and with gradients that are taken as `takeGradients` does. */
export function withPasses(
  stage: RoundStage,
  passes: StagePasses,
  takeGradients: GradientPort['takeGradients'],
  { inputs, outputs }: Pick<StageCuts, 'inputs' | 'outputs'> = stage,
): RoundStage {
  const { label, isLast, statisticCount, residuals, tangents } = stage;
  return {
    ...{ inputs, outputs, label, isLast, statisticCount, residuals, tangents, takeGradients },
    forward: (...given) => passes.forward(...given),
    backward: (...given) => passes.backward(...given),
    backwardInput: (...given) => passes.backwardInput(...given),
    backwardWeight: (...given) => passes.backwardWeight(...given),
    beginRound: (...given) => stage.beginRound(...given),
    beginStream: (first) => stage.beginStream(first),
    finishRound: (...given) => stage.finishRound(...given),
    update: (...given) => stage.update(...given),
    putGradients: (...given) => stage.putGradients(...given),
    takeBusyMs: () => stage.takeBusyMs(),
    computed: () => stage.computed(),
    mailboxBytes: (microBatchCount) => stage.mailboxBytes(microBatchCount),
  };
}

/** Passes of whole micro-batches, and others of the last one; undefined where this device has no samples of it. */
export class RestPasses implements StagePasses {
  readonly #whole: StagePasses;
  readonly #last: StagePasses | undefined;
  readonly #lastMicroBatch: number;

  constructor(whole: StagePasses, last: StagePasses | undefined, lastMicroBatch: number) {
    assert(lastMicroBatch >= 0, 'a round has a micro-batch');
    this.#whole = whole;
    this.#last = last;
    this.#lastMicroBatch = lastMicroBatch;
  }

  #of({ index }: MicroBatchId): StagePasses {
    return index === this.#lastMicroBatch ? defined(this.#last, 'samples of the last micro-batch') : this.#whole;
  }

  forward(
    microBatch: MicroBatchId,
    firstSample: number,
    inputs: readonly Tensor[],
    labels: Tensor | undefined,
  ): Promise<readonly Tensor[]> {
    return this.#of(microBatch).forward(microBatch, firstSample, inputs, labels);
  }

  backward(microBatch: MicroBatchId, outputGradients: readonly Tensor[], bucket?: number): Promise<readonly Tensor[]> {
    return this.#of(microBatch).backward(microBatch, outputGradients, bucket);
  }

  backwardInput(microBatch: MicroBatchId, outputGradients: readonly Tensor[]): Promise<readonly Tensor[]> {
    return this.#of(microBatch).backwardInput(microBatch, outputGradients);
  }

  backwardWeight(microBatch: MicroBatchId, bucket?: number): void {
    this.#of(microBatch).backwardWeight(microBatch, bucket);
  }
}
