// From the times of layers compiled alone to times that add up to those of real stages. The model is taken apart at a
// few places; between each two of them, the layers share what that part of the model takes as a stage whose two passes
// are two graphs, less what any stage takes besides its layers: calls (told by the pass), and what is given and handed
// on (half of it is taken from each part, for stages of about two). A stage between any two layers is then off by no
// more than the layers' shares of one part, and by some of its borders. What last stages save, whose passes are one
// graph, is about the same part of their time wherever they begin: one factor, from the whole model and a few others
// (differences between last stages would be mostly noise). All are measured in turn.

import { defined } from '../../../assert.ts';
import type { Engine } from '../../../engine/engine.ts';
import type { ProcessClock } from '../../../engine/node/work-clock.ts';
import { type CutTensor, type LayerSequence, parameterBytes } from '../../../graph/layers.ts';
import { median } from '../../../statistics.ts';
import { optimizerStateCount, type TrainingSpec } from '../../protocol/training-spec.ts';
import type { LeastKept } from '../recomputation.ts';
import { wholeForm } from '../stage-form.ts';
import {
  createStageTrial,
  type Span,
  type StageTrial,
  type TrialTimes,
  timeInTurn,
  timeMicroBatches,
  timeUpdate,
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

/** Times of the layers at one batch size. */
export interface CalibratedTimes {
  readonly forwardMs: readonly number[];
  readonly backwardMs: readonly number[];
  readonly backwardInputMs: readonly number[];
  readonly backwardWeightMs: readonly number[];
  /** Forward and backward pass together, in a last stage that computes both as one graph. */
  readonly stepMs: readonly number[];
}

/** How stages differ from their layers alone; `forward` and `backward` by part of the model. */
export interface Factors {
  /** The first layer of each part. */
  readonly starts: readonly number[];
  readonly forward: readonly number[];
  readonly backward: readonly number[];
  /** What both passes take as one graph, of what they take as two. */
  readonly step: number;
  /** Of the passes of a split backward, after calibration. */
  readonly split: SplitFactors;
}

/** The factors at one batch size. */
export interface Calibration extends Factors {
  /** What a stage takes for a micro-batch besides its layers: each part has it, and the whole model once. */
  readonly besideMs: number;
  /** Of these, what calls take, whatever the batch; the rest goes with what is given and handed on. */
  readonly callMs: number;
  /** What the main thread does for a micro-batch; undefined where that is not known. */
  readonly mainMs: number | undefined;
}

/** By part of the model. */
interface SplitFactors {
  readonly input: readonly number[];
  readonly weight: readonly number[];
}

export interface CalibrationRequest {
  readonly engine: Engine;
  readonly sequence: LayerSequence;
  readonly batchSize: number;
  readonly alone: readonly LayerTrial[];
  /** The first layer of each part (`partStarts`). */
  readonly starts: readonly number[];
  readonly training: TrainingSpec;
  readonly label: CutTensor;
  readonly memoryBytes?: number | undefined;
  /** What this process has done; default: not known. */
  readonly processWork?: ProcessClock | undefined;
  /** Spans over which times are means, see `timeMicroBatches`. */
  readonly span: Span;
  /** Of the batch size before. Where a micro-batch takes long, part of it is kept. */
  readonly before?: Calibration | undefined;
}

/** Parts of the model: enough that a cut inside one matters little, few enough to compile. */
const partCount = 8;
/** Of a part's size, what is its time; the rest is its number of layers. */
const timeWeight = 0.75;
/** The beginning of a part may move by so much of a part: every layer is in reach of one. */
const mostMove = 0.5;
/** Of what goes with borders, this part is taken from each part: stages before the last are about two parts. */
const borderPart = 0.5;
/** Stages at which a split backward is measured. */
const splitStages = 3;
/** A micro-batch of the whole model that takes longer is measured less often. */
const longMicroBatchMs = 600;
/** Of the device's memory, for a stage under trial. */
const memoryPart = 0.8;

/** Measures stages at one batch size. */
export async function calibrate(request: CalibrationRequest): Promise<Calibration> {
  const { alone, starts, before } = request;
  const forwardMs = sums(starts, alone, ({ forwardMs }) => forwardMs);
  const backwardMs = sums(starts, alone, ({ backwardMs }) => backwardMs);
  const ranges = rangesOf(request);
  const end = alone.length;
  // Of a micro-batch that takes long, some of what is known is kept.
  const expectedMs =
    before &&
    sum(
      starts.map(
        (_, part) => at(forwardMs, part) * at(before.forward, part) + at(backwardMs, part) * at(before.backward, part),
      ),
    );
  const known = expectedMs !== undefined && expectedMs > longMicroBatchMs ? before : undefined;
  const wholes: readonly Range[] = known !== undefined || ranges.length === 1 ? [] : [[0, end]];
  const anchors = starts.filter((_, part) => part % anchorStride === 0).slice(known === undefined ? 0 : -1);
  const lasts = anchors.map((start): Range => [start, end]);
  const times = await timeStages(request, [...inPasses([...ranges, ...wholes], 'apart'), ...inPasses(lasts, 'step')]);
  const parts = times.slice(0, ranges.length);
  const whole = wholes.length === 0 ? undefined : times[ranges.length];
  const besideMs = known?.besideMs ?? besideLayers(parts, whole);
  const callMs = before?.callMs ?? besideMs;
  const lessMs = callMs + borderPart * Math.max(0, besideMs - callMs);
  const forward = partFactors(
    forwardMs,
    parts.map((part) => part && layersMs(part.forwardMs, lessMs / 2)),
  );
  const backward = partFactors(
    backwardMs,
    parts.map((part) => part && layersMs(part.backwardMs, lessMs / 2)),
  );
  const partMs = starts.map(
    (_, part) => at(forwardMs, part) * at(forward, part) + at(backwardMs, part) * at(backward, part),
  );
  const steps = times.slice(-lasts.length).map((step) => step && layersMs(total(step), callMs));
  const step = stepFactor(partMs, { starts, anchors, steps }) ?? before?.step ?? 1;
  const split = known?.split ?? (await splitFactors(request, { callMs, lessMs }));
  const mains = parts.map((part) => part?.mainMs).filter((ms) => ms !== undefined);
  const mainMs = mains.length === 0 ? undefined : median(mains);
  return { starts, besideMs, callMs, forward, backward, step, split, mainMs };
}

/** Each of the parts takes something besides its layers, the whole model only once. */
function besideLayers(parts: readonly (TrialTimes | undefined)[], whole: TrialTimes | undefined): number {
  const known = parts.filter((part) => part !== undefined);
  if (whole === undefined || known.length < parts.length) return 0;
  return Math.max(0, sum(known.map(total)) - total(whole)) / (known.length - 1);
}

/** What layers take of a time: at least half of it. */
function layersMs(ms: number, besideMs: number): number {
  return Math.max(ms / 2, ms - besideMs);
}

/**
 * What the two passes of a split backward take, of what they take in layers alone: as stages of a few parts, as plans
 * have them (what the first pass leaves for the second, and so what both take, grows faster than a stage does), each
 * beside the same stage with one pass, in turn. What its forward pass takes more, since other memory is in the
 * processor's caches then, counts with the input gradients. Not the first part's, which has none to give; it is taken
 * for as the others are.
 */
async function splitFactors(
  request: CalibrationRequest,
  { callMs, lessMs }: { readonly callMs: number; readonly lessMs: number },
): Promise<SplitFactors> {
  const { alone, starts } = request;
  const ranges = joined(rangesOf(request).slice(1), splitStages);
  const times = await timeTogether(request, [...inPasses(ranges, 'apart'), ...inPasses(ranges, 'split')]);
  const found = (times.length === 0 ? [] : ranges).map((range, index) => {
    const [whole, split] = [
      defined(times[index], 'a whole pass'),
      defined(times[ranges.length + index], 'a split one'),
    ];
    const layersAlone = alone.slice(...range);
    const factor = (ms: number, key: 'inputPart' | 'weightPart'): number | undefined => {
      const expected =
        sum(layersAlone.map((layer) => layer.backwardMs * layer[key])) /
        sum(layersAlone.map(({ backwardMs }) => backwardMs));
      const wholeMs = layersMs(whole.backwardMs, lessMs / 2);
      return expected > 0 && wholeMs > 0 ? ms / (expected * wholeMs) : undefined;
    };
    return {
      range,
      input: factor(layersMs(split.inputMs, lessMs / 2 - (split.forwardMs - whole.forwardMs)), 'inputPart'),
      weight: factor(layersMs(split.backwardMs - split.inputMs, callMs / 2), 'weightPart'),
    };
  });
  const byPart = (key: 'input' | 'weight'): readonly number[] => {
    const known = found.map((factors) => factors[key]).filter((factor) => factor !== undefined);
    const usual = known.length === 0 ? 1 : median(known);
    return starts.map(
      (start) => found.find(({ range: [first, end] }) => first <= start && start < end)?.[key] ?? usual,
    );
  };
  return { input: byPart('input'), weight: byPart('weight') };
}

/** So many ranges of about as many neighbours each. */
function joined(ranges: readonly Range[], count: number): readonly Range[] {
  const bounds = Array.from({ length: count + 1 }, (_, index) => Math.floor((index * ranges.length) / count));
  return bounds.slice(1).flatMap((bound, index) => {
    const [[first] = [], [, end] = []] = [ranges[at(bounds, index)], ranges[bound - 1]];
    return first === undefined || end === undefined || first >= end ? [] : [[first, end] as const];
  });
}

/** Layers by part. */
function rangesOf({ starts, alone }: CalibrationRequest): readonly Range[] {
  return starts.map((start, part): Range => [start, starts[part + 1] ?? alone.length]);
}

/** The part that a layer is in. */
function partOf(starts: readonly number[], layer: number): number {
  return starts.findLastIndex((start) => start <= layer);
}

/** Whether a micro-batch of the layers alone takes so long that they are not measured again. */
export function isLong(alone: readonly LayerTrial[]): boolean {
  return sum(alone.map(({ forwardMs, backwardMs }) => forwardMs + backwardMs)) > longMicroBatchMs;
}

/** The layers' times at the batch size of the calibration. */
export function calibratedTimes(
  { starts, forward, backward, step, split }: Factors,
  alone: readonly LayerTrial[],
): CalibratedTimes {
  const part = (layer: number): number => partOf(starts, layer);
  const forwardMs = alone.map((times, layer) => times.forwardMs * at(forward, part(layer)));
  const backwardMs = alone.map((times, layer) => times.backwardMs * at(backward, part(layer)));
  return {
    forwardMs,
    backwardMs,
    // What has only one of the two is not split.
    backwardInputMs: alone.map(
      ({ inputPart, weightPart }, layer) =>
        at(backwardMs, layer) * (weightPart === 0 ? inputPart : Math.min(1, inputPart * at(split.input, part(layer)))),
    ),
    backwardWeightMs: alone.map(
      ({ inputPart, weightPart }, layer) =>
        at(backwardMs, layer) * (inputPart === 0 ? weightPart : weightPart * at(split.weight, part(layer))),
    ),
    stepMs: forwardMs.map((ms, layer) => (ms + at(backwardMs, layer)) * step),
  };
}

/** Computes one micro-batch of the whole model: memory that the process has never touched makes first runs slow. */
export async function warmUp(request: CalibrationRequest): Promise<void> {
  await withTrial(request, [0, request.alone.length], 'step', (trial) => trial.microBatch());
}

/** The time of an update of the whole model, beyond what `backwardMs` has. Undefined where it does not fit. */
export async function timeWholeUpdate(request: CalibrationRequest): Promise<number | undefined> {
  return withTrial(request, [0, request.alone.length], 'step', timeUpdate);
}

/**
 * The first layers of parts of about the same size, to which a layer adds by its time and, less, by being one: short
 * layers alone are in the processor's caches, which they are not in a stage, and must not share a part with long ones.
 * Nearby, or a layer before or behind, a part begins where the fewest bytes cross, as the stages of plans do: handing
 * over is part of what it takes. `borderBytes`: what crosses before each layer.
 */
export function partStarts(layerMs: readonly number[], borderBytes: readonly number[] = []): readonly number[] {
  const totalMs = sum(layerMs);
  const positions: number[] = [];
  const even = new Set([0]);
  let [passed, part] = [0, 0];
  for (const [layer, ms] of layerMs.entries()) {
    positions.push(passed);
    const size = totalMs === 0 ? 1 / layerMs.length : (timeWeight * ms) / totalMs + (1 - timeWeight) / layerMs.length;
    const middle = Math.floor((passed + size / 2) * partCount + 1e-9);
    if (middle > part) {
      even.add(layer);
      part = middle;
    }
    passed += size;
  }
  const distance = (layer: number, start: number): number => Math.abs(at(positions, layer) - at(positions, start));
  const bytes = (layer: number): number => borderBytes[layer] ?? 0;
  const nearby = (start: number): readonly number[] =>
    [...positions.keys()].filter(
      (layer) => layer > 0 && (Math.abs(layer - start) <= 1 || distance(layer, start) <= mostMove / partCount),
    );
  const cheapest = (start: number): number =>
    nearby(start).reduce((best, layer) => {
      const fewer = bytes(layer) - bytes(best) || distance(layer, start) - distance(best, start);
      return fewer < 0 ? layer : best;
    }, start);
  return [...new Set([...even].map((start) => (start === 0 ? 0 : cheapest(start))))];
}

/**
 * What each part takes beside its layers alone. Parts that could not be measured take what the measured ones take on
 * average.
 */
function partFactors(aloneMs: readonly number[], partMs: readonly (number | undefined)[]): readonly number[] {
  const known = partMs.flatMap((ms, part) =>
    ms === undefined || at(aloneMs, part) === 0 ? [] : [{ ms, aloneMs: at(aloneMs, part) }],
  );
  const usual = known.length === 0 ? 1 : sum(known.map(({ ms }) => ms)) / sum(known.map(({ aloneMs: ms }) => ms));
  return partMs.map((ms, part) => (ms === undefined || at(aloneMs, part) === 0 ? usual : ms / at(aloneMs, part)));
}

/**
 * What last stages take, by where they begin (`anchors`), of what their parts take. Long ones count more. Undefined
 * where none is known.
 */
function stepFactor(
  partMs: readonly number[],
  {
    starts,
    anchors,
    steps,
  }: {
    readonly starts: readonly number[];
    readonly anchors: readonly number[];
    readonly steps: readonly (number | undefined)[];
  },
): number | undefined {
  const known = anchors.flatMap((anchor, index) => {
    const [stepMs, partsMs] = [steps[index], sum(partMs.slice(starts.indexOf(anchor)))];
    return stepMs === undefined || partsMs === 0 ? [] : [{ stepMs, partsMs }];
  });
  return known.length === 0
    ? undefined
    : sum(known.map(({ stepMs }) => stepMs)) / sum(known.map(({ partsMs }) => partsMs));
}

/** Of parts at which last stages are measured, one in so many. */
const anchorStride = 3;

/** Forward and backward as one graph, as two, or the backward as two of its own. */
type Passes = 'step' | 'apart' | 'split';

type Range = readonly [first: number, end: number];

/** A stage, and how it computes. */
type Stage = readonly [layers: Range, passes: Passes];

function inPasses(ranges: readonly Range[], passes: Passes): readonly Stage[] {
  return ranges.map((range) => [range, passes]);
}

/** Stages in turn where all of them fit together, else one after the other. Undefined is what does not fit. */
async function timeStages(
  request: CalibrationRequest,
  stages: readonly Stage[],
): Promise<readonly (TrialTimes | undefined)[]> {
  const together = await timeTogether(request, stages);
  if (together.length > 0) return together;
  return inTurn(stages, ([range, passes]) =>
    withTrial(request, range, passes, (trial) => timeMicroBatches(trial, request.span)),
  );
}

/** Times stages in turn. Empty where not all of them fit together. */
async function timeTogether(request: CalibrationRequest, stages: readonly Stage[]): Promise<readonly TrialTimes[]> {
  const ranges = stages.map(([range]) => range);
  if (!fits(request, ranges)) return [];
  const trials: StageTrial[] = [];
  try {
    for (const [range, passes] of stages) trials.push(await createTrial(request, range, passes));
    return await timeInTurn(trials, request.span);
  } finally {
    for (const trial of trials) trial.release();
  }
}

async function withTrial<T>(
  request: CalibrationRequest,
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

function createTrial(request: CalibrationRequest, layers: Range, passes: Passes): Promise<StageTrial> {
  const { engine, sequence, batchSize, training, label, processWork } = request;
  const common = { sequence, layers, sampleCount: batchSize, microBatchSize: batchSize, training, label };
  return createStageTrial(
    engine,
    { ...common, form: { ...wholeForm, passes: passes === 'apart' ? 'whole' : passes } },
    processWork,
  );
}

/**
 * Weights, gradients, their sum, optimizer state, and what is kept, which is there twice while it is copied out; of all
 * these stages at once.
 */
function fits({ sequence, alone, training, memoryBytes }: CalibrationRequest, ranges: readonly Range[]): boolean {
  if (memoryBytes === undefined) return true;
  const bytes = ranges.map(([first, end]) => {
    const weightBytes = sum(sequence.layers.slice(first, end).map((layer) => parameterBytes(sequence, layer)));
    const savedBytes = sum(alone.slice(first, end).map((layer) => layer.savedBytes));
    return (3 + optimizerStateCount(training)) * weightBytes + 2 * savedBytes;
  });
  return sum(bytes) <= memoryPart * memoryBytes;
}

function sums(
  starts: readonly number[],
  alone: readonly LayerTrial[],
  ms: (layer: LayerTrial) => number,
): readonly number[] {
  return starts.map((start, part) => sum(alone.slice(start, starts[part + 1]).map(ms)));
}

async function inTurn<T, R>(items: readonly T[], use: (item: T) => Promise<R>): Promise<readonly R[]> {
  const results: R[] = [];
  for (const item of items) results.push(await use(item));
  return results;
}

function at(values: readonly number[], index: number): number {
  return defined(values[index], 'a value');
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
