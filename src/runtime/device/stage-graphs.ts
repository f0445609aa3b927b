// The graphs of one stage, compiled: forward and backward (whole or in two halves), loss, sums of gradients, their norm, update.

import { defined } from '../../assert.ts';
import { differentiate, outputGradientName, type StageGraphs } from '../../autodiff/differentiate.ts';
import { replaceDropouts } from '../../autodiff/dropout.ts';
import type { BufferUpdate } from '../../autodiff/forward.ts';
import { mergeEqual } from '../../autodiff/subgraph.ts';
import type { Engine, Executable } from '../../engine/engine.ts';
import { loweringOf } from '../../engine/lowering.ts';
import { replacedBuffers } from '../../graph/freeze.ts';
import type { Graph } from '../../graph/graph.ts';
import { joinGraphs } from '../../graph/join.ts';
import type { CutTensor, LayerSequence } from '../../graph/layers.ts';
import { extractStage, type StageGraph } from '../../graph/stage.ts';
import { squaredNormGraph } from '../../training/clipping.ts';
import { lossGraph } from '../../training/losses.ts';
import { accumulateGraph, type OptimizerGraph, optimizerGraph } from '../../training/optimizers.ts';
import type { TensorSpec } from '../messages.ts';
import type { TrainingSpec } from '../training-spec.ts';
import { type Pack, type Packing, packedSpecs, packGraph, packOf, replacementName } from './packs.ts';
import { recomputeWithin } from './recomputation.ts';
import type { StatePack } from './stage-state.ts';

/** What a stage is made of. */
export interface StageOptions {
  readonly sequence: LayerSequence;
  /** Half-open range of layers. */
  readonly layers: readonly [first: number, end: number];
  /** Samples of each micro-batch that this device computes; 0: it only keeps its weights in step with its group. */
  readonly sampleCount: number;
  readonly training: TrainingSpec;
  readonly label: CutTensor;
  /** Dropout depends on a sample's place in the batch: microBatch · microBatchSize + its place in the micro-batch. */
  readonly microBatchSize: number;
  /** Compile the backward pass in two halves, for schedules that split it. */
  readonly splitBackward: boolean;
  /** On the last stage: every backward pass follows its forward pass at once, so that both can be one graph. Default false. */
  readonly immediateBackward?: boolean;
  /** Bytes that one micro-batch may keep for its backward pass; what does not fit is computed again. Default: no limit. */
  readonly savedBudgetBytes?: number | undefined;
}

/** The graphs that need samples. */
export interface CompiledPass {
  readonly stage: StageGraph;
  /** As the compiled graphs have them: packs in place of their members. */
  readonly savedInputs: readonly string[];
  readonly bufferUpdates: readonly BufferUpdate[];
  /** The parameters that get a gradient. */
  readonly gradients: readonly string[];
  readonly graphs: StageGraphs;
  /** Where the samples are in each of `graphs.dropouts`; undefined for masks that do not depend on the samples. */
  readonly maskAxes: readonly (number | undefined)[];
  /** Forward pass, loss and backward pass in one: then the next five are undefined. Inputs and results of the loss are `stepNames`. */
  readonly step: Executable | undefined;
  readonly forward: Executable | undefined;
  /** Whole, or undefined where it is split. */
  readonly backward: Executable | undefined;
  readonly backwardInput: Executable | undefined;
  readonly backwardWeight: Executable | undefined;
  /** On the last stage. */
  readonly loss: Executable | undefined;
}

/** All that a stage runs. */
export interface CompiledStage {
  /** All parameters of the stage, frozen ones included, and its buffers. */
  readonly parameters: readonly TensorSpec[];
  readonly buffers: readonly TensorSpec[];
  /** The buffers that a forward pass replaces: replicas average them. */
  readonly statistics: readonly TensorSpec[];
  /** The parameters that an update changes, as the graphs take them: small ones in a pack. */
  readonly trained: readonly TensorSpec[];
  readonly packs: readonly StatePack[];
  /** Undefined for a device without samples. */
  readonly pass: CompiledPass | undefined;
  readonly optimizer: OptimizerGraph;
  readonly update: Executable | undefined;
  readonly accumulate: Executable | undefined;
  readonly squaredNorm: Executable | undefined;
}

