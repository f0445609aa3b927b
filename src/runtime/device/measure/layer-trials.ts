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
import { type LeastKept, leastKept } from '../recomputation.ts';
import { differentiableNames } from '../stage-graphs.ts';
import { sum } from './parts.ts';
import { madeUp } from './stage-trial.ts';
import type { LayerTrial } from './trials.ts';

/** Timed runs of a graph: until this time is spent, within these counts. */
export interface Runs {
  readonly ms: number;
  readonly least: number;
  readonly most: number;
  /**
   * Of few runs the shortest counts, for what disturbs them makes them longer. Default: the median, after one run to
   * warm up.
   */
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
  /** Kinds of which a split backward is measured; the others are split as these on average. Default: all. */
  readonly splitKinds?: ReadonlySet<string> | undefined;
  /** Called after each kind at each size. */
  onStep(): void;
}

/** The layers alone at one batch size, of which those of a kind are measured once. */
export async function timeLayersAt(
  engine: Engine,
  sequence: LayerSequence,
  batchSize: number,
  {
    training: { frozen, forwardGradient },
    clock,
    kinds,
    runs = usualRuns,
    isBrief = false,
    splitKinds,
    onStep,
  }: LayerTrialOptions,
): Promise<readonly LayerTrial[]> {
  const representatives = new Map(kinds.map((kind, index) => [kind, index] as const).reverse());
  const extract = stageExtractor(sequence, batchSize);
  const tangentCount = forwardGradient?.tangentCount ?? 0;
  const differentiated = (index: number): Differentiated => {
    const stage = extract(index, index + 1);
    const options = passOptions(engine, stage, frozen);
    if (tangentCount > 0) return tangents(stage, options, tangentCount);
    return { ...passesOf(stage, options), least: isBrief ? undefined : leastKept(stage, options) };
  };
  const indices = [...representatives.values()];
  const byKind = new Map<string, LayerTrial>();
  const [measured, unknown] = [new Set<string>(), new Set<string>()];
  let next = indices[0] === undefined ? undefined : differentiated(indices[0]);
  for (const [position, kind] of [...representatives.keys()].entries()) {
    const layer = defined(next, kind);
    const isSplit = layer.hasBoth && !isBrief && splitKinds?.has(kind) !== false;
    const compiled = compilePasses(engine, layer, isSplit);
    // The next layer is differentiated while the engine's thread, which has its messages after this, compiles this one.
    await Promise.resolve();
    const following = indices[position + 1];
    next = following === undefined ? undefined : differentiated(following);
    const trial = await measure(engine, layer, await compiled, { clock, runs });
    byKind.set(kind, { ...trial, ...(isBrief || tangentCount > 0 ? {} : { least: layer.least }) });
    if (layer.hasBoth) (isSplit ? measured : unknown).add(kind);
    onStep();
  }
  const parts = usualParts([...measured].map((kind) => defined(byKind.get(kind), kind)));
  return kinds.map((kind) => ({ ...defined(byKind.get(kind), kind), ...(unknown.has(kind) ? parts : {}) }));
}

/** How backward passes are split on average. Empty where none is known. */
function usualParts(trials: readonly LayerTrial[]): Partial<Pick<LayerTrial, 'inputPart' | 'weightPart'>> {
  const allMs = sum(trials.map(({ backwardMs }) => backwardMs));
  if (allMs === 0) return {};
  const part = (key: 'inputPart' | 'weightPart'): number =>
    sum(trials.map((trial) => trial.backwardMs * trial[key])) / allMs;
  return { inputPart: part('inputPart'), weightPart: part('weightPart') };
}

/** The passes of a layer: those of a split backward last. Undefined, or without outputs: it computes nothing. */
const passNames = ['forward', 'backward', 'backwardInput', 'backwardWeight'] as const;

/** A layer's passes as graphs. */
interface Differentiated {
  readonly graphs: Readonly<Partial<Record<(typeof passNames)[number], Graph>>>;
  /** Whether its backward pass can be split: it gives gradients of inputs and of weights. */
  readonly hasBoth: boolean;
  readonly hasInputGradients: boolean;
  readonly savedBytes: number;
  /** What must be kept at least; undefined where nobody asks. */
  readonly least?: LeastKept | undefined;
}

function passesOf(stage: StageGraph, options: DifferentiateOptions): Differentiated {
  const graphs = differentiate(stage, options);
  const { inputGradients, parameterGradients, saved, savedInputs } = graphs;
  return {
    graphs,
    hasBoth: inputGradients.length > 0 && parameterGradients.length > 0,
    hasInputGradients: inputGradients.length > 0,
    savedBytes: sum([...saved, ...savedInputs].map(({ bytes }) => bytes)),
  };
}

