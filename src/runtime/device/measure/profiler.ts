// Measures each layer's forward and backward time on this device at several batch sizes. Layers alone add up to more
// than a stage compiled whole (calls, layout changes), and a stage whose passes are two graphs costs more than one
// whose passes are one: the layers alone only share out what real stages take (stage-trial.ts), some of which are
// measured at each of the batch sizes (calibration.ts).

import { defined } from '../../../assert.ts';
import { type DifferentiateOptions, differentiate } from '../../../autodiff/differentiate.ts';
import type { Clock } from '../../../clock.ts';
import type { DeviceTimes, LayerProfile } from '../../../cluster/cluster.ts';
import { measuredOverhead } from '../../../cluster/overhead.ts';
import type { Engine, Executable, Value } from '../../../engine/engine.ts';
import { loweringOf } from '../../../engine/lowering.ts';
import type { ProcessClock } from '../../../engine/process-clock.ts';
import type { Graph, ValueInfo } from '../../../graph/graph.ts';
import {
  type CutTensor,
  cutBytes,
  frozenBytes,
  type Layer,
  type LayerSequence,
  parameterBytes,
} from '../../../graph/layers.ts';
import { type StageGraph, stageExtractor } from '../../../graph/stage.ts';
import { isFloat } from '../../../graph/tensor.ts';
import { createRandom } from '../../../random.ts';
import { median } from '../../../statistics.ts';
import type { TrainingSpec } from '../../protocol/training-spec.ts';
import { leastKept, recomputedSizes } from '../recomputation.ts';
import { differentiableNames } from '../stage-graphs.ts';
import {
  type CalibratedTimes,
  type Calibration,
  calibrate,
  calibratedTimes,
  isLong,
  timeWholeUpdate,
  warmUp,
} from './calibration.ts';
import { partStarts } from './parts.ts';
import { madeUp, type Span } from './stage-trial.ts';
import type { LayerTrial } from './trials.ts';

/** A measured profile of one device. */
export interface MeasuredProfile {
  readonly layers: readonly LayerProfile[];
  readonly times: DeviceTimes;
  /** True when it was not measured now but read from the cache. */
  readonly cached: boolean;
}

/** A cache of measured profiles on this device. */
export interface ProfileCache {
  read(key: string): Promise<MeasuredProfile | undefined>;
  write(key: string, profile: MeasuredProfile): Promise<void>;
}

export interface ProfileOptions {
  /** Ascending. */
  readonly batchSizes: readonly number[];
  /** Loss, optimizer and frozen parameters count. */
  readonly training: TrainingSpec;
  /** What a sample's label is. */
  readonly label: CutTensor;
  /** What this device may use; stages that do not fit are not tried. Default: not known. */
  readonly memoryBytes?: number | undefined;
  readonly clock: Clock;
  /** What this process has done (`createProcessClock`). Default: not known. */
  readonly processWork?: ProcessClock | undefined;
  onProgress(done: number, total: number): void;
}

/** Timed runs of a layer alone: until this time is spent, within these counts. */
const timedMs = 12;
const minRunCount = 3;
const maxRunCount = 15;
/** A stage's time is a mean over this span. */
const span: Span = { ms: 12, runLimit: 4 };

/**
 * What a cache holds of a model on an engine of this name, or else what `measure` finds, which it holds from now on.
 */
export async function cachedProfile(
  cache: ProfileCache | undefined,
  {
    engineName,
    sequence,
    ...options
  }: Pick<ProfileOptions, 'batchSizes' | 'training' | 'label'> & {
    readonly engineName: string;
    readonly sequence: LayerSequence;
  },
  measure: () => Promise<MeasuredProfile>,
): Promise<MeasuredProfile> {
  const key = cacheKey(engineName, sequence, options);
  const known = await cache?.read(key);
  if (known !== undefined) return { ...known, layers: renamed(known.layers, sequence), cached: true };
  const profile = await measure();
  // A cache that cannot be written (a full disk, a read-only home) costs time at the next run, not this run.
  await cache?.write(key, profile).catch(() => {});
  return profile;
}

