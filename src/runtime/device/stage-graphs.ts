// The graphs of one stage: forward and backward (whole or in two halves), loss, sums of gradients, their norm, update.
// compiled-stages.ts compiles them.

import { defined } from '../../assert.ts';
import { differentiate, outputGradientName, type StageGraphs } from '../../autodiff/differentiate.ts';
import { type DropoutInput, replaceDropouts } from '../../autodiff/dropout.ts';
import type { BufferUpdate } from '../../autodiff/forward.ts';
import { mergeEqual } from '../../autodiff/subgraph.ts';
import type { Engine } from '../../engine/engine.ts';
import { loweringOf } from '../../engine/lowering.ts';
import { runMemory } from '../../engine/onnxruntime-memory.ts';
import { replacedBuffers } from '../../graph/freeze.ts';
import { gradientName } from '../../graph/gradient-name.ts';
import type { Graph } from '../../graph/graph.ts';
import { joinGraphs } from '../../graph/join.ts';
import type { CutTensor, LayerSequence } from '../../graph/layers.ts';
import { extractStage } from '../../graph/stage.ts';
import { byteLength } from '../../graph/tensor.ts';
import type { LayerRange } from '../../schedule/program.ts';
import { squaredNormGraph, squaredNormsGraph } from '../../training/clipping.ts';
import { lossGraph } from '../../training/losses.ts';
import {
  accumulateGraph,
  type OptimizerGraph,
  optimizerGraph,
  withSums,
  zerosGraph,
} from '../../training/optimizers.ts';
import type { TensorSpec } from '../protocol/messages.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';
import { keepFilters } from './kept-filters.ts';
import {
  type Pack,
  type Packing,
  packedNames,
  packedSpecs,
  packGraph,
  packMemberLimit,
  packOf,
  replacementName,
} from './packs.ts';
import { recomputeWithin } from './recomputation.ts';
import { isStep, type StageForm } from './stage-form.ts';
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
  readonly form: StageForm;
  /**
   * Bytes that one micro-batch may keep for its backward pass; what does not fit is computed again. Default: no limit.
   */
  readonly savedBudgetBytes?: number | undefined;
  /**
   * Micro-batches in flight at once, whose budgets together have to hold what a pass needs beside what is kept, too.
   * Default: it has memory of its own.
   */
  readonly budgetCount?: number | undefined;
}

/**
 * The graphs of a stage. `filters` makes what the pass takes of weights that are the same for all micro-batches
 * (kept-filters.ts). Of the pass, either `step` (forward pass, loss and backward pass in one, and perhaps the update)
 * or those between; both where the last micro-batch comes in pieces.
 */
export type StageGraphName =
  | 'filters'
  | 'step'
  | 'forward'
  | 'backward'
  | 'backwardInput'
  | 'backwardWeight'
  | 'loss'
  | 'update'
  | 'accumulate'
  | 'zeros'
  | 'squaredNorm'
  | PieceGraphName;

/** A piece of the last micro-batch's pass. */
type PieceGraphName = `piece${number}`;

/**
 * Something for each of the graphs that a stage has: `loss` on the last one, `backward` whole or in two halves, `zeros`
 * where sums of gradients begin with them, `accumulate` where a strict run adds such sums up.
 */
export type ByGraph<T> = Readonly<
  Partial<Record<Exclude<StageGraphName, PieceGraphName>, T>> & Record<PieceGraphName, T>
>;

/**
 * What is to be known of the pass besides its graphs; JSON. Names are those of the graphs: packs stand in place of
 * their members.
 */
export interface PassNotes {
  /** Values that `forward` computes and the backward graphs read. */
  readonly saved: readonly string[];
  /** Inputs of `forward` that they read. */
  readonly savedInputs: readonly string[];
  /** Values that `backwardInput` computes and `backwardWeight` reads. */
  readonly intermediates: readonly string[];
  readonly bufferUpdates: readonly BufferUpdate[];
  /**
   * `step` updates: it takes the optimizer's state and scalars too, gives new values and `squaredNormName` in place of
   * gradients, and is the only graph.
   */
  readonly isUpdating: boolean;
  /** Graphs that make gradients take their sums, and give them with the gradients added (`withSums`). */
  readonly isSumming: boolean;
  /** The inputs that get a gradient. */
  readonly inputGradients: readonly string[];
  /** The parameters that do. */
  readonly gradients: readonly string[];
  /** `sampleAxis`: where the samples are; absent for masks that do not depend on the samples. */
  readonly dropouts: readonly (DropoutInput & { readonly sampleAxis?: number })[];
  /**
   * By bucket, where the last micro-batch's pass comes in pieces: what a piece carries for those after it, and the
   * parameters whose gradients it gives.
   */
  readonly pieces: readonly { readonly carried: readonly string[]; readonly gradients: readonly string[] }[];
}