/** In forward mode there is one pass, with several tangents. */
function tangents(stage: StageGraph, options: DifferentiateOptions, tangentCount: number): Differentiated {
  const { graph } = severalTangents(tangentGraph(stage, options), tangentCount);
  return { graphs: { forward: graph }, hasBoth: false, hasInputGradients: false, savedBytes: 0 };
}

/** A layer at another batch size, in proportion. */
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

/** A pass that is timed. Undefined: it computes nothing, or is not measured. */
type Passes = Readonly<Partial<Record<(typeof passNames)[number], Pass | undefined>>>;

interface Pass {
  readonly graph: Graph;
  readonly executable: Executable;
}

/** Compiles the passes of one layer, one after the other; those of a split backward only on demand. */
async function compilePasses(engine: Engine, { graphs }: Differentiated, isSplit: boolean): Promise<Passes> {
  const wanted = isSplit ? passNames : passNames.slice(0, 2);
  const compiled = async (graph: Graph | undefined): Promise<Pass | undefined> =>
    graph === undefined || graph.outputs.length === 0 ? undefined : { graph, executable: await engine.compile(graph) };
  return Object.fromEntries(
    await Promise.all(wanted.map(async (name) => [name, await compiled(graphs[name])] as const)),
  );
}

/** Runs and times the passes of one layer with made-up numbers, and frees them. */
async function measure(
  engine: Engine,
  { hasInputGradients, savedBytes }: Differentiated,
  passes: Passes,
  timing: Timing,
): Promise<LayerTrial> {
  const random = createRandom(1);
  const values = new Map<string, Value>();
  const valueFor = ({ name, type, shape }: ValueInfo): Value => {
    const value = values.get(name) ?? engine.upload(madeUp(type, shape as readonly number[], random.uniform));
    values.set(name, value);
    return value;
  };
  const timed = async (pass: Pass | undefined): Promise<number> => {
    if (pass === undefined) return 0;
    const { graph, executable } = pass;
    const types = new Map(graph.inputs.map((input) => [input.name, input]));
    const feeds = Object.fromEntries(executable.inputs.map((name) => [name, valueFor(defined(types.get(name), name))]));
    const { ms, results } = await time(engine, executable, feeds, timing);
    for (const [name, value] of Object.entries(results)) {
      if (values.has(name)) engine.release(value);
      else values.set(name, value);
    }
    executable.release();
    return ms;
  };
  const forwardMs = await timed(passes.forward);
  const backwardMs = await timed(passes.backward);
  const isSplit = passes.backwardInput !== undefined;
  const inputMs = isSplit ? await timed(passes.backwardInput) : hasInputGradients ? backwardMs : 0;
  const weightMs = isSplit ? await timed(passes.backwardWeight) : backwardMs - inputMs;
  const partOf = (ms: number): number => (backwardMs > 0 ? ms / backwardMs : 0);
  for (const value of values.values()) engine.release(value);
  await engine.settled();
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

/** The time of a run inside the engine, and what the last run gave. */
async function time(
  engine: Engine,
  executable: Executable,
  feeds: Readonly<Record<string, Value>>,
  { clock, runs }: Timing,
): Promise<{ readonly ms: number; readonly results: Readonly<Record<string, Value>> }> {
  let results: Readonly<Record<string, Value>> = {};
  const runOnce = async (): Promise<number> => {
    for (const value of Object.values(results)) engine.release(value);
    const before = engine.busyMs();
    results = executable.run(feeds);
    await engine.settled();
    return engine.busyMs() - before;
  };
  if (runs.isShortest !== true) await runOnce();
  const times: number[] = [];
  const startMs = clock.now();
  while (times.length < runs.least || (clock.now() - startMs < runs.ms && times.length < runs.most))
    times.push(await runOnce());
  return { ms: runs.isShortest === true ? Math.min(...times) : median(times), results };
}

/** What a run of next to nothing takes inside the engine. */
export async function timeEmptyRun(engine: Engine, timing: Timing): Promise<number> {
  const builder = new GraphBuilder('empty', { seed: 1 });
  const executable = await engine.compile(builder.build([builder.relu(builder.input('x', 'float32', [1]))]));
  const x = engine.upload(madeUp('float32', [1], () => 0));
  const { ms, results } = await time(engine, executable, { x }, timing);
  for (const value of [x, ...Object.values(results)]) engine.release(value);
  executable.release();
  return ms;
}
