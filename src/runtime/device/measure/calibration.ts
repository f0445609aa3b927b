// From the times of layers compiled alone to times that add up to those of real stages. The model is taken apart at a
// few places; between each two of them, the layers share what that part of the model takes as a stage whose two passes
// are two graphs, less what any stage takes besides its layers: calls, and what is given and handed
// on (half of it is taken from each part, for stages of about two). A stage between any two layers is then off by no
// more than the layers' shares of one part, and by some of its borders. What last stages save, whose passes are one
// graph, is about the same part of their time wherever they begin: one factor, from the whole model and a few others
// (differences between last stages would be mostly noise). All are measured in turn.

import { defined } from '../../../assert.ts';
import type { DeviceTimes } from '../../../cluster/cluster.ts';
import { measuredOverhead } from '../../../cluster/overhead.ts';
import { type LayerSequence, parameterBytes } from '../../../graph/layers.ts';
import { median } from '../../../statistics.ts';
import { at, joined, partOf, type Range, rangesOf, sum, sumsByPart } from './parts.ts';
import { type TrialTimes, timeUpdate, total } from './stage-trial.ts';
import { inPasses, type LayerTrial, type TrialRequest, timeStages, timeTogether, withTrial } from './trials.ts';

/** Times of the layers at one batch size. */
export interface CalibratedTimes {
  readonly forwardMs: readonly number[];
  readonly backwardMs: readonly number[];
  readonly backwardInputMs: readonly number[];
  readonly backwardWeightMs: readonly number[];
}

/** How stages differ from their layers alone; `forward` and `backward` by part of the model. */
export interface Factors {
  /** The first layer of each part. */
  readonly starts: readonly number[];
  readonly forward: readonly number[];
  readonly backward: readonly number[];
  /** What both passes take as one graph, of what they take as two. */
  readonly fused: number;
  /** Of the passes of a split backward, after calibration. */
  readonly split: SplitFactors;
}

/** The factors at one batch size. */
export interface Calibration extends Factors {
  /** What a stage takes for a micro-batch besides its layers: each part has it, and the whole model once. */
  readonly overheadMs: number;
  /** Of overheadMs, what the calls of both passes take, whatever the batch; the rest grows with tensors handed on. */
  readonly callsMs: number;
  /** What the main thread does for a micro-batch; undefined where that is not known. */
  readonly mainMs: number | undefined;
  /** An update of the whole model, beyond what `backwardMs` has. Undefined where it does not fit. */
  readonly updateMs: number | undefined;
}

/** By part of the model. */
interface SplitFactors {
  readonly input: readonly number[];
  readonly weight: readonly number[];
}

/** The passes of a split backward as they are in layers alone. */
export function noSplit(starts: readonly number[]): SplitFactors {
  const ones = starts.map(() => 1);
  return { input: ones, weight: ones };
}

export interface CalibrationRequest extends TrialRequest {
  /** The first layer of each part (`partStarts`). */
  readonly starts: readonly number[];
  /** Of the batch size before. Where a micro-batch takes long, part of it is kept. */
  readonly before?: Calibration | undefined;
  /** Taken as known at the first batch size: on slow devices only parts of the model are measured. */
  readonly assumed?: KnownFactors | undefined;
}

/** What need not be measured again where a micro-batch takes long. */
export type KnownFactors = Pick<Calibration, 'overheadMs' | 'callsMs' | 'split'>;

/** Of what goes with borders, this part is taken from each part: stages before the last are about two parts. */
const borderPart = 0.5;
/** Stages at which a split backward is measured. */
const splitStages = 3;
/** Of parts, every third is one at which a last stage is measured. */
const anchorStride = 3;
/** A micro-batch of the whole model that takes longer is measured less often. */
export const longMicroBatchMs = 600;