/** Measures all layers of a model on one engine. */
export async function profileLayers(
  engine: Engine,
  sequence: LayerSequence,
  options: ProfileOptions,
): Promise<MeasuredProfile> {
  const { batchSizes, training } = options;
  const kinds = layerKinds(sequence, training.frozen);
  const total = batchSizes.length * (new Set(kinds).size + 1);
  let done = 0;
  const onStep = (): void => options.onProgress(++done, total);
  const trials = await timeLayers(engine, sequence, { ...options, kinds, onStep });
  const [largest, slowest] = [defined(batchSizes.at(-1), 'a batch size'), defined(trials.at(-1), 'a measurement')];
  return {
    layers: layerProfiles(sequence, training.frozen, slowest, largest),
    times: await timeParts(engine, sequence, { ...options, trials, onStep }),
    cached: false,
  };
}

/** By batch size: the layers alone, of which those of a kind are measured once. */
async function timeLayers(
  engine: Engine,
  sequence: LayerSequence,
  options: ProfileOptions & { readonly kinds: readonly string[]; onStep(): void },
): Promise<readonly (readonly LayerTrial[])[]> {
  const { batchSizes, training, clock, kinds, onStep } = options;
  const representatives = new Map(kinds.map((kind, index) => [kind, index] as const).reverse());
  const trials: (readonly LayerTrial[])[] = [];
  let previous = 1;
  for (const batchSize of batchSizes) {
    const grown = trials.at(-1)?.map((trial) => scaledTrial(trial, batchSize / previous));
    const isKept = grown !== undefined && isLong(grown);
    const extract = isKept ? undefined : stageExtractor(sequence, batchSize);
    const byKind = new Map<string, LayerTrial>();
    for (const [kind, index] of representatives) {
      if (extract !== undefined) {
        const stage = extract(index, index + 1);
        const trial = await measure(engine, stage, training.frozen, clock);
        byKind.set(kind, { ...trial, least: leastKept(stage, passOptions(engine, stage, training.frozen)) });
      }
      onStep();
    }
    trials.push(isKept ? grown : kinds.map((kind) => defined(byKind.get(kind), kind)));
    previous = batchSize;
  }
  return trials;
}

/** The layers' times as real stages take them, and what the processor pays besides. */
async function timeParts(
  engine: Engine,
  sequence: LayerSequence,
  options: ProfileOptions & { readonly trials: readonly (readonly LayerTrial[])[]; onStep(): void },
): Promise<DeviceTimes> {
  const { batchSizes, training, label, memoryBytes, processWork, trials, onStep } = options;
  const slowest = defined(trials.at(-1), 'a measurement');
  const starts = partStarts(
    slowest.map(({ forwardMs, backwardMs }) => forwardMs + backwardMs),
    sequence.layers.map((_, layer) => cutBytes(sequence.layers[layer - 1]?.outputs ?? [])),
  );
  const common = { engine, sequence, starts, training, label, memoryBytes, processWork, span };
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
  return {
    forwardMs: calibrated.map(({ forwardMs }) => forwardMs),
    backwardMs: calibrated.map(({ backwardMs }) => backwardMs),
    backwardInputMs: calibrated.map(({ backwardInputMs }) => backwardInputMs),
    backwardWeightMs: calibrated.map(({ backwardWeightMs }) => backwardWeightMs),
    ...(updateMs === undefined ? {} : { updateMs: sharedByWeight(sequence, training.frozen, updateMs) }),
    // A micro-batch has two passes.
    ...measuredOverhead(calibrated, {
      fusedFactors: calibrations.map(({ fused }) => fused),
      callMs: defined(calibrations[0], 'a calibration').callsMs / 2,
      wakeMs: mainMs.length === 0 ? undefined : median(mainMs) / 2,
    }),
  };
}

