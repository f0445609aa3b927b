// Times stages of the model on this device: together in turn where all of them fit, else one after the other.

import type { Clock } from '../../../clock.ts';
import type { Engine } from '../../../engine/engine.ts';
import type { ProcessClock } from '../../../engine/process-clock.ts';
import { type CutTensor, type LayerSequence, parameterBytes } from '../../../graph/layers.ts';
import { optimizerStateCount, type TrainingSpec } from '../../protocol/training-spec.ts';
import type { LeastKept } from '../recomputation.ts';
import { wholeForm } from '../stage-form.ts';
import { at, type Range, sum } from './parts.ts';
import {
  createStageTrial,
  type Span,
  type StageTrial,
  type TrialTimes,
  timeInTurn,
  timeMicroBatches,
  total,
} from './stage-trial.ts';

/** The time of one layer compiled alone. */
export interface LayerTrial {
  readonly forwardMs: number;
  readonly backwardMs: number;
  /** A pass that gives the input gradients alone, and one that gives those of the weights, of the backward pass. */
  readonly inputPart: number;
  readonly weightPart: number;
  /** Kept for the backward pass, for the whole batch. */
  readonly savedBytes: number;
  /** Where all that can be is computed again. */
  readonly least?: LeastKept | undefined;
}

/** What is measured, and with what. */
export interface TrialRequest {
  readonly engine: Engine;
  readonly sequence: LayerSequence;
  readonly batchSize: number;
  readonly alone: readonly LayerTrial[];
  readonly training: TrainingSpec;
  readonly label: CutTensor;
  readonly memoryBytes?: number | undefined;
  readonly clock: Clock;
  /** What this process has done; default: not known. */
  readonly processWork?: ProcessClock | undefined;
  /** Spans over which times are means, see `timeMicroBatches`. */
  readonly span: Span;
}

/** Of the device's memory, for a stage under trial. */
const memoryPart = 0.8;

/** Forward and backward as one graph, as two, or the backward as two of its own. */
export type Passes = 'step' | 'apart' | 'split';

/** A stage, and how it computes. */
export type Stage = readonly [layers: Range, passes: Passes];

export function inPasses(ranges: readonly Range[], passes: Passes): readonly Stage[] {
  return ranges.map((range) => [range, passes]);
}

/** What else is measured of a stage, which is one of several; its micro-batches have been. */
export type Afterwards = (trial: StageTrial, index: number) => Promise<void>;

/** Stages in turn where all of them fit together, else one after the other. Undefined is what does not fit. */
export async function timeStages(
  request: TrialRequest,
  stages: readonly Stage[],
  afterwards: Afterwards = async () => {},
): Promise<readonly (TrialTimes | undefined)[]> {
  const together = await timeTogether(request, stages, afterwards);
  if (together.length > 0) return together;
  return inTurn(stages, ([range, passes], index) =>
    withTrial(request, range, passes, async (trial) => {
      const times = await timeMicroBatches(trial, request.span);
      await afterwards(trial, index);
      return times;
    }),
  );
}

/** Times stages in turn. Empty where not all of them fit together. */
export async function timeTogether(
  request: TrialRequest,
  stages: readonly Stage[],
  afterwards: Afterwards = async () => {},
): Promise<readonly TrialTimes[]> {
  const ranges = stages.map(([range]) => range);
  if (!fits(request, ranges)) return [];
  const trials = await createTrials(request, stages);
  try {
    const times = await timeInTurn(trials, request.span);
    for (const [index, trial] of trials.entries()) await afterwards(trial, index);
    return times;
  } finally {
    for (const trial of trials) trial.release();
  }
}

/** Compiles stages, each of which is designed while the engine's thread compiles the one before. */
async function createTrials(request: TrialRequest, stages: readonly Stage[]): Promise<readonly StageTrial[]> {
  const creating: Promise<StageTrial>[] = [];
  for (const [range, passes] of stages) {
    const trial = createTrial(request, range, passes);
    creating.push(trial);
    await Promise.race([trial, new Promise<void>((resolve) => request.clock.after(0, resolve))]).catch(() => {});
  }
  const created = await Promise.allSettled(creating);
  const trials = created.flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []));
  const failed = created.find((each) => each.status === 'rejected');
  if (failed === undefined) return trials;
  for (const trial of trials) trial.release();
  throw failed.reason;
}

export async function withTrial<T>(
  request: TrialRequest,
  layers: Range,
  passes: Passes,
  use: (trial: StageTrial) => Promise<T>,
): Promise<T | undefined> {
  if (!fits(request, [layers])) return undefined;
  const trial = await createTrial(request, layers, passes);
  try {
    return await use(trial);
  } finally {
    trial.release();
  }
}

/** What a stage takes for a micro-batch besides its layers, from a small one: the quickest layer with few samples. */
export async function timeCalls(request: TrialRequest): Promise<number> {
  const { alone } = request;
  const layerMs = alone.map(({ forwardMs, backwardMs }) => forwardMs + backwardMs);
  const quickest = layerMs.indexOf(Math.min(...layerMs));
  const times = await withTrial(request, [quickest, quickest + 1], 'apart', (trial) =>
    timeMicroBatches(trial, request.span),
  );
  return times === undefined ? 0 : Math.max(0, total(times) - at(layerMs, quickest));
}

function createTrial(request: TrialRequest, layers: Range, passes: Passes): Promise<StageTrial> {
  const { engine, sequence, batchSize, training, label, processWork } = request;
  const common = { sequence, layers, sampleCount: batchSize, microBatchSize: batchSize, training, label };
  const form = { ...wholeForm, passes: passes === 'apart' ? 'whole' : passes } as const;
  return createStageTrial(engine, { ...common, form }, processWork);
}

/**
 * Weights, gradients, their sum, optimizer state, and what is kept, which is there twice while it is copied out; of all
 * these stages at once.
 */
function fits({ sequence, alone, training, memoryBytes }: TrialRequest, ranges: readonly Range[]): boolean {
  if (memoryBytes === undefined) return true;
  const bytes = ranges.map(([first, end]) => {
    const weightBytes = sum(sequence.layers.slice(first, end).map((layer) => parameterBytes(sequence, layer)));
    const savedBytes = sum(alone.slice(first, end).map((layer) => layer.savedBytes));
    return (3 + optimizerStateCount(training)) * weightBytes + 2 * savedBytes;
  });
  return sum(bytes) <= memoryPart * memoryBytes;
}

async function inTurn<T, R>(items: readonly T[], use: (item: T, index: number) => Promise<R>): Promise<readonly R[]> {
  const results: R[] = [];
  for (const [index, item] of items.entries()) results.push(await use(item, index));
  return results;
}
