// Measures each layer's forward and backward time on this device at several batch sizes. Layers alone add up to more
// than a stage compiled whole (calls, layout changes), and a stage whose passes are two graphs costs more than one
// whose passes are one: the layers alone only share out what real stages take (stage-trial.ts), some of which are
// measured at each of the batch sizes (calibration.ts).

import { defined } from '../../../assert.ts';
import type { DeviceTimes, LayerProfile } from '../../../cluster/cluster.ts';
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
  timeWholeUpdate,
  warmUp,
} from './calibration.ts';
import { profileInference } from './inference-profile.ts';
import { layerKinds, timeLayers } from './layer-trials.ts';
import type { FoundTimes, MeasuredProfile, ProfileOptions } from './measurement.ts';
import { partStarts } from './parts.ts';
import { quickTimes } from './quick-profile.ts';
import type { Span } from './stage-trial.ts';
import type { LayerTrial } from './trials.ts';

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

/** Layers and stages at all batch sizes. */
async function fullTimes(
  engine: Engine,
  sequence: LayerSequence,
  options: ProfileOptions & { readonly kinds: readonly string[] },
): Promise<FoundTimes> {
  const { batchSizes, kinds } = options;
  const total = batchSizes.length * (new Set(kinds).size + 1);
  let done = 0;
  const onStep = (): void => options.onProgress(++done, total);
  const trials = await timeLayers(engine, sequence, { ...options, onStep });
  const times = await timeParts(engine, sequence, { ...options, trials, onStep });
  const [batchSize, largest] = [defined(batchSizes.at(-1), 'a batch size'), defined(trials.at(-1), 'a measurement')];
  return { times, largest, batchSize };
}

/** The layers' times as real stages take them, and what the processor pays besides. */
async function timeParts(
  engine: Engine,
  sequence: LayerSequence,
  options: ProfileOptions & { readonly trials: readonly (readonly LayerTrial[])[]; onStep(): void },
): Promise<DeviceTimes> {
  const { batchSizes, training, label, memoryBytes, clock, processWork, trials, onStep } = options;
  const slowest = defined(trials.at(-1), 'a measurement');
  const starts = partStarts(
    slowest.map(({ forwardMs, backwardMs }) => forwardMs + backwardMs),
    sequence.layers.map((_, layer) => cutBytes(sequence.layers[layer - 1]?.outputs ?? [])),
  );
  const common = { engine, sequence, starts, training, label, memoryBytes, clock, processWork, span };
  await warmUp({ ...common, batchSize: defined(batchSizes.at(-1), 'a batch size'), alone: slowest });
  const calibrations: Calibration[] = [];
  const calibrated: CalibratedTimes[] = [];
  let updateMs: number | undefined;
  for (const [index, batchSize] of batchSizes.entries()) {
    const alone = defined(trials[index], 'a measurement');
    const request = { ...common, batchSize, alone, before: calibrations.at(-1) };
    const calibration = await calibrate(request);
    calibrations.push(calibration);
    calibrated.push(calibratedTimes(calibration, alone));
    updateMs ??= await timeWholeUpdate(request);
    onStep();
  }
  const mainMs = calibrations.map((calibration) => calibration.mainMs).filter((ms) => ms !== undefined);
  return deviceTimes(sequence, training.frozen, calibrated, {
    fusedFactors: calibrations.map(({ fused }) => fused),
    callsMs: defined(calibrations[0], 'a calibration').callsMs,
    mainMs: mainMs.length === 0 ? undefined : median(mainMs),
    updateMs,
  });
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
