// From the times of layers compiled alone to times that add up to those of real stages. The model is taken apart at a few places; between each two of
// them, the layers share what that part of the model takes as a stage whose two passes are two graphs. A stage between any two layers is then off by no
// more than the layers' shares of one part, and by its own border. What last stages save, whose passes are one graph, is about the same part of their time
// wherever they begin: one factor, from stages measured both ways in turn (differences between last stages would be mostly noise).

import { defined } from '../../assert.ts';
import type { Engine } from '../../engine/engine.ts';
import type { ProcessClock } from '../../engine/work-clock.ts';
import { type CutTensor, cutBytes, type LayerSequence, parameterBytes } from '../../graph/layers.ts';
import { median } from '../../statistics.ts';
import { optimizerStateCount, type TrainingSpec } from '../training-spec.ts';
import type { LeastKept } from './recomputation.ts';
import {
  createStageTrial,
  type Span,
  type StageTrial,
  type TrialTimes,
  timeMicroBatches,
  timeRatio,
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
  /** What the parts take in a plan of two stages, of what they take each by itself; part of the factors above. */
  readonly border: number;
  /** Milliseconds of the main thread for a pass of a part (`DeviceTimes`); undefined where it takes nothing from the engine, or is not known. */
  readonly passMs: number | undefined;
}

interface SplitFactors {
  readonly input: number;
  readonly weight: number;
}

