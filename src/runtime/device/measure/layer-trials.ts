// Measures layers alone: each compiled by itself, with made-up numbers. Layers of one kind are measured once.

import { defined } from '../../../assert.ts';
import { type DifferentiateOptions, differentiate } from '../../../autodiff/differentiate.ts';
import { tangentGraph } from '../../../autodiff/forward-mode.ts';
import { severalTangents } from '../../../autodiff/several-tangents.ts';
import type { Clock } from '../../../clock.ts';
import type { Engine, Executable, Value } from '../../../engine/engine.ts';
import { loweringOf } from '../../../engine/lowering.ts';
import { GraphBuilder } from '../../../graph/builder.ts';
import type { Graph, ValueInfo } from '../../../graph/graph.ts';
import type { LayerSequence } from '../../../graph/layers.ts';
import { type StageGraph, stageExtractor } from '../../../graph/stage.ts';
import { isFloat } from '../../../graph/tensor.ts';
import { createRandom } from '../../../random.ts';
import { median } from '../../../statistics.ts';
import type { TrainingSpec } from '../../protocol/training-spec.ts';
import { leastKept } from '../recomputation.ts';
import { differentiableNames } from '../stage-graphs.ts';
import { isLong } from './calibration.ts';
import { madeUp } from './stage-trial.ts';
import type { LayerTrial } from './trials.ts';

/** Timed runs of a graph, after one to warm up: until this time is spent, within these counts. */
export interface Runs {
  readonly ms: number;
  readonly least: number;
  readonly most: number;
  /** Of few runs the shortest counts, for what disturbs them makes them longer. Default: the median. */
  readonly isShortest?: boolean;
}

const usualRuns: Runs = { ms: 12, least: 3, most: 15 };

export interface LayerTrialOptions {
  readonly training: TrainingSpec;
  readonly clock: Clock;
  /** Of each layer (`layerKinds`). */
  readonly kinds: readonly string[];
  readonly runs?: Runs;
  /** Only what both passes take: neither the parts of a split backward, nor what must be kept at least. */
  readonly isBrief?: boolean;
  /** Called after each kind at each size. */
  onStep(): void;
}

/** By batch size, ascending: the layers alone. */
export async function timeLayers(
  engine: Engine,
  sequence: LayerSequence,
  { batchSizes, ...options }: LayerTrialOptions & { readonly batchSizes: readonly number[] },
): Promise<readonly (readonly LayerTrial[])[]> {
  const trials: (readonly LayerTrial[])[] = [];
  let previous = 1;
  for (const batchSize of batchSizes) {
    const grown = trials.at(-1)?.map((trial) => scaledTrial(trial, batchSize / previous));
    const isKept = grown !== undefined && isLong(grown);
    if (isKept) for (const _ of new Set(options.kinds)) options.onStep();
    trials.push(isKept ? grown : await timeLayersAt(engine, sequence, batchSize, options));
    previous = batchSize;
  }
  return trials;
}

/** The layers alone at one batch size, of which those of a kind are measured once. */
export async function timeLayersAt(
  engine: Engine,
  sequence: LayerSequence,
  batchSize: number,
  { training: { frozen, forwardGradient }, clock, kinds, runs = usualRuns, isBrief = false, onStep }: LayerTrialOptions,
): Promise<readonly LayerTrial[]> {
  const representatives = new Map(kinds.map((kind, index) => [kind, index] as const).reverse());
  const extract = stageExtractor(sequence, batchSize);
  const byKind = new Map<string, LayerTrial>();
  for (const [kind, index] of representatives) {
    const stage = extract(index, index + 1);
    const tangentCount = forwardGradient?.tangentCount ?? 0;
    const trial = await measure(engine, stage, { frozen, tangentCount, clock, runs, isBrief });
    const least = isBrief || tangentCount > 0 ? {} : { least: leastKept(stage, passOptions(engine, stage, frozen)) };
    byKind.set(kind, { ...trial, ...least });
    onStep();
  }
  return kinds.map((kind) => defined(byKind.get(kind), kind));
}

/** A layer at another batch size, where it is not measured: calibration needs its part among the layers around it. */
export function scaledTrial(trial: LayerTrial, factor: number): LayerTrial {
  const { forwardMs, backwardMs, savedBytes, least } = trial;
  return {
    ...trial,
    forwardMs: forwardMs * factor,
    backwardMs: backwardMs * factor,
    savedBytes: savedBytes * factor,
    least: least && { ...least, savedBytes: least.savedBytes * factor },
  };
}

/** Equal for layers that cost the same: they compute the same, and train the same of it. */
export function layerKinds({ layers }: LayerSequence, frozen: readonly string[]): string[] {
  const isFrozen = new Set(frozen);
  return layers.map(
    ({ signature, parameters }) =>
      `${signature} ${parameters.map((name) => (isFrozen.has(name) ? 'frozen' : 'trained')).join(' ')}`,
  );
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

interface MeasureOptions {
  readonly frozen: readonly string[];
  /** 0: by backpropagation. */
  readonly tangentCount: number;
  readonly isBrief: boolean;
}

/** Compiles, runs and times the passes of one layer with made-up numbers. */
async function measure(
  engine: Engine,
  stage: StageGraph,
  { frozen, tangentCount, isBrief, ...timing }: Timing & MeasureOptions,
): Promise<LayerTrial> {
  const options = passOptions(engine, stage, frozen);
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
    const ms = await time(engine, executable, feeds, timing);
    for (const [name, value] of Object.entries(executable.run(feeds))) {
      if (values.has(name)) engine.release(value);
      else values.set(name, value);
    }
    executable.release();
    return ms;
  };
  if (tangentCount > 0) {
    const tangents = severalTangents(tangentGraph(stage, options), tangentCount);
    const forwardMs = await timed(tangents.graph);
    for (const value of values.values()) engine.release(value);
    await engine.settled();
    return { forwardMs, backwardMs: 0, inputPart: 0, weightPart: 0, savedBytes: 0 };
  }
  const graphs = differentiate(stage, options);
  const forwardMs = await timed(graphs.forward);
  const hasBoth = !isBrief && graphs.inputGradients.length > 0 && graphs.parameterGradients.length > 0;
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

export interface Timing {
  readonly clock: Clock;
  readonly runs: Runs;
}

/** The median time of a run inside the engine, after one run to warm up. */
async function time(
  engine: Engine,
  executable: Executable,
  feeds: Readonly<Record<string, Value>>,
  { clock, runs }: Timing,
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
  while (times.length < runs.least || (clock.now() - startMs < runs.ms && times.length < runs.most))
    times.push(await runOnce());
  return runs.isShortest === true ? Math.min(...times) : median(times);
}

/** What a run of next to nothing takes inside the engine. */
export async function timeEmptyRun(engine: Engine, timing: Timing): Promise<number> {
  const builder = new GraphBuilder('empty', { seed: 1 });
  const executable = await engine.compile(builder.build([builder.relu(builder.input('x', 'float32', [1]))]));
  const x = engine.upload(madeUp('float32', [1], () => 0));
  const ms = await time(engine, executable, { x }, timing);
  engine.release(x);
  executable.release();
  return ms;
}
