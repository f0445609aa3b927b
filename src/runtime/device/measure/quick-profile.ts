// A profile in seconds, for a run that begins at once: layers alone for one sample and for as many as take about a
// quarter of a second, and at that size the whole model as a few real stages, the last in both forms. Other batch
// sizes follow from a line through the two. Graphs are compiled two to three times over, against thirty in a full
// profile (profiler.ts).

import { defined } from '../../../assert.ts';
import type { Engine } from '../../../engine/engine.ts';
import { cutBytes, type LayerSequence } from '../../../graph/layers.ts';
import { median } from '../../../statistics.ts';
import { calibratedTimes, deviceTimes, type Factors, layersMs, noSplit, partFactors } from './calibration.ts';
import { timeLayerLines } from './layer-lines.ts';
import { type LayerTrialOptions, type Runs, timeEmptyRun, timeLayersAt } from './layer-trials.ts';
import type { FoundTimes, ProfileOptions } from './measurement.ts';
import { partStarts, rangesOf, sum, sumsByPart } from './parts.ts';
import { type Span, total } from './stage-trial.ts';
import { inPasses, type LayerTrial, type TrialRequest, timeCalls, timeStages } from './trials.ts';

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
  const lines = await timeLayerLines({
    ...{ smallest, most, kinds, splitPart, layersAt },
    secondSize: (sampleMs) => samplesFor(byFlops, sampleMs),
  });
  const { small, large, batchSize } = lines;
  const common = { engine, sequence, training, label, memoryBytes, clock, processWork, span };
  const callsMs = await timeCalls({ ...common, batchSize: smallest, alone: small });
  const found = await stageFactors({ ...common, batchSize, alone: large }, callsMs);
  onStep();
  const calibrated = batchSizes.map((size) => calibratedTimes(found.factors, lines.at(size)));
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

/** Samples of a micro-batch that is short enough to wait for, by its floating-point operations. */
function samplesByFlops({ layers }: LayerSequence): number {
  // A backward pass has about two forward passes' work.
  const sampleFlops = 3 * sum(layers.map(({ flops }) => flops));
  return sampleFlops === 0 ? Number.POSITIVE_INFINITY : (microBatchMs * flopsPerMs) / sampleFlops;
}

/** Samples of a micro-batch to measure, from what one takes among few, which is more than one takes among many. */
function samplesFor(byFlops: number, sampleMs: number): number {
  const mostCount = longestMs / sampleMs;
  return Math.max(microBatchMs / sampleMs, Math.min(mostCount, Math.max(tellingCount, byFlops)));
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