/** What a stage holds, as its graphs take it. Found without differentiation. */
export interface StageLayout {
  /** All parameters of the stage, frozen ones included, and its buffers. */
  readonly parameters: readonly TensorSpec[];
  readonly buffers: readonly TensorSpec[];
  /** The buffers that a forward pass replaces: replicas average them. */
  readonly statistics: readonly TensorSpec[];
  /** The parameters that an update changes, as the graphs take them: small ones in a pack. */
  readonly trained: readonly TensorSpec[];
  /** The same by the buckets in which their gradients are reduced. */
  readonly buckets: readonly (readonly TensorSpec[])[];
  readonly packs: readonly StatePack[];
  readonly optimizer: OptimizerGraph;
}

/** A stage's graphs and what is to be known of them. */
export interface StageDesign {
  /** Undefined for a device without samples. */
  readonly pass: PassNotes | undefined;
  readonly graphs: ByGraph<Graph>;
}

/** What layers [first, end) hold. */
export function stageLayout(options: StageOptions): StageLayout {
  const { optimizer, packs, buffers, parameters, statistics, trained, buckets } = layOut(options);
  return {
    parameters,
    buffers,
    statistics: packedSpecs(statistics, packs.buffers),
    trained,
    buckets,
    packs: statePacks(packs, optimizer),
    optimizer,
  };
}

/** Differentiates layers [first, end) for a share of a micro-batch, in the forms that the engine likes. */
export function designStage(engine: Pick<Engine, 'blockSize'>, options: StageOptions): StageDesign {
  // Lowering looks at what stands around a layer, which cuts change: a strict run does without.
  const blockSize = options.training.grain === undefined ? engine.blockSize : undefined;
  const { unpacked, packs, trained, optimizer } = layOut(options);
  const { passes, sums, grains } = options.form;
  const isSingle = sums === 'none';
  const designed = (budgetBytes: number | undefined): PassDesign => {
    const found = designPass(blockSize, { ...options, trained: unpacked, packs, apartBudgetBytes: budgetBytes });
    return isSingle ? found : summing(found, trained);
  };
  const found = options.sampleCount > 0 ? withinBudgets(designed, blockSize, options) : undefined;
  const pass =
    found === undefined || isSingle || blockSize === undefined ? found : keepingFilters(found, options, blockSize);
  const step =
    passes === 'step-with-update' && pass !== undefined ? updatingStep(pass, trained, options.training) : undefined;
  if (step !== undefined && pass !== undefined) return { pass: { ...pass.notes, isUpdating: true }, graphs: { step } };
  const updates: ByGraph<Graph> =
    trained.length === 0
      ? {}
      : {
          update: optimizer.graph,
          squaredNorm: squaredNormGraph(trained),
          ...(pass?.notes.isSumming === true ? { zeros: zerosGraph(trained) } : {}),
          ...(grains > 1 ? { accumulate: accumulateGraph(trained) } : {}),
        };
  return { pass: pass?.notes, graphs: { ...pass?.graphs, ...updates } };
}

/** The pass with a graph that makes the filters of a round. */
function keepingFilters(
  { notes, graphs }: PassDesign,
  { sequence, layers }: StageOptions,
  blockSize: number,
): PassDesign {
  const parameters = new Set(sequence.layers.slice(...layers).flatMap((layer) => layer.parameters));
  const { filters, graphs: passes } = keepFilters(graphs, parameters, blockSize);
  return { notes, graphs: { ...passes, ...(filters === undefined ? {} : { filters }) } };
}

/** The pass with gradients added to their sums in the graphs that make them. */
function summing({ notes, graphs }: PassDesign, trained: readonly TensorSpec[]): PassDesign {
  if (notes.gradients.length === 0) return { notes, graphs };
  const summed = Object.entries(graphs).map(([name, graph]) => [name, withSums(graph, trained, packMemberLimit)]);
  return { notes: { ...notes, isSumming: true }, graphs: Object.fromEntries(summed) };
}

/** Whether the micro-batch in pieces is the round's only one. */
function isOneInPieces({ form: { pieces } }: StageOptions): boolean {
  return pieces?.pass?.microBatch === 0;
}