/** Differentiates and compiles layers [first, end) for a share of a micro-batch. */
export async function compileStage(engine: Engine, options: StageOptions): Promise<CompiledStage> {
  const { sequence, layers, training, sampleCount } = options;
  const own = sequence.layers.slice(...layers);
  const replaced = new Set(replacedBuffers(sequence.graph));
  const buffers = own.flatMap((layer) => layer.buffers);
  const specs = (names: readonly string[]): TensorSpec[] =>
    names.map((name) => ({ name, shape: defined(sequence.graph.initializers.get(name), name).shape }));
  const parameters = specs(own.flatMap((layer) => layer.parameters));
  const frozen = new Set(training.frozen);
  const unpacked = parameters.filter(({ name }) => !frozen.has(name));
  const statistics = specs(buffers.filter((name) => replaced.has(name)));
  const packs = { parameters: packOf('packed parameters', unpacked), buffers: packOf('packed statistics', statistics) };
  const trained = packedSpecs(unpacked, packs.parameters);
  const optimizer = optimizerGraph(training.optimizer.kind, trained, training.optimizer);
  const isTrained = trained.length > 0;
  return {
    parameters,
    buffers: specs(buffers),
    statistics: packedSpecs(statistics, packs.buffers),
    trained,
    packs: statePacks(packs, optimizer),
    pass: sampleCount > 0 ? await compilePass(engine, options, unpacked, packs) : undefined,
    optimizer,
    update: isTrained ? await engine.compile(optimizer.graph) : undefined,
    accumulate: isTrained ? await engine.compile(accumulateGraph(trained)) : undefined,
    squaredNorm: isTrained ? await engine.compile(squaredNormGraph(trained)) : undefined,
  };
}

/** The packs by the roles of what is in them; optimizer state is packed as its parameters are. */
function statePacks({ parameters, buffers }: Packs, optimizer: OptimizerGraph): readonly StatePack[] {
  const packs: StatePack[] = [];
  if (buffers !== undefined) packs.push({ role: 'buffer', pack: buffers });
  if (parameters === undefined) return packs;
  packs.push({ role: 'parameter', pack: parameters });
  for (const { name, parameter, kind } of optimizer.state) {
    if (parameter !== parameters.name) continue;
    const members = parameters.members.map((member) => ({ ...member, name: `${member.name}/${kind}` }));
    packs.push({ role: 'optimizer', pack: { ...parameters, name, members } });
  }
  return packs;
}

type Packs = Omit<Packing, 'replacements'>;

async function compilePass(engine: Engine, options: StageOptions, trained: readonly TensorSpec[], packs: Packs): Promise<CompiledPass> {
  const { sequence, layers, sampleCount, training, label, splitBackward, immediateBackward = false, savedBudgetBytes } = options;
  const stage = extractStage(sequence, layers[0], layers[1], sampleCount);
  const isLast = layers[1] === sequence.layers.length;
  let recompute: ReadonlySet<string> = new Set();
  const graphs = differentiate(stage, {
    inputs: differentiableNames(stage.inputs),
    parameters: trained.map(({ name }) => name),
    outputs: isLast ? [defined(stage.outputs[0], 'the output').name] : differentiableNames(stage.outputs),
    ...loweringOf(engine),
    recompute: (pass) => {
      recompute = savedBudgetBytes === undefined ? recompute : recomputeWithin(pass, savedBudgetBytes);
      return recompute;
    },
  });
  const logits = defined(stage.graph.outputs[0], 'the output');
  const labels = { type: label.type, shape: [sampleCount, ...(label.shape.slice(1) as number[])] };
  const hasInputGradients = graphs.inputGradients.length > 0;
  const hasWeightGradients = graphs.parameterGradients.length > 0;
  const loss = isLast ? lossGraph(training.loss, { type: logits.type, shape: logits.shape as number[] }, labels) : undefined;
  const packing: Packing = { ...packs, replacements: new Map(graphs.bufferUpdates.map(({ buffer, output }) => [buffer, output])) };
  const compile = (graph: Graph): Promise<Executable> => engine.compile(packGraph(graph, packing));
  const common = {
    stage,
    graphs,
    maskAxes: maskAxes(graphs, options),
    savedInputs: packedNames(
      graphs.savedInputs.map(({ name }) => name),
      packs.buffers,
    ),
    bufferUpdates: packedUpdates(graphs.bufferUpdates, packs.buffers),
    gradients: packedNames(graphs.parameterGradients, packs.parameters),
  };
  // In one graph with the forward pass, nothing would run again: equal nodes become one.
  const isOneGraph = immediateBackward && !splitBackward && recompute.size === 0;
  if (loss !== undefined && isOneGraph && (hasInputGradients || hasWeightGradients)) {
    const step = await compile(stepGraph(graphs, loss, logits.name));
    return {
      ...common,
      step,
      forward: undefined,
      backward: undefined,
      backwardInput: undefined,
      backwardWeight: undefined,
      loss: undefined,
    };
  }
  return {
    ...common,
    step: undefined,
    forward: await compile(graphs.forward),
    backward: !splitBackward && (hasInputGradients || hasWeightGradients) ? await compile(graphs.backward) : undefined,
    backwardInput: splitBackward && hasInputGradients ? await compile(graphs.backwardInput) : undefined,
    backwardWeight: splitBackward && hasWeightGradients ? await compile(graphs.backwardWeight) : undefined,
    loss: loss === undefined ? undefined : await engine.compile(loss),
  };
}

