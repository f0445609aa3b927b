// Measures each layer's forward and backward time on this device at several batch sizes. Layers alone add up to more
// than a stage compiled whole (calls, layout changes), and a stage whose passes are two graphs costs more than one
// whose passes are one: the layers alone (layer-lines.ts) only share out what real stages take (stage-trial.ts), some
// of which are measured at each of the batch sizes, or on slow devices at the first and the last (calibration.ts).

import { defined } from '../../../assert.ts';
import type { DeviceTimes, LayerProfile } from '../../../cluster/cluster.ts';
import { interpolation } from '../../../cluster/times.ts';
import type { Engine } from '../../../engine/engine.ts';
import { cutBytes, frozenBytes, type Layer, type LayerSequence, parameterBytes } from '../../../graph/layers.ts';
import { median } from '../../../statistics.ts';
import { recomputedSizes } from '../recomputation.ts';
import {
  type CalibratedTimes,
  type Calibration,
  calibrate,
  calibratedTimes,
  deviceTimes,
  longMicroBatchMs,
  noSplit,
  warmUp,
} from './calibration.ts';
import { profileInference } from './inference-profile.ts';
import { aloneMs, type LayerLines, timeLayerLines } from './layer-lines.ts';
import { layerKinds, timeLayersAt } from './layer-trials.ts';
import type { FoundTimes, MeasuredProfile, ProfileOptions } from './measurement.ts';
import { at, partStarts } from './parts.ts';
import { quickTimes } from './quick-profile.ts';
import type { Span } from './stage-trial.ts';
import { type LayerTrial, timeCalls } from './trials.ts';

/** Layers alone are measured with no more samples than take so long. */
const longestAloneMs = 3_000;
/** Of the time of the backward passes, that of layers whose backward passes are measured split too. */
const splitPart = 0.9;
/** A device on which a micro-batch of the smallest size takes longer is slow. */
const slowMs = 300;
/** A stage's time is a mean over this span. */
const span: Span = { ms: 12, runLimit: 4, count: 7, warmRuns: 2 };

/** Measures all layers of a model on one engine. */
export async function profileLayers(
  engine: Engine,
  sequence: LayerSequence,
  options: ProfileOptions,
): Promise<MeasuredProfile> {
  const { training, thoroughness = 'full' } = options;
  if (training.isInference === true) return profileInference(engine, sequence, options);
  const kinds = layerKinds(sequence, training.frozen);
  const profile = thoroughness === 'quick' ? quickTimes : fullTimes;
  const { times: found, largest, batchSize } = await profile(engine, sequence, { ...options, kinds });
  // What forward gradients measure as forward passes has tangents.
  const times = training.forwardGradient === undefined ? found : { ...found, tangentMs: found.forwardMs };
  return { layers: layerProfiles(sequence, training.frozen, largest, batchSize), times, cached: false };
}

/** Layers at two batch sizes, and stages at all of them. */
async function fullTimes(
  engine: Engine,
  sequence: LayerSequence,
  options: ProfileOptions & { readonly kinds: readonly string[] },
): Promise<FoundTimes> {
  const { batchSizes, training, clock, kinds } = options;
  const [smallest, most] = [defined(batchSizes[0], 'a batch size'), defined(batchSizes.at(-1), 'a batch size')];
  const total = (smallest === most ? 1 : 2) * new Set(kinds).size + batchSizes.length;
  let done = 0;
  const onStep = (): void => options.onProgress(++done, total);
  const lines = await timeLayerLines({
    ...{ smallest, most, kinds, splitPart },
    secondSize: (sampleMs) => longestAloneMs / sampleMs,
    layersAt: (size, which) => timeLayersAt(engine, sequence, size, { training, clock, kinds, onStep, ...which }),
  });
  const times = await timeParts(engine, sequence, { ...options, lines, onStep });
  return { times, largest: lines.large, batchSize: lines.batchSize };
}

/** What stages come to at one batch size. */
interface SizeTimes {
  readonly batchSize: number;
  readonly calibration: Calibration;
  readonly times: CalibratedTimes;
}