/** Measures stages at one batch size. */
export async function calibrate(request: CalibrationRequest): Promise<Calibration> {
  const { alone, starts, before, assumed } = request;
  const end = alone.length;
  const aloneMs = {
    forward: sumsByPart(starts, alone, ({ forwardMs }) => forwardMs),
    backward: sumsByPart(starts, alone, ({ backwardMs }) => backwardMs),
  };
  // Of a micro-batch that takes long, some of what is known is kept.
  const isLong = before !== undefined && sum(partTimes(aloneMs, before)) > longMicroBatchMs;
  const known = before === undefined ? assumed : isLong ? before : undefined;
  const ranges = rangesOf(starts, end);
  const wholes: readonly Range[] = known !== undefined || ranges.length === 1 ? [] : [[0, end]];
  const anchors = starts.filter((_, part) => part % anchorStride === 0).slice(known === undefined ? 0 : -1);
  const lasts = anchors.map((start): Range => [start, end]);
  const stages = [...inPasses([...ranges, ...wholes], 'apart'), ...inPasses(lasts, 'step')];
  // Updates of the whole model, which is the first of the last stages, or of its parts.
  const updated = known === undefined ? [ranges.length + wholes.length] : [...ranges.keys()];
  const updatesMs: number[] = [];
  const times = await timeStages(request, stages, async (trial, index) => {
    if (before === undefined && updated.includes(index))
      updatesMs.push(await (known === undefined ? timeUpdate(trial) : trial.update()));
  });
  const isUpdateKnown = before === undefined && updatesMs.length === updated.length;
  const updateMs = isUpdateKnown ? sum(updatesMs) : before?.updateMs;
  const parts = times.slice(0, ranges.length);
  const whole = wholes.length === 0 ? undefined : times[ranges.length];
  const overheadMs = known?.overheadMs ?? stageOverheadMs(parts, whole);
  const callsMs = before?.callsMs ?? overheadMs;
  const lessMs = callsMs + borderPart * Math.max(0, overheadMs - callsMs);
  const factorsOf = (pass: 'forward' | 'backward'): readonly number[] =>
    partFactors(
      aloneMs[pass],
      parts.map((part) => part && layersMs(part[`${pass}Ms`], lessMs / 2)),
    );
  const factors = { forward: factorsOf('forward'), backward: factorsOf('backward') };
  const fusedMs = times.slice(-lasts.length).map((last) => last && layersMs(total(last), callsMs));
  const partMs = partTimes(aloneMs, factors);
  const apartMs = anchors.map((anchor) => sum(partMs.slice(starts.indexOf(anchor))));
  const fused = fusedFactor(apartMs, fusedMs) ?? before?.fused ?? 1;
  const split = known?.split ?? (await splitFactors(request, { callsMs, lessMs }));
  const mains = parts.map((part) => part?.mainMs).filter((ms) => ms !== undefined);
  const mainMs = mains.length === 0 ? undefined : median(mains);
  return { starts, overheadMs, callsMs, ...factors, fused, split, mainMs, updateMs };
}

/** By part of the model, of both passes. */
type PassParts = Readonly<Record<'forward' | 'backward', readonly number[]>>;

/** What both passes of each part take, from its layers alone and its factors. */
function partTimes(aloneMs: PassParts, { forward, backward }: PassParts): readonly number[] {
  return forward.map(
    (factor, part) => at(aloneMs.forward, part) * factor + at(aloneMs.backward, part) * at(backward, part),
  );
}

/** Each of the parts takes something besides its layers, the whole model only once. */
function stageOverheadMs(parts: readonly (TrialTimes | undefined)[], whole: TrialTimes | undefined): number {
  const known = parts.filter((part) => part !== undefined);
  if (whole === undefined || known.length < parts.length) return 0;
  return Math.max(0, sum(known.map(total)) - total(whole)) / (known.length - 1);
}

/** What layers take of a time: at least half of it. */
export function layersMs(ms: number, overheadMs: number): number {
  return Math.max(ms / 2, ms - overheadMs);
}

/**
 * What the two passes of a split backward take, of what they take in layers alone. Measured in stages of a few parts,
 * as plans have them: what the first pass leaves for the second grows faster than a stage does. The first part has no
 * input gradients to give; it is taken to be as the others are.
 */
