// A profile in seconds, for a run that begins at once: layers alone for one sample and for as many as take about a
// quarter of a second, and at that size the whole model as a few real stages, the last in both forms. Other batch
// sizes follow from a line through the two. Graphs are compiled two to three times over, against thirty in a full
// profile (profiler.ts).

import { defined } from '../../../assert.ts';
import type { Engine } from '../../../engine/engine.ts';
import { cutBytes, type LayerSequence } from '../../../graph/layers.ts';
import { median } from '../../../statistics.ts';
import { calibratedTimes, deviceTimes, type Factors, layersMs, noSplit, partFactors } from './calibration.ts';
import { type LayerTrialOptions, type Runs, scaledTrial, timeEmptyRun, timeLayersAt } from './layer-trials.ts';
import type { FoundTimes, ProfileOptions } from './measurement.ts';
import { at, partStarts, rangesOf, sum, sumsByPart } from './parts.ts';
import { type Span, timeMicroBatches, total } from './stage-trial.ts';
import { inPasses, type LayerTrial, type TrialRequest, timeStages, withTrial } from './trials.ts';

/** A micro-batch that is measured takes about so long at this rate, which one core of a laptop reaches or passes… */
const microBatchMs = 100;
const flopsPerMs = 2.4e7;
/** … but no longer than this by what few samples take, unless these take longer. */
const longestMs = 600;
/** So many samples tell what a sample takes from what a micro-batch takes, whatever its size. */
const tellingCount = 4;
/** Of the time of the backward passes, that of layers whose backward passes are measured split too. */
const splitPart = 0.4;
/** Parts of the model that are measured as stages. */
const partCount = 3;
const runs: Runs = { ms: 1.5, least: 3, most: 4, isShortest: true };
const emptyRuns: Runs = { ms: 5, least: 5, most: 30, isShortest: true };
const span: Span = { ms: 8, runLimit: 1, count: 2, warmRuns: 1 };

/** Times at the first and the last of the batch sizes and any between them. */
export async function quickTimes(
  engine: Engine,
  sequence: LayerSequence,
  options: ProfileOptions & { readonly kinds: readonly string[] },
): Promise<FoundTimes> {
  const { batchSizes, training, label, memoryBytes, processWork, clock, kinds, onProgress } = options;
  const [smallest, most] = [defined(batchSizes[0], 'a batch size'), defined(batchSizes.at(-1), 'a batch size')];
  const steps = new Set(kinds).size * (smallest === most ? 1 : 2) + 1;
  let done = 0;
  const onStep = (): void => onProgress(Math.min(steps, ++done), steps);
  const trialOptions: LayerTrialOptions = { training, clock, kinds, runs, onStep };
  const runMs = await timeEmptyRun(engine, { clock, runs: emptyRuns });
  const layersAt = async (
    size: number,
    which: Pick<LayerTrialOptions, 'isBrief' | 'splitKinds'>,
  ): Promise<readonly LayerTrial[]> =>
    (await timeLayersAt(engine, sequence, size, { ...trialOptions, ...which })).map((trial) => lessRuns(trial, runMs));
  const byFlops = samplesByFlops(sequence);
  const mayGrow = most > smallest;
  const small = await layersAt(smallest, { isBrief: mayGrow });
  const batchSize = mayGrow ? clamp(samplesFor(byFlops, aloneMs(small) / smallest), smallest + 1, most) : smallest;
  const large = mayGrow ? await layersAt(batchSize, { splitKinds: longestKinds(kinds, small) }) : small;
  const common = { engine, sequence, training, label, memoryBytes, clock, processWork, span };
  const callsMs = await timeCalls({ ...common, batchSize: smallest, alone: small });
  const found = await stageFactors({ ...common, batchSize, alone: large }, callsMs);
  onStep();
  const calibrated = batchSizes.map((size) =>
    calibratedTimes(found.factors, onLine({ small, smallest, large, batchSize }, size)),
  );
  const times = deviceTimes(sequence, training.frozen, calibrated, {
    ...found,
    fusedFactors: batchSizes.map(() => found.factors.fused),
    callsMs,
  });
  return { times, largest: large, batchSize };
}

/** A layer without the runs of its two passes: in a stage it has none of its own. Of a short time half stays. */
function lessRuns(trial: LayerTrial, runMs: number): LayerTrial {
  const less = (ms: number): number => (ms === 0 ? 0 : Math.max(ms / 2, ms - runMs));
  return { ...trial, forwardMs: less(trial.forwardMs), backwardMs: less(trial.backwardMs) };
}

/** The kinds of layers that together take most of the time of the backward passes. */
function longestKinds(kinds: readonly string[], layers: readonly LayerTrial[]): ReadonlySet<string> {
  const msByKind = new Map<string, number>();
  for (const [layer, kind] of kinds.entries())
    msByKind.set(kind, (msByKind.get(kind) ?? 0) + defined(layers[layer], kind).backwardMs);
  const longest = [...msByKind].sort(([, one], [, other]) => other - one);
  const wantedMs = splitPart * sum([...msByKind.values()]);
  const found = new Set<string>();
  let knownMs = 0;
  for (const [kind, ms] of longest) {
    if (knownMs >= wantedMs) break;
    found.add(kind);
    knownMs += ms;
  }
  return found;
}