/** The layers' times as real stages take them, and what the processor pays besides. */
async function timeParts(
  engine: Engine,
  sequence: LayerSequence,
  options: ProfileOptions & { readonly lines: LayerLines; onStep(): void },
): Promise<DeviceTimes> {
  const { batchSizes, training, label, memoryBytes, clock, processWork, lines, onStep } = options;
  const most = defined(batchSizes.at(-1), 'a batch size');
  const slowest = lines.at(most);
  const starts = partStarts(
    slowest.map(({ forwardMs, backwardMs }) => forwardMs + backwardMs),
    sequence.layers.map((_, layer) => cutBytes(sequence.layers[layer - 1]?.outputs ?? [])),
  );
  const common = { engine, sequence, starts, training, label, memoryBytes, clock, processWork, span };
  const isLong = (alone: readonly LayerTrial[]): boolean => aloneMs(alone) > longMicroBatchMs;
  if (!isLong(slowest)) await warmUp({ ...common, batchSize: most, alone: slowest });
  const [smallest = most] = batchSizes;
  const isSlow = aloneMs(lines.small) > slowMs;
  const callsMs = isSlow ? await timeCalls({ ...common, batchSize: smallest, alone: lines.small }) : 0;
  const assumed = isSlow ? { overheadMs: callsMs, callsMs, split: noSplit(starts) } : undefined;
  const found: SizeTimes[] = [];
  for (const [index, batchSize] of batchSizes.entries()) {
    const alone = lines.at(batchSize);
    const isBetween = index > 0 && batchSize !== most;
    if (!isBetween || !isLong(alone)) {
      const request = { ...common, batchSize, alone, before: found.at(-1)?.calibration, assumed };
      const calibration = await calibrate(request);
      found.push({ batchSize, calibration, times: calibratedTimes(calibration, alone) });
    }
    onStep();
  }
  const mainMs = found.map(({ calibration }) => calibration.mainMs).filter((ms) => ms !== undefined);
  const { calibration: first } = defined(found[0], 'a batch size');
  const rows = batchSizes.map((size) => timesAt(found, size));
  return deviceTimes(
    sequence,
    training.frozen,
    rows.map(({ times }) => times),
    {
      fusedFactors: rows.map(({ fused }) => fused),
      callsMs: first.callsMs,
      mainMs: mainMs.length === 0 ? undefined : median(mainMs),
      updateMs: first.updateMs,
    },
  );
}

/** As measured, or on the line through the sizes around it. */
function timesAt(
  found: readonly SizeTimes[],
  size: number,
): { readonly times: CalibratedTimes; readonly fused: number } {
  const sizes = found.map(({ batchSize }) => batchSize);
  const { lower, upper, lowerWeight, upperWeight } = interpolation(sizes, size);
  const [below, above] = [defined(found[lower], 'a size'), defined(found[upper], 'a size')];
  if (size === below.batchSize || size === above.batchSize) {
    const { times, calibration } = size === below.batchSize ? below : above;
    return { times, fused: calibration.fused };
  }
  const between = (low: number, high: number): number => lowerWeight * low + upperWeight * high;
  const row = (key: keyof CalibratedTimes): readonly number[] =>
    below.times[key].map((ms, layer) => between(ms, at(above.times[key], layer)));
  return {
    times: {
      forwardMs: row('forwardMs'),
      backwardMs: row('backwardMs'),
      backwardInputMs: row('backwardInputMs'),
      backwardWeightMs: row('backwardWeightMs'),
    },
    fused: between(below.calibration.fused, above.calibration.fused),
  };
}

function layerProfiles(
  sequence: LayerSequence,
  frozen: readonly string[],
  times: readonly LayerTrial[],
  batchSize: number,
): LayerProfile[] {
  const isFrozen = new Set(frozen);
  const sizesOf = (layer: Layer, index: number): Pick<LayerProfile, 'savedBytes' | 'recomputed'> => {
    const passes = defined(times[index], layer.name);
    const savedBytes = Math.ceil(passes.savedBytes / batchSize);
    return { savedBytes, ...recomputedSizes(passes.least, { savedBytes, flops: layer.flops, batchSize }) };
  };
  return sequence.layers.map((layer, index) => ({
    name: layer.name,
    outputBytes: cutBytes(layer.outputs),
    weightBytes: parameterBytes(sequence, layer),
    ...(layer.parameters.some((name) => isFrozen.has(name))
      ? { frozenBytes: frozenBytes(sequence, layer, isFrozen) }
      : {}),
    ...sizesOf(layer, index),
    flops: layer.flops,
    // A model with a fixed batch cannot share it out either.
    batchDependent: layer.batchDependent || sequence.fixedBatch !== undefined,
  }));
}