/** The names with the pack in place of its members. */
function packedNames(names: readonly string[], pack: Pack | undefined): readonly string[] {
  const inside = new Set(pack?.members.map(({ name }) => name));
  const others = names.filter((name) => !inside.has(name));
  return pack === undefined || others.length === names.length ? others : [...others, pack.name];
}

function packedUpdates(updates: readonly BufferUpdate[], pack: Pack | undefined): readonly BufferUpdate[] {
  const kept = new Set(
    packedNames(
      updates.map(({ buffer }) => buffer),
      pack,
    ),
  );
  const others = updates.filter(({ buffer }) => kept.has(buffer));
  return pack !== undefined && kept.has(pack.name) ? [...others, { buffer: pack.name, output: replacementName(pack) }] : others;
}

/** What the inputs and outputs of the loss are called in a `step`, where the model may use the short names. */
export const stepNames = { labels: 'step/labels', scale: 'step/scale', loss: 'step/loss', correct: 'step/correct' } as const;

/** Forward pass, loss and backward pass as one graph: nothing is handed over, and what both passes compute is computed once. */
function stepGraph({ forward, backward, bufferUpdates }: StageGraphs, loss: Graph, logits: string): Graph {
  const rename = new Map([...Object.entries(stepNames), ['logits', logits], ['gradient', outputGradientName(logits)]]);
  const sums = loss.outputs.map(({ name }) => name).filter((name) => name !== 'gradient');
  const outputs = [
    ...sums.map((name) => defined(rename.get(name), name)),
    ...bufferUpdates.map(({ output }) => output),
    ...backward.outputs.map(({ name }) => name),
  ];
  return mergeEqual(joinGraphs('step', [{ graph: forward }, { graph: loss, rename }, { graph: backward }], outputs));
}

/** Finds the samples' axis of each dropout mask as the one that grows with the batch. With a fixed batch all samples are here: the first axis of their number serves. */
function maskAxes({ dropouts }: StageGraphs, { sequence, layers, sampleCount }: StageOptions): (number | undefined)[] {
  if (dropouts.length === 0) return [];
  const first = (shape: readonly number[], matches: (dimension: number, axis: number) => boolean): number | undefined => {
    const axis = shape.findIndex(matches);
    return axis < 0 ? undefined : axis;
  };
  if (sequence.fixedBatch !== undefined) return dropouts.map(({ shape }) => first(shape, (dimension) => dimension === sampleCount));
  const larger = replaceDropouts(extractStage(sequence, layers[0], layers[1], sampleCount + 1)).dropouts;
  return dropouts.map(({ name, shape }) => {
    const other = defined(
      larger.find((dropout) => dropout.name === name),
      name,
    ).shape;
    return first(shape, (dimension, axis) => dimension !== other[axis]);
  });
}

/** The cut tensors whose gradients travel. */
export function differentiableNames(cuts: readonly CutTensor[]): string[] {
  return cuts.filter((cut) => cut.differentiable).map((cut) => cut.name);
}