interface Layout extends Omit<StageLayout, 'packs'> {
  /** The trained parameters one by one, by bucket. */
  readonly unpacked: readonly (readonly TensorSpec[])[];
  readonly packs: Packs;
}

function layOut(options: StageOptions): Layout {
  const { sequence, layers, training } = options;
  const own = sequence.layers.slice(...layers);
  const replaced = new Set(replacedBuffers(sequence.graph));
  const buffers = own.flatMap((layer) => layer.buffers);
  const specs = (names: readonly string[]): TensorSpec[] =>
    names.map((name) => ({ name, shape: defined(sequence.graph.initializers.get(name), name).shape }));
  const parameters = specs(own.flatMap((layer) => layer.parameters));
  const frozen = new Set(training.frozen);
  const statistics = specs(buffers.filter((name) => replaced.has(name)));
  const unpacked = inBuckets(
    parameters.filter(({ name }) => !frozen.has(name)),
    options,
  );
  const packOfBucket = unpacked.map((bucket, index) =>
    packOf(unpacked.length === 1 ? 'packed parameters' : `packed parameters ${index}`, bucket),
  );
  const packs: Packs = {
    parameters: packOfBucket.flatMap((pack) => pack ?? []),
    buffers: packOf('packed statistics', statistics),
  };
  const buckets = unpacked.map((bucket, index) => packedSpecs(bucket, packOfBucket[index]));
  const trained = buckets.flat();
  const optimizer = optimizerGraph(training.optimizer.kind, trained, training.optimizer);
  return { parameters, buffers: specs(buffers), statistics, unpacked, packs, trained, buckets, optimizer };
}

function inBuckets(
  trained: readonly TensorSpec[],
  { sequence, layers, form }: StageOptions,
): readonly (readonly TensorSpec[])[] {
  const ranges: readonly LayerRange[] = form.pieces?.buckets ?? [layers];
  return ranges.map((range) => {
    const own = new Set(sequence.layers.slice(...range).flatMap((layer) => layer.parameters));
    return trained.filter(({ name }) => own.has(name));
  });
}

/** The packs by the roles of what is in them; optimizer state is packed as its parameters are. */
function statePacks({ parameters, buffers }: Packs, optimizer: OptimizerGraph): readonly StatePack[] {
  const packs: StatePack[] = [];
  if (buffers !== undefined) packs.push({ role: 'buffer', pack: buffers });
  for (const pack of parameters) {
    packs.push({ role: 'parameter', pack });
    for (const { name, parameter, kind } of optimizer.state) {
      if (parameter !== pack.name) continue;
      const members = pack.members.map((member) => ({ ...member, name: `${member.name}/${kind}` }));
      packs.push({ role: 'optimizer', pack: { ...pack, name, members } });
    }
  }
  return packs;
}

type Packs = Omit<Packing, 'replacements'>;

interface PassDesign {
  readonly notes: PassNotes;
  readonly graphs: ByGraph<Graph>;
}

/** Where passes as they are leave no room for what they need beside what micro-batches keep, passes that keep less. */
function withinBudgets(
  designed: (budgetBytes: number | undefined) => PassDesign,
  blockSize: number | undefined,
  { savedBudgetBytes, budgetCount }: StageOptions,
): PassDesign {
  const first = designed(savedBudgetBytes);
  if (savedBudgetBytes === undefined || budgetCount === undefined) return first;
  const needBytes = besideBytes(first, blockSize) / budgetCount;
  if (keptBytes(first) + needBytes <= savedBudgetBytes) return first;
  const second = designed(Math.max(0, savedBudgetBytes - needBytes));
  // What is computed again is there beside what is kept, too.
  const moreBytes = besideBytes(second, blockSize) / budgetCount;
  return moreBytes <= needBytes ? second : designed(Math.max(0, savedBudgetBytes - moreBytes));
}

/** What a micro-batch keeps from its forward pass; nothing where there is none. */
function keptBytes({ notes, graphs: { forward } }: PassDesign): number {
  const kept = new Set([...notes.saved, ...notes.savedInputs]);
  const values = new Map([...(forward?.inputs ?? []), ...(forward?.outputs ?? [])].map((value) => [value.name, value]));
  return [...values].reduce(
    (sum, [name, { type, shape }]) => sum + (kept.has(name) ? byteLength({ type, shape: shape as number[] }) : 0),
    0,
  );
}