/** Samples of a micro-batch that is short enough to wait for, by its floating-point operations. */
function samplesByFlops({ layers }: LayerSequence): number {
  // A backward pass has about two forward passes' work.
  const sampleFlops = 3 * sum(layers.map(({ flops }) => flops));
  return sampleFlops === 0 ? Number.POSITIVE_INFINITY : (microBatchMs * flopsPerMs) / sampleFlops;
}

/** Samples of a micro-batch to measure, from what one takes among few, which is more than one takes among many. */
function samplesFor(byFlops: number, sampleMs: number): number {
  const mostCount = longestMs / sampleMs;
  return Math.floor(Math.max(microBatchMs / sampleMs, Math.min(mostCount, Math.max(tellingCount, byFlops))));
}

function clamp(value: number, least: number, most: number): number {
  return Math.min(most, Math.max(least, value));
}

function aloneMs(layers: readonly LayerTrial[]): number {
  return sum(layers.map(({ forwardMs, backwardMs }) => forwardMs + backwardMs));
}

/** Each layer on the line through its times at two batch sizes; in proportion where there is one. */
function onLine(
  {
    small,
    smallest,
    large,
    batchSize,
  }: {
    readonly small: readonly LayerTrial[];
    readonly smallest: number;
    readonly large: readonly LayerTrial[];
    readonly batchSize: number;
  },
  size: number,
): readonly LayerTrial[] {
  if (batchSize === smallest) return large.map((trial) => scaledTrial(trial, size / batchSize));
  const part = (size - smallest) / (batchSize - smallest);
  return large.map((trial, layer) => {
    const { forwardMs, backwardMs } = defined(small[layer], 'a layer');
    // Noise must not make more samples take less.
    const along = (few: number, many: number): number => few + part * Math.max(0, many - few);
    return {
      ...trial,
      forwardMs: along(forwardMs, trial.forwardMs),
      backwardMs: along(backwardMs, trial.backwardMs),
    };
  });
}

/** How stages differ from their layers alone, and what the whole model takes for a round's end. */
interface StageFactors {
  readonly factors: Factors;
  readonly mainMs: number | undefined;
  readonly updateMs: number | undefined;
}

/** `callsMs`: what a stage takes for a micro-batch besides its layers. */
async function stageFactors(request: TrialRequest, callsMs: number): Promise<StageFactors> {
  const { sequence, alone } = request;
  const starts = partStarts(
    alone.map(({ forwardMs, backwardMs }) => forwardMs + backwardMs),
    sequence.layers.map((_, layer) => cutBytes(sequence.layers[layer - 1]?.outputs ?? [])),
    partCount,
  );
  const ranges = rangesOf(starts, alone.length);
  // The last part as a last stage stands for all: its passes are one graph.
  const last = defined(ranges.at(-1), 'a part');
  const stages = [...inPasses(ranges, 'apart'), ...inPasses([last], 'step')];
  const updatesMs: number[] = [];
  const times = await timeStages(request, stages, async (trial, index) => {
    // The sum of the gradients is there.
    if (index < ranges.length) updatesMs.push(await trial.update());
  });
  const parts = times.slice(0, ranges.length);
  const step = times[ranges.length];
  const factorsOf = (pass: 'forwardMs' | 'backwardMs'): readonly number[] =>
    partFactors(
      sumsByPart(starts, alone, (layer) => layer[pass]),
      parts.map((part) => part && layersMs(part[pass], callsMs / 2)),
    );
  const known = parts.filter((part) => part !== undefined);
  const lastPart = parts.at(-1);
  const fused =
    lastPart === undefined || step === undefined
      ? 1
      : layersMs(total(step), callsMs) / layersMs(total(lastPart), callsMs);
  const mains = known.map((part) => part.mainMs).filter((ms) => ms !== undefined);
  return {
    factors: {
      starts,
      forward: factorsOf('forwardMs'),
      backward: factorsOf('backwardMs'),
      fused,
      split: noSplit(starts),
    },
    mainMs: mains.length === 0 ? undefined : median(mains),
    updateMs: known.length < parts.length ? undefined : sum(updatesMs),
  };
}

/** What a stage takes for a micro-batch besides its layers, from a small one: the quickest layer with few samples. */
async function timeCalls(request: TrialRequest): Promise<number> {
  const { alone } = request;
  const layerMs = alone.map(({ forwardMs, backwardMs }) => forwardMs + backwardMs);
  const quickest = layerMs.indexOf(Math.min(...layerMs));
  const times = await withTrial(request, [quickest, quickest + 1], 'apart', (trial) => timeMicroBatches(trial, span));
  return times === undefined ? 0 : Math.max(0, total(times) - at(layerMs, quickest));
}