/** A layer at another batch size, where it is not measured: calibration needs its part among the layers around it. */
function scaledTrial(trial: LayerTrial, factor: number): LayerTrial {
  const { forwardMs, backwardMs, savedBytes, least } = trial;
  return {
    ...trial,
    forwardMs: forwardMs * factor,
    backwardMs: backwardMs * factor,
    savedBytes: savedBytes * factor,
    least: least && { ...least, savedBytes: least.savedBytes * factor },
  };
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

/** All that the times depend on, but for the device itself. */
function cacheKey(
  engineName: string,
  sequence: LayerSequence,
  { batchSizes, training, label }: Pick<ProfileOptions, 'batchSizes' | 'training' | 'label'>,
): string {
  const { frozen, loss, optimizer } = training;
  return JSON.stringify([
    22,
    engineName,
    batchSizes,
    layerKinds(sequence, frozen),
    loss,
    optimizer.kind,
    label.type,
    label.shape,
  ]);
}

/** Equal for layers that cost the same: they compute the same, and train the same of it. */
function layerKinds({ layers }: LayerSequence, frozen: readonly string[]): string[] {
  const isFrozen = new Set(frozen);
  return layers.map(
    ({ signature, parameters }) =>
      `${signature} ${parameters.map((name) => (isFrozen.has(name) ? 'frozen' : 'trained')).join(' ')}`,
  );
}

/** Another model's layers that compute the same, under the names of this one's. */
function renamed(profiles: readonly LayerProfile[], { layers }: LayerSequence): LayerProfile[] {
  return profiles.map((profile, index) => ({ ...profile, name: layers[index]?.name ?? profile.name }));
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

/** How a stage is differentiated on this engine. */
function passOptions(
  engine: Engine,
  stage: StageGraph,
  frozenNames: readonly string[],
): Omit<DifferentiateOptions, 'recompute'> {
  const frozen = new Set(frozenNames);
  return {
    inputs: differentiableNames(stage.inputs),
    parameters: stage.graph.parameters.filter((name) => !frozen.has(name)),
    outputs: differentiableOutputs(stage),
    ...loweringOf(engine),
  };
}

/** Compiles, runs and times the passes of one layer with made-up numbers. */
async function measure(
  engine: Engine,
  stage: StageGraph,
  frozenNames: readonly string[],
  clock: Clock,
): Promise<LayerTrial> {
  const graphs = differentiate(stage, passOptions(engine, stage, frozenNames));
  const random = createRandom(1);
  const values = new Map<string, Value>();
  const valueFor = ({ name, type, shape }: ValueInfo): Value => {
    const value = values.get(name) ?? engine.upload(madeUp(type, shape as readonly number[], random.uniform));
    values.set(name, value);
    return value;
  };
  const timed = async (graph: Graph): Promise<number> => {
    if (graph.outputs.length === 0) return 0;
    const executable = await engine.compile(graph);
    const types = new Map(graph.inputs.map((input) => [input.name, input]));
    const feeds = Object.fromEntries(executable.inputs.map((name) => [name, valueFor(defined(types.get(name), name))]));
    const ms = await time(engine, executable, feeds, clock);
    for (const [name, value] of Object.entries(executable.run(feeds))) {
      if (values.has(name)) engine.release(value);
      else values.set(name, value);
    }
    executable.release();
    return ms;
  };
  const forwardMs = await timed(graphs.forward);
  const hasBoth = graphs.inputGradients.length > 0 && graphs.parameterGradients.length > 0;
  const backwardMs = await timed(graphs.backward);
  const inputMs = hasBoth ? await timed(graphs.backwardInput) : graphs.inputGradients.length > 0 ? backwardMs : 0;
  const weightMs = hasBoth ? await timed(graphs.backwardWeight) : backwardMs - inputMs;
  const partOf = (ms: number): number => (backwardMs > 0 ? ms / backwardMs : 0);
  for (const value of values.values()) engine.release(value);
  await engine.settled();
  const savedBytes = [...graphs.saved, ...graphs.savedInputs].reduce((sum, { bytes }) => sum + bytes, 0);
  return { forwardMs, backwardMs, inputPart: partOf(inputMs), weightPart: partOf(weightMs), savedBytes };
}

function differentiableOutputs(stage: StageGraph): string[] {
  const names = differentiableNames(stage.outputs);
  return names.length > 0 ? names : stage.outputs.filter((output) => isFloat(output.type)).map((output) => output.name);
}

/** The median time of a run inside the engine, after one run to warm up. */
async function time(
  engine: Engine,
  executable: Executable,
  feeds: Readonly<Record<string, Value>>,
  clock: Clock,
): Promise<number> {
  const runOnce = async (): Promise<number> => {
    const before = engine.busyMs();
    const results = executable.run(feeds);
    for (const value of Object.values(results)) engine.release(value);
    await engine.settled();
    return engine.busyMs() - before;
  };
  await runOnce();
  const times: number[] = [];
  const startMs = clock.now();
  while (times.length < minRunCount || (clock.now() - startMs < timedMs && times.length < maxRunCount))
    times.push(await runOnce());
  return median(times);
}