/** The most that a pass needs which takes what is kept. */
function besideBytes(
  { graphs: { forward: _, step: __, loss: ___, ...backward } }: PassDesign,
  blockSize: number | undefined,
): number {
  return Math.max(0, ...Object.values(backward).map((graph) => runMemory(graph, blockSize).runBytes));
}

interface PassOptions extends StageOptions {
  /** The trained parameters one by one, by bucket. */
  readonly trained: readonly (readonly TensorSpec[])[];
  readonly packs: Packs;
  /** In place of `savedBudgetBytes`, of passes that are not one graph. */
  readonly apartBudgetBytes: number | undefined;
}

function designPass(blockSize: number | undefined, options: PassOptions): PassDesign {
  const { sequence, layers, sampleCount, training, label, savedBudgetBytes, form } = options;
  const splitBackward = form.passes === 'split';
  const reduction = form.pieces;
  const { trained, packs, apartBudgetBytes } = options;
  const isInPieces = reduction?.pass !== undefined;
  const parameters = trained.map((bucket) => bucket.map(({ name }) => name));
  const stage = extractStage(sequence, layers[0], layers[1], sampleCount);
  const isLast = layers[1] === sequence.layers.length;
  const differentiated = (
    budgetBytes: number | undefined,
  ): { readonly graphs: StageGraphs; readonly recompute: ReadonlySet<string> } => {
    let recompute: ReadonlySet<string> = new Set();
    const graphs = differentiate(stage, {
      inputs: differentiableNames(stage.inputs),
      parameters: parameters.flat(),
      ...(reduction?.pass === undefined ? {} : { pieces: { of: reduction.pass.kind, parameters } }),
      outputs: isLast ? [defined(stage.outputs[0], 'the output').name] : differentiableNames(stage.outputs),
      ...loweringOf({ blockSize }),
      recompute: (pass) => {
        recompute = budgetBytes === undefined ? recompute : recomputeWithin(pass, budgetBytes);
        return recompute;
      },
    });
    return { graphs, recompute };
  };
  const { graphs: wholeGraphs, recompute } = differentiated(savedBudgetBytes);
  const logits = defined(stage.graph.outputs[0], 'the output');
  const labels = { type: label.type, shape: [sampleCount, ...(label.shape.slice(1) as number[])] };
  const hasGradients = wholeGraphs.inputGradients.length > 0 || wholeGraphs.parameterGradients.length > 0;
  const loss = isLast
    ? lossGraph(training.loss, { type: logits.type, shape: logits.shape as number[] }, labels)
    : undefined;
  const packing: Packing = {
    ...packs,
    replacements: new Map(wholeGraphs.bufferUpdates.map(({ buffer, output }) => [buffer, output])),
  };
  // In one graph with the forward pass, nothing would run again: equal nodes become one.
  const isOneGraph =
    loss !== undefined &&
    isStep(form) &&
    training.grain === undefined &&
    recompute.size === 0 &&
    hasGradients &&
    !isOneInPieces(options);
  const isWhole = apartBudgetBytes === savedBudgetBytes || (isOneGraph && !isInPieces);
  const graphs = isWhole ? wholeGraphs : differentiated(apartBudgetBytes).graphs;
  const parts: ByGraph<Graph> = {
    ...(isOneGraph ? { step: stepGraph(wholeGraphs, loss, logits.name) } : separateGraphs(graphs, splitBackward)),
    ...(isInPieces ? { forward: graphs.forward, ...pieceGraphs(graphs) } : {}),
  };
  const packed = Object.fromEntries(Object.entries(parts).map(([name, graph]) => [name, packGraph(graph, packing)]));
  return {
    notes: passNotes(graphs, packs, dropoutsOf(graphs, options)),
    graphs: { ...packed, ...(loss === undefined || (isOneGraph && !isInPieces) ? {} : { loss }) },
  };
}

/** The pieces that give anything. */
function pieceGraphs({ pieces }: StageGraphs): ByGraph<Graph> {
  return Object.fromEntries(
    pieces.flatMap(({ graph }, index) => (graph.outputs.length > 0 ? [[`piece${index}`, graph]] : [])),
  );
}

/**
 * The step with the update behind it: no gradient leaves, and each can go when its parameter is new. Undefined where
 * there is no step, or a parameter gets no gradient (its update takes zeros).
 */