export interface CalibrationRequest {
  readonly engine: Engine;
  readonly sequence: LayerSequence;
  readonly batchSize: number;
  readonly alone: readonly LayerTrial[];
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
const partCount = 6;
/** The beginning of a part may move by so much of a part. */
const mostMove = 0.3;
/** A micro-batch of the whole model that takes longer is measured less often. */
const longMicroBatchMs = 600;
/** Of the device's memory, for a stage under trial. */
const memoryPart = 0.8;

/** Measures stages at one batch size. */
export async function calibrate(request: CalibrationRequest): Promise<Calibration> {
  const { alone, before } = request;
  const starts =
    before?.starts ??
    partStarts(
      alone.map(({ forwardMs, backwardMs }) => forwardMs + backwardMs),
      request.sequence.layers.map((_, layer) => cutBytes(request.sequence.layers[layer - 1]?.outputs ?? [])),
    );
  const forwardMs = sums(starts, alone, ({ forwardMs }) => forwardMs);
  const backwardMs = sums(starts, alone, ({ backwardMs }) => backwardMs);
  const parts = await inTurn(starts, (start, part) => timeStage(request, [start, starts[part + 1] ?? alone.length], 'apart'));
  const separate = [
    partFactors(
      forwardMs,
      parts.map((part) => part?.forwardMs),
    ),
    partFactors(
      backwardMs,
      parts.map((part) => part?.backwardMs),
    ),
  ] as const;
  const partsMs = starts.map((_, part) => at(forwardMs, part) * at(separate[0], part) + at(backwardMs, part) * at(separate[1], part));
  // Of a micro-batch that takes long, some of what is known is kept.
  const known = sum(partsMs) > longMicroBatchMs ? before : undefined;
  const border = known?.border ?? (await borderFactor(request, partsMs));
  const [forward, backward] = separate.map((factors) => factors.map((factor) => factor * border)) as [number[], number[]];
  const split = known?.split ?? (await splitFactors(request, { starts, backward }));
  return {
    starts,
    border,
    forward,
    backward,
    step: await stepFactor(request, starts, known !== undefined),
    split,
    passMs: passMsOf(parts),
  };
}

/** Both passes of a micro-batch together are what the main thread was measured for. */
function passMsOf(parts: readonly (TrialTimes | undefined)[]): number | undefined {
  const known = parts.map((part) => part?.mainMs).filter((ms) => ms !== undefined);
  return known.length === 0 ? undefined : median(known) / 2;
}

/** What the two passes of a split backward take in a stage of all parts but the first, of what they take in layers alone. */
async function splitFactors(
  request: CalibrationRequest,
  { starts, backward }: Pick<Calibration, 'starts' | 'backward'>,
): Promise<SplitFactors> {
  const { alone } = request;
  const first = starts[1];
  const trial = first === undefined ? undefined : await timeStage(request, [first, alone.length], 'split');
  if (trial === undefined || first === undefined) return { input: 1, weight: 1 };
  const expectedMs = (key: 'inputPart' | 'weightPart'): number =>
    sum(alone.slice(first).map((layer, index) => layer.backwardMs * layer[key] * at(backward, partOf(starts, first + index))));
  const factor = (ms: number, expected: number): number => (expected === 0 ? 1 : ms / expected);
  return {
    input: factor(trial.inputMs, expectedMs('inputPart')),
    weight: factor(trial.backwardMs - trial.inputMs, expectedMs('weightPart')),
  };
}

/** The part that a layer is in. */
function partOf(starts: readonly number[], layer: number): number {
  return starts.findLastIndex((start) => start <= layer);
}

/** Whether a micro-batch of the layers alone takes so long that they are not measured again. */
export function isLong({ alone, before }: Pick<CalibrationRequest, 'alone' | 'before'>): boolean {
  return before !== undefined && sum(alone.map(({ forwardMs, backwardMs }) => forwardMs + backwardMs)) > longMicroBatchMs;
}

/** The layers' times at the batch size of the calibration. */
export function calibratedTimes({ starts, forward, backward, step, split }: Factors, alone: readonly LayerTrial[]): CalibratedTimes {
  const part = (layer: number): number => partOf(starts, layer);
  const forwardMs = alone.map((times, layer) => times.forwardMs * at(forward, part(layer)));
  const backwardMs = alone.map((times, layer) => times.backwardMs * at(backward, part(layer)));
  return {
    forwardMs,
    backwardMs,
    // What has only one of the two is not split.
    backwardInputMs: alone.map(
      ({ inputPart, weightPart }, layer) => at(backwardMs, layer) * (weightPart === 0 ? inputPart : Math.min(1, inputPart * split.input)),
    ),
    backwardWeightMs: alone.map(
      ({ inputPart, weightPart }, layer) => at(backwardMs, layer) * (inputPart === 0 ? weightPart : weightPart * split.weight),
    ),
    stepMs: forwardMs.map((ms, layer) => (ms + at(backwardMs, layer)) * step),
  };
}

/** The calibration at a batch size, or what lies between those of the sizes around it. They are of the same parts. */
export function interpolatedCalibration(known: ReadonlyMap<number, Factors>, batchSize: number): Factors {
  const sizes = [...known.keys()].toSorted((a, b) => a - b);
  const above = sizes.find((size) => size >= batchSize) ?? defined(sizes.at(-1), 'a calibration');
  const below = sizes.findLast((size) => size <= batchSize) ?? above;
  const [from, to] = [defined(known.get(below), 'a calibration'), defined(known.get(above), 'a calibration')];
  if (from === to) return from;
  const share = Math.log(batchSize / below) / Math.log(above / below);
  const between = (a: number, b: number): number => a ** (1 - share) * b ** share;
  const all = (a: readonly number[], b: readonly number[]): readonly number[] => a.map((factor, part) => between(factor, at(b, part)));
  return {
    starts: from.starts,
    forward: all(from.forward, to.forward),
    backward: all(from.backward, to.backward),
    step: between(from.step, to.step),
    split: { input: between(from.split.input, to.split.input), weight: between(from.split.weight, to.split.weight) },
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
 * The first layers of parts of about the same size, to which a layer adds half by its time, half by being one: short layers alone are in the
 * processor's caches, which they are not in a stage, and must not share a part with long ones. Nearby, a part begins where the fewest bytes cross, as the stages
 * of plans do: handing over is part of what it takes. `borderBytes`: what crosses before each layer.
 */
export function partStarts(layerMs: readonly number[], borderBytes: readonly number[] = []): readonly number[] {
  const totalMs = sum(layerMs);
  const positions: number[] = [];
  const even = new Set([0]);
  let passed = 0;
  for (const [layer, ms] of layerMs.entries()) {
    positions.push(passed);
    const size = (totalMs === 0 ? 0 : ms / totalMs / 2) + 1 / layerMs.length / (totalMs === 0 ? 1 : 2);
    if ((passed + size / 2) * partCount >= even.size) even.add(layer);
    passed += size;
  }
  const distance = (layer: number, start: number): number => Math.abs(at(positions, layer) - at(positions, start));
  const bytes = (layer: number): number => borderBytes[layer] ?? 0;
  const nearby = (start: number): readonly number[] =>
    [...positions.keys()].filter((layer) => layer > 0 && distance(layer, start) <= mostMove / partCount);
  const cheapest = (start: number): number =>
    nearby(start).reduce((best, layer) => {
      const fewer = bytes(layer) - bytes(best) || distance(layer, start) - distance(best, start);
      return fewer < 0 ? layer : best;
    }, start);
  return [...new Set([...even].map((start) => (start === 0 ? 0 : cheapest(start))))];
}

/** What each part takes beside its layers alone. Parts that could not be measured take what the measured ones take on average. */
function partFactors(aloneMs: readonly number[], partMs: readonly (number | undefined)[]): readonly number[] {
  const known = partMs.flatMap((ms, part) => (ms === undefined || at(aloneMs, part) === 0 ? [] : [{ ms, aloneMs: at(aloneMs, part) }]));
  const usual = known.length === 0 ? 1 : sum(known.map(({ ms }) => ms)) / sum(known.map(({ aloneMs: ms }) => ms));
  return partMs.map((ms, part) => (ms === undefined || at(aloneMs, part) === 0 ? usual : ms / at(aloneMs, part)));
}

/** Every border between two parts costs something that stages of several parts have not: what all parts take together becomes that of the whole with one border. */
async function borderFactor(request: CalibrationRequest, parts: readonly number[]): Promise<number> {
  const borderCount = parts.length - 1;
  const whole = borderCount === 0 ? undefined : await timeStage(request, [0, request.alone.length], 'apart');
  const partsMs = sum(parts);
  if (whole === undefined || partsMs === 0) return 1;
  const wholeMs = total(whole);
  return (wholeMs + (partsMs - wholeMs) / borderCount) / partsMs;
}

/** The median of last stages that begin at different parts; of the latest of them alone where micro-batches are long. Where none of them fits, as before. */
async function stepFactor(request: CalibrationRequest, starts: readonly number[], isLongMicroBatch: boolean): Promise<number> {
  const end = request.alone.length;
  const anchors = starts.filter((_, part) => part % anchorStride === 0);
  const tried = isLongMicroBatch ? anchors.slice(-1) : anchors;
  const ratios = await inTurn(tried, (start) => stepRatio(request, [start, end]));
  const known = ratios.filter((ratio) => ratio !== undefined);
  return known.length === 0 ? (request.before?.step ?? 1) : median(known);
}

/** Of parts at which last stages are measured both ways, one in so many. */
const anchorStride = 2;

/** A last stage's time as one graph, of its time as two, measured in turn. Undefined where both do not fit together. */
async function stepRatio(request: CalibrationRequest, layers: readonly [number, number]): Promise<number | undefined> {
  if (!fits(request, layers, 2)) return undefined;
  return withTrial(request, layers, 'apart', (apart) => withTrial(request, layers, 'step', (step) => timeRatio(step, apart, request.span)));
}

/** Forward and backward as one graph, as two, or the backward as two of its own. */
type Passes = 'step' | 'apart' | 'split';

/** Undefined where the stage does not fit. */
function timeStage(request: CalibrationRequest, layers: readonly [number, number], passes: Passes): Promise<TrialTimes | undefined> {
  return withTrial(request, layers, passes, (trial) => timeMicroBatches(trial, request.span));
}

async function withTrial<T>(
  request: CalibrationRequest,
  layers: readonly [number, number],
  passes: Passes,
  use: (trial: StageTrial) => Promise<T>,
): Promise<T | undefined> {
  const { engine, sequence, batchSize, training, label, processWork } = request;
  if (!fits(request, layers)) return undefined;
  const common = { sequence, layers, sampleCount: batchSize, microBatchSize: batchSize, training, label };
  const how = { splitBackward: passes === 'split', immediateBackward: passes === 'step' };
  const trial = await createStageTrial(engine, { ...common, ...how }, processWork);
  try {
    return await use(trial);
  } finally {
    trial.release();
  }
}

/** Weights, gradients, their sum, optimizer state, and what is kept, which is there twice while it is copied out; of so many stages at once. */
function fits({ sequence, alone, training, memoryBytes }: CalibrationRequest, [first, end]: readonly [number, number], count = 1): boolean {
  if (memoryBytes === undefined) return true;
  const weightBytes = sum(sequence.layers.slice(first, end).map((layer) => parameterBytes(sequence, layer)));
  const savedBytes = sum(alone.slice(first, end).map((layer) => layer.savedBytes));
  return count * ((3 + optimizerStateCount(training)) * weightBytes + 2 * savedBytes) <= memoryPart * memoryBytes;
}

function sums(starts: readonly number[], alone: readonly LayerTrial[], ms: (layer: LayerTrial) => number): readonly number[] {
  return starts.map((start, part) => sum(alone.slice(start, starts[part + 1]).map(ms)));
}

async function inTurn<T, R>(items: readonly T[], use: (item: T, index: number) => Promise<R>): Promise<readonly R[]> {
  const results: R[] = [];
  for (const [index, item] of items.entries()) results.push(await use(item, index));
  return results;
}

function at(values: readonly number[], index: number): number {
  return defined(values[index], 'a value');
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