async function splitFactors(request: CalibrationRequest, less: StageOverhead): Promise<SplitFactors> {
  const { alone, starts } = request;
  const ranges = joined(rangesOf(starts, alone.length).slice(1), splitStages);
  const times = await timeTogether(request, [...inPasses(ranges, 'apart'), ...inPasses(ranges, 'split')]);
  const found = (times.length === 0 ? [] : ranges).map((range, index) => {
    const whole = defined(times[index], 'a whole pass');
    const split = defined(times[ranges.length + index], 'a split one');
    return { range, ...splitFactorsOf(alone.slice(...range), { whole, split }, less) };
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

/** What a stage takes besides its layers: the calls of both passes, and these with its part of the borders. */
interface StageOverhead {
  readonly callsMs: number;
  readonly lessMs: number;
}

/**
 * Of one stage, measured with one backward pass and with two. What its forward pass takes more with two, since other
 * memory is in the processor's caches then, counts with the input gradients.
 */
function splitFactorsOf(
  layers: readonly LayerTrial[],
  { whole, split }: { readonly whole: TrialTimes; readonly split: TrialTimes },
  { callsMs, lessMs }: StageOverhead,
): { readonly input: number | undefined; readonly weight: number | undefined } {
  const wholeMs = layersMs(whole.backwardMs, lessMs / 2);
  const factor = (ms: number, key: 'inputPart' | 'weightPart'): number | undefined => {
    const expected =
      sum(layers.map((layer) => layer.backwardMs * layer[key])) / sum(layers.map(({ backwardMs }) => backwardMs));
    return expected > 0 && wholeMs > 0 ? ms / (expected * wholeMs) : undefined;
  };
  return {
    input: factor(layersMs(split.inputMs, lessMs / 2 - (split.forwardMs - whole.forwardMs)), 'inputPart'),
    weight: factor(layersMs(split.backwardMs - split.inputMs, callsMs / 2), 'weightPart'),
  };
}

/** The layers' times at the batch size of the calibration. */
export function calibratedTimes(
  { starts, forward, backward, split }: Omit<Factors, 'fused'>,
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
  };
}

/** The times of a device as a profile has them, from its layers' times by batch size and what it pays besides. */
export function deviceTimes(
  sequence: LayerSequence,
  frozen: readonly string[],
  calibrated: readonly CalibratedTimes[],
  {
    fusedFactors,
    callsMs,
    mainMs,
    updateMs,
  }: {
    /** By batch size. */
    readonly fusedFactors: readonly number[];
    /** Of a micro-batch, which has two passes. */
    readonly callsMs: number;
    readonly mainMs: number | undefined;
    /** Of the whole model; undefined: not known. */
    readonly updateMs: number | undefined;
  },
): DeviceTimes {
  return {
    forwardMs: calibrated.map(({ forwardMs }) => forwardMs),
    backwardMs: calibrated.map(({ backwardMs }) => backwardMs),
    backwardInputMs: calibrated.map(({ backwardInputMs }) => backwardInputMs),
    backwardWeightMs: calibrated.map(({ backwardWeightMs }) => backwardWeightMs),
    ...(updateMs === undefined ? {} : { updateMs: sharedByWeight(sequence, frozen, updateMs) }),
    ...measuredOverhead(calibrated, {
      fusedFactors,
      callMs: callsMs / 2,
      wakeMs: mainMs === undefined ? undefined : mainMs / 2,
    }),
  };
}

/** Computes one micro-batch of the whole model: memory that the process has never touched makes first runs slow. */
export async function warmUp(request: CalibrationRequest): Promise<void> {
  await withTrial(request, [0, request.alone.length], 'step', (trial) => trial.microBatch());
}

/** An update's time goes with the bytes that it changes. */
function sharedByWeight(sequence: LayerSequence, frozen: readonly string[], updateMs: number): readonly number[] {
  const isFrozen = new Set(frozen);
  const bytes = sequence.layers.map((layer) =>
    parameterBytes(sequence, { ...layer, parameters: layer.parameters.filter((name) => !isFrozen.has(name)) }),
  );
  const total = bytes.reduce((sum, each) => sum + each, 0);
  return bytes.map((each) => (total === 0 ? 0 : (updateMs * each) / total));
}

/**
 * What each part takes, of what its layers alone take. Parts that could not be measured take what the measured ones
 * average.
 */
export function partFactors(aloneMs: readonly number[], partMs: readonly (number | undefined)[]): readonly number[] {
  const known = partMs.flatMap((ms, part) =>
    ms === undefined || at(aloneMs, part) === 0 ? [] : [{ ms, aloneMs: at(aloneMs, part) }],
  );
  const usual = known.length === 0 ? 1 : sum(known.map(({ ms }) => ms)) / sum(known.map(({ aloneMs: ms }) => ms));
  return partMs.map((ms, part) => (ms === undefined || at(aloneMs, part) === 0 ? usual : ms / at(aloneMs, part)));
}

/**
 * What last stages take as one graph, of what their parts take as two; long ones count more. Undefined where none is
 * known.
 */
function fusedFactor(apartMs: readonly number[], fusedMs: readonly (number | undefined)[]): number | undefined {
  const known = fusedMs.flatMap((ms, index) =>
    ms === undefined || apartMs[index] === 0 ? [] : [{ ms, apartMs: at(apartMs, index) }],
  );
  if (known.length === 0) return undefined;
  return sum(known.map(({ ms }) => ms)) / sum(known.map(({ apartMs: ms }) => ms));
}