function updatingStep(
  { graphs, notes }: PassDesign,
  trained: readonly TensorSpec[],
  { optimizer }: TrainingSpec,
): Graph | undefined {
  const { step } = graphs;
  if (step === undefined || trained.some(({ name }) => !notes.gradients.includes(name))) return undefined;
  // In the order in which the backward pass makes the gradients: the engine computes what the first update needs first.
  const places = new Map(step.nodes.flatMap(({ outputs }, index) => outputs.map((output) => [output, index] as const)));
  const place = ({ name }: TensorSpec): number => places.get(gradientName(name)) ?? -1;
  const ordered = trained.toSorted((a, b) => place(a) - place(b));
  const updates = ordered.flatMap((spec) => [
    squaredNormsGraph([spec]),
    optimizerGraph(optimizer.kind, [spec], optimizer).graph,
  ]);
  const gradients = new Set(ordered.map(({ name }) => gradientName(name)));
  const parts = [step, ...updates];
  const outputs = parts
    .flatMap((graph) => graph.outputs.map(({ name }) => name))
    .filter((name) => !gradients.has(name));
  const joined = parts.map((graph) => ({ graph }));
  return joinGraphs('step', joined, outputs);
}

/** The graphs that do any work. */
function separateGraphs(graphs: StageGraphs, splitBackward: boolean): ByGraph<Graph> {
  const hasInputs = graphs.inputGradients.length > 0;
  const hasWeights = graphs.parameterGradients.length > 0;
  return {
    forward: graphs.forward,
    ...(!splitBackward && (hasInputs || hasWeights) ? { backward: graphs.backward } : {}),
    ...(splitBackward && hasInputs ? { backwardInput: graphs.backwardInput } : {}),
    ...(splitBackward && hasWeights ? { backwardWeight: graphs.backwardWeight } : {}),
  };
}

function passNotes(graphs: StageGraphs, packs: Packs, dropouts: PassNotes['dropouts']): PassNotes {
  const names = (values: readonly { readonly name: string }[]): string[] => values.map(({ name }) => name);
  return {
    saved: names(graphs.saved),
    savedInputs: packedNames(names(graphs.savedInputs), packs.buffers === undefined ? [] : [packs.buffers]),
    intermediates: names(graphs.intermediates),
    bufferUpdates: packedUpdates(graphs.bufferUpdates, packs.buffers),
    isUpdating: false,
    isSumming: false,
    inputGradients: graphs.inputGradients,
    gradients: packedNames(graphs.parameterGradients, packs.parameters),
    dropouts,
    pieces: graphs.pieces.map(({ carried, parameterGradients }) => ({
      carried,
      gradients: packedNames(parameterGradients, packs.parameters),
    })),
  };
}

function packedUpdates(updates: readonly BufferUpdate[], pack: Pack | undefined): readonly BufferUpdate[] {
  const kept = new Set(
    packedNames(
      updates.map(({ buffer }) => buffer),
      pack === undefined ? [] : [pack],
    ),
  );
  const others = updates.filter(({ buffer }) => kept.has(buffer));
  return pack !== undefined && kept.has(pack.name)
    ? [...others, { buffer: pack.name, output: replacementName(pack) }]
    : others;
}

/** What the inputs and outputs of the loss are called in a `step`, where the model may use the short names. */
export const stepNames = {
  labels: 'step/labels',
  scale: 'step/scale',
  loss: 'step/loss',
  correct: 'step/correct',
} as const;

/**
 * Forward pass, loss and backward pass as one graph: nothing is handed over, and what both passes compute is computed
 * once.
 */
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

/**
 * The dropouts with the samples' axis of each mask: the one that grows with the batch. With a fixed batch all samples
 * are here, and the first axis of their number serves.
 */
function dropoutsOf({ dropouts }: StageGraphs, { sequence, layers, sampleCount }: StageOptions): PassNotes['dropouts'] {
  if (dropouts.length === 0) return [];
  const larger =
    sequence.fixedBatch === undefined
      ? replaceDropouts(extractStage(sequence, layers[0], layers[1], sampleCount + 1)).dropouts
      : [];
  const shapes = new Map(larger.map(({ name, shape }) => [name, shape]));
  return dropouts.map((dropout) => {
    const other = shapes.get(dropout.name);
    const isSamples = (size: number, axis: number): boolean =>
      other === undefined ? size === sampleCount : size !== other[axis];
    const sampleAxis = dropout.shape.findIndex(isSamples);
    return sampleAxis < 0 ? dropout : { ...dropout, sampleAxis };
  });
}

/** The cut tensors whose gradients travel. */
export function differentiableNames(cuts: readonly CutTensor[]): string[] {
  return cuts.filter((cut) => cut.differentiable).map((cut) => cut.name);
}
