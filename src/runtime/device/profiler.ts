// Measures each layer's forward and backward time on this device at several batch sizes. Layers alone add up to more than a stage compiled whole
// (calls, layout changes), so the sum is scaled to the time of the whole model, measured at the same batch sizes. Identical layers are measured once.

import { defined } from '../../assert.ts';
import { type DifferentiateOptions, differentiate } from '../../autodiff/differentiate.ts';
import type { Clock } from '../../clock.ts';
import type { DeviceTimes, LayerProfile } from '../../cluster/cluster.ts';
import type { Engine, Executable, Value } from '../../engine/engine.ts';
import { loweringOf } from '../../engine/lowering.ts';
import type { ValueInfo } from '../../graph/graph.ts';
import { cutBytes, type Layer, type LayerSequence, parameterBytes } from '../../graph/layers.ts';
import { type StageGraph, stageExtractor } from '../../graph/stage.ts';
import { allocate, elementCount, isFloat, type Tensor } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import { type LeastKept, leastKept, recomputedSizes } from './recomputation.ts';
import { differentiableNames } from './stage-graphs.ts';

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
  /** Parameters that are not trained. */
  readonly frozen: readonly string[];
  readonly clock: Clock;
  readonly cache?: ProfileCache;
  onProgress(done: number, total: number): void;
}

interface PassTimes {
  readonly forwardMs: number;
  readonly backwardMs: number;
  /** Kept for the backward pass, for the whole batch. */
  readonly savedBytes: number;
  /** Where all that can be is computed again. */
  readonly least?: LeastKept | undefined;
}

/** Runs of one graph that are timed: until this time is spent, but at least and at most so many. */
const timedMs = 25;
const minRunCount = 3;
const maxRunCount = 15;

/** Measures all layers of a model on one engine. */
export async function profileLayers(engine: Engine, sequence: LayerSequence, options: ProfileOptions): Promise<MeasuredProfile> {
  const key = cacheKey(engine, sequence, options);
  const known = await options.cache?.read(key);
  if (known !== undefined) return { ...known, layers: renamed(known.layers, sequence), cached: true };
  const { batchSizes, clock, frozen } = options;
  const kinds = layerKinds(sequence, frozen);
  const representatives = new Map(kinds.map((kind, index) => [kind, index] as const).reverse());
  const total = batchSizes.length * (representatives.size + 1);
  let done = 0;
  const measured: PassTimes[][] = [];
  for (const batchSize of batchSizes) {
    const extract = stageExtractor(sequence, batchSize);
    const byKind = new Map<string, PassTimes>();
    for (const [kind, index] of representatives) {
      const stage = extract(index, index + 1);
      const times = await measure(engine, stage, frozen, clock);
      byKind.set(kind, { ...times, least: leastKept(stage, passOptions(engine, stage, frozen)) });
      options.onProgress(++done, total);
    }
    const alone = kinds.map((kind) => defined(byKind.get(kind), kind));
    const whole = await measure(engine, extract(0, sequence.layers.length), frozen, clock);
    options.onProgress(++done, total);
    measured.push(scaleToWhole(alone, whole));
  }
  const profile: MeasuredProfile = {
    layers: layerProfiles(sequence, frozen, defined(measured.at(-1), 'a measurement'), defined(batchSizes.at(-1), 'a batch size')),
    times: {
      forwardMs: measured.map((times) => times.map(({ forwardMs }) => forwardMs)),
      backwardMs: measured.map((times) => times.map(({ backwardMs }) => backwardMs)),
    },
    cached: false,
  };
  // A cache that cannot be written (a full disk, a read-only home) costs time at the next run, not this run.
  await options.cache?.write(key, profile).catch(() => {});
  return profile;
}

function cacheKey(engine: Engine, sequence: LayerSequence, { batchSizes, frozen }: ProfileOptions): string {
  return JSON.stringify([4, engine.name, batchSizes, layerKinds(sequence, frozen)]);
}

/** Equal for layers that cost the same: they compute the same, and train the same of it. */
function layerKinds({ layers }: LayerSequence, frozen: readonly string[]): string[] {
  const isFrozen = new Set(frozen);
  return layers.map(
    ({ signature, parameters }) => `${signature} ${parameters.map((name) => (isFrozen.has(name) ? 'frozen' : 'trained')).join(' ')}`,
  );
}

/** Another model's layers that compute the same, under the names of this one's. */
function renamed(profiles: readonly LayerProfile[], { layers }: LayerSequence): LayerProfile[] {
  return profiles.map((profile, index) => ({ ...profile, name: layers[index]?.name ?? profile.name }));
}

