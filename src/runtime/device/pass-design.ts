// The graphs of a stage's passes: forward and backward, whole, in two halves or in pieces, or both with the loss as one
// step, from differentiating the stage's layers.

import { defined } from '../../assert.ts';
import { differentiate, outputGradientName, type StageGraphs } from '../../autodiff/differentiate.ts';
import { replaceDropouts } from '../../autodiff/dropout.ts';
import type { BufferUpdate } from '../../autodiff/forward.ts';
import { mergeEqual } from '../../autodiff/subgraph.ts';
import { loweringOf } from '../../engine/lowering.ts';
import { gradientName } from '../../graph/gradient-name.ts';
import type { Graph, ValueInfo } from '../../graph/graph.ts';
import { joinGraphs } from '../../graph/join.ts';
import { extractStage, type StageGraph } from '../../graph/stage.ts';
import { squaredNormsGraph } from '../../training/clipping.ts';
import { lossGraph } from '../../training/losses.ts';
import { optimizerGraph } from '../../training/optimizers.ts';
import type { TensorSpec } from '../protocol/model-message.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';
import { type Pack, type Packing, packedNames, packGraph, replacementName } from './packs.ts';
import { recomputeWithin } from './recomputation.ts';
import { isStep, type StageForm } from './stage-form.ts';
import { type ByGraph, differentiableNames, type PassNotes, type StageOptions, stepNames } from './stage-graphs.ts';
import type { Packs } from './stage-layout.ts';

/** The graphs of the passes, and what is to be known of them. */
export interface PassDesign {
  readonly notes: PassNotes;
  readonly graphs: ByGraph<Graph>;
}

/** What designing the passes takes. */
export interface PassOptions extends StageOptions {
  /** The trained parameters one by one, by bucket. */
  readonly trained: readonly (readonly TensorSpec[])[];
  readonly packs: Packs;
  /** In place of `savedBudgetBytes`, of passes that are not one graph. */
  readonly apartBudgetBytes: number | undefined;
}

/** Differentiates a stage and makes its passes of what comes. */
export function designPass(blockSize: number | undefined, options: PassOptions): PassDesign {
  const { sequence, layers, sampleCount, savedBudgetBytes, form, packs, apartBudgetBytes } = options;
  const isInPieces = form.pieces?.pass !== undefined;
  const stage = extractStage(sequence, layers[0], layers[1], sampleCount);
  const differentiated = (budgetBytes: number | undefined): Differentiated =>
    differentiateStage(stage, blockSize, options, budgetBytes);
  const whole = differentiated(savedBudgetBytes);
  const loss = isLastStage(options) ? lossOf(stage, options) : undefined;
  const isOneGraph = loss !== undefined && isOneStep(whole, options);
  const isWhole = apartBudgetBytes === savedBudgetBytes || (isOneGraph && !isInPieces);
  const graphs = isWhole ? whole.graphs : differentiated(apartBudgetBytes).graphs;
  const parts: ByGraph<Graph> = {
    ...(isOneGraph ? { step: stepGraph(whole.graphs, loss, logitsOf(stage).name) } : separateGraphs(graphs, form)),
    ...(isInPieces ? { forward: graphs.forward, ...pieceGraphs(graphs) } : {}),
  };
  const replacements = new Map(whole.graphs.bufferUpdates.map(({ buffer, output }) => [buffer, output]));
  const packing: Packing = { ...packs, replacements };
  const packed = Object.fromEntries(Object.entries(parts).map(([name, graph]) => [name, packGraph(graph, packing)]));
  return {
    notes: passNotes(graphs, packs, dropoutsOf(graphs, options)),
    graphs: { ...packed, ...(loss === undefined || (isOneGraph && !isInPieces) ? {} : { loss }) },
  };
}

interface Differentiated {
  readonly graphs: StageGraphs;
  /** Values that the backward graphs compute again. */
  readonly recompute: ReadonlySet<string>;
}

/** Forward and backward graphs that keep at most `budgetBytes` between them; undefined: all that they need. */
function differentiateStage(
  stage: StageGraph,
  blockSize: number | undefined,
  options: PassOptions,
  budgetBytes: number | undefined,
): Differentiated {
  const reduction = options.form.pieces;
  const parameters = options.trained.map((bucket) => bucket.map(({ name }) => name));
  let recompute: ReadonlySet<string> = new Set();
  const graphs = differentiate(stage, {
    inputs: differentiableNames(stage.inputs),
    parameters: parameters.flat(),
    ...(reduction?.pass === undefined ? {} : { pieces: { of: reduction.pass.kind, parameters } }),
    outputs: isLastStage(options) ? [defined(stage.outputs[0], 'the output').name] : differentiableNames(stage.outputs),
    ...loweringOf({ blockSize }),
    recompute: (pass) => {
      recompute = budgetBytes === undefined ? recompute : recomputeWithin(pass, budgetBytes);
      return recompute;
    },
  });
  return { graphs, recompute };
}

function isLastStage({ sequence, layers }: StageOptions): boolean {
  return layers[1] === sequence.layers.length;
}

function logitsOf({ graph }: StageGraph): ValueInfo {
  return defined(graph.outputs[0], 'the output');
}

function lossOf(stage: StageGraph, { training, label, sampleCount }: StageOptions): Graph {
  const { type, shape } = logitsOf(stage);
  const labels = { type: label.type, shape: [sampleCount, ...(label.shape.slice(1) as number[])] };
  const { loss, ignoresNegative = false } = training;
  return lossGraph(loss, { type, shape: shape as number[] }, labels, { ignoresNegative });
}

/**
 * Whether the last stage's passes can be one graph. What would be computed again could not run again there: equal nodes
 * become one.
 */
function isOneStep({ graphs, recompute }: Differentiated, options: PassOptions): boolean {
  const hasGradients = graphs.inputGradients.length > 0 || graphs.parameterGradients.length > 0;
  const { form, training } = options;
  const keepsAll = training.grain === undefined && recompute.size === 0;
  return isStep(form) && keepsAll && hasGradients && !isOneInPieces(options);
}

/** The pieces that give anything. */
function pieceGraphs({ pieces }: StageGraphs): ByGraph<Graph> {
  return Object.fromEntries(
    pieces.flatMap(({ graph }, index) => (graph.outputs.length > 0 ? [[`piece${index}`, graph]] : [])),
  );
}

/**
 * The step with the update behind it: no gradient leaves, and each can go when its parameter is new. Undefined if
 * there is no step, or a parameter gets no gradient (its update takes zeros).
 */
export function updatingStep(
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
function separateGraphs(graphs: StageGraphs, { passes }: StageForm): ByGraph<Graph> {
  const isSplit = passes === 'split';
  const hasInputs = graphs.inputGradients.length > 0;
  const hasWeights = graphs.parameterGradients.length > 0;
  return {
    forward: graphs.forward,
    ...(!isSplit && (hasInputs || hasWeights) ? { backward: graphs.backward } : {}),
    ...(isSplit && hasInputs ? { backwardInput: graphs.backwardInput } : {}),
    ...(isSplit && hasWeights ? { backwardWeight: graphs.backwardWeight } : {}),
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

/** Replacements of buffers, with the pack in place of its members. */
export function packedUpdates(updates: readonly BufferUpdate[], pack: Pack | undefined): readonly BufferUpdate[] {
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
export function dropoutsOf(
  { dropouts }: Pick<StageGraphs, 'dropouts'>,
  { sequence, layers, sampleCount }: Pick<StageOptions, 'sequence' | 'layers' | 'sampleCount'>,
): PassNotes['dropouts'] {
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

/** Whether the micro-batch in pieces is the round's only one. */
function isOneInPieces({ form: { pieces } }: StageOptions): boolean {
  return pieces?.pass?.microBatch === 0;
}