/** Layers keep their proportions; their sum becomes the whole model's time. */
function scaleToWhole(alone: readonly PassTimes[], whole: PassTimes): PassTimes[] {
  const factor = (time: 'forwardMs' | 'backwardMs'): number => {
    const sum = alone.reduce((total, times) => total + times[time], 0);
    return sum > 0 ? Math.min(1, whole[time] / sum) : 1;
  };
  const forward = factor('forwardMs');
  const backward = factor('backwardMs');
  return alone.map((times) => ({ ...times, forwardMs: times.forwardMs * forward, backwardMs: times.backwardMs * backward }));
}

function layerProfiles(sequence: LayerSequence, frozen: readonly string[], times: readonly PassTimes[], batchSize: number): LayerProfile[] {
  const isFrozen = new Set(frozen);
  const frozenBytes = (layer: Layer): number =>
    parameterBytes(sequence, { ...layer, parameters: layer.parameters.filter((name) => isFrozen.has(name)) });
  const sizesOf = (layer: Layer, index: number): Pick<LayerProfile, 'savedBytes' | 'recomputed'> => {
    const passes = defined(times[index], layer.name);
    const savedBytes = Math.ceil(passes.savedBytes / batchSize);
    return { savedBytes, ...recomputedSizes(passes.least, { savedBytes, flops: layer.flops, batchSize }) };
  };
  return sequence.layers.map((layer, index) => ({
    name: layer.name,
    outputBytes: cutBytes(layer.outputs),
    weightBytes: parameterBytes(sequence, layer),
    ...(layer.parameters.some((name) => isFrozen.has(name)) ? { frozenBytes: frozenBytes(layer) } : {}),
    ...sizesOf(layer, index),
    flops: layer.flops,
    // A model with a fixed batch cannot share it out either.
    batchDependent: layer.batchDependent || sequence.fixedBatch !== undefined,
  }));
}

/** How a stage is differentiated on this engine. */
function passOptions(engine: Engine, stage: StageGraph, frozenNames: readonly string[]): Omit<DifferentiateOptions, 'recompute'> {
  const frozen = new Set(frozenNames);
  return {
    inputs: differentiableNames(stage.inputs),
    parameters: stage.graph.parameters.filter((name) => !frozen.has(name)),
    outputs: differentiableOutputs(stage),
    ...loweringOf(engine),
  };
}

/** Compiles, runs and times the two passes of one stage with made-up numbers. */
async function measure(engine: Engine, stage: StageGraph, frozenNames: readonly string[], clock: Clock): Promise<PassTimes> {
  const graphs = differentiate(stage, passOptions(engine, stage, frozenNames));
  const random = createRandom(1);
  const feeds = new Map<string, Value>();
  const feed = ({ name, type, shape }: ValueInfo): Value => {
    const known = feeds.get(name);
    if (known !== undefined) return known;
    const value = engine.upload(madeUp(type, shape as readonly number[], random.uniform));
    feeds.set(name, value);
    return value;
  };
  const forward = await engine.compile(graphs.forward);
  const hasBackward = graphs.inputGradients.length + graphs.parameterGradients.length > 0;
  const backward = hasBackward ? await engine.compile(graphs.backward) : undefined;
  const forwardFeeds = Object.fromEntries(
    graphs.forward.inputs.filter(({ name }) => forward.inputs.includes(name)).map((input) => [input.name, feed(input)]),
  );
  const results = forward.run(forwardFeeds);
  const forwardMs = await time(engine, forward, forwardFeeds, clock);
  let backwardMs = 0;
  if (backward !== undefined) {
    const backwardFeeds = Object.fromEntries(graphs.backward.inputs.map((input) => [input.name, results[input.name] ?? feed(input)]));
    backwardMs = await time(engine, backward, backwardFeeds, clock);
  }
  for (const value of [...feeds.values(), ...Object.values(results)]) engine.release(value);
  forward.release();
  backward?.release();
  const savedBytes = [...graphs.saved, ...graphs.savedInputs].reduce((sum, { bytes }) => sum + bytes, 0);
  return { forwardMs, backwardMs, savedBytes };
}

function differentiableOutputs(stage: StageGraph): string[] {
  const names = differentiableNames(stage.outputs);
  return names.length > 0 ? names : stage.outputs.filter((output) => isFloat(output.type)).map((output) => output.name);
}

/** The median time of a run inside the engine, after one run to warm up. */
async function time(engine: Engine, executable: Executable, feeds: Readonly<Record<string, Value>>, clock: Clock): Promise<number> {
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
  while (times.length < minRunCount || (clock.now() - startMs < timedMs && times.length < maxRunCount)) times.push(await runOnce());
  times.sort((a, b) => a - b);
  return defined(times[Math.floor(times.length / 2)], 'a time');
}

/** Numbers that no kernel is slowed by: floats in [0.1, 1.1), zeros for integers (they may be indices). */
function madeUp(type: ValueInfo['type'], shape: readonly number[], uniform: () => number): Tensor {
  const data = allocate(type, elementCount(shape));
  if (isFloat(type)) for (let index = 0; index < data.length; index++) data[index] = 0.1 + uniform();
  return { type, shape: [...shape], data };
}
