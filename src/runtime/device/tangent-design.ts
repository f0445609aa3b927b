// The graphs of a stage that trains by forward gradients (AsyncFGD §3): its outputs and, in the same pass, their
// tangents; on the last stage the loss and its derivatives. Nothing is kept for a backward pass. Updates take gradient
// estimates as they take gradients.

import { defined } from '../../assert.ts';
import { type ActivityGraphs, activityGraphs } from '../../autodiff/activity-perturbation.ts';
import { outputGradientName } from '../../autodiff/differentiate.ts';
import { differenceGraph } from '../../autodiff/finite-difference.ts';
import { type TangentGraph, type TangentOptions, tangentGraph, tangentName } from '../../autodiff/forward-mode.ts';
import { severalTangents } from '../../autodiff/several-tangents.ts';
import type { Engine } from '../../engine/engine.ts';
import { loweringOf } from '../../engine/lowering.ts';
import { gradientName } from '../../graph/gradient-name.ts';
import type { Graph } from '../../graph/graph.ts';
import { joinGraphs } from '../../graph/join.ts';
import type { CutTensor } from '../../graph/layers.ts';
import { extractStage, type StageGraph } from '../../graph/stage.ts';
import { instantiate, type StaticGraph } from '../../graph/static.ts';
import { squaredNormGraph } from '../../training/clipping.ts';
import { lossGraph } from '../../training/losses.ts';
import { withSums, zerosGraph } from '../../training/optimizers.ts';
import { type Pack, packedNames, packGraph, packMemberLimit } from './packs.ts';
import { dropoutsOf, packedUpdates } from './pass-design.ts';
import { differentiableNames, type PassNotes, type StageDesign, type StageOptions, stepNames } from './stage-graphs.ts';
import { layOut } from './stage-layout.ts';

/** Tangents of a round. */
function tangentCountOf({ training }: Pick<StageOptions, 'training'>): number {
  return defined(training.forwardGradient, 'what forward gradients need').tangentCount;
}

/** Designs `tangent`, for a device with samples, and what updates take. */
export function designTangents({ blockSize }: Pick<Engine, 'blockSize'>, options: StageOptions): StageDesign {
  const { packs, trained, optimizer } = layOut(options);
  const updates = trained.length === 0 ? {} : { update: optimizer.graph, squaredNorm: squaredNormGraph(trained) };
  if (options.sampleCount === 0) return { pass: undefined, graphs: updates };
  if (trained.length > 0 && movesActivities(options)) return designActivities({ blockSize }, options, updates);
  const tangents = tangentsOf(options, blockSize);
  const indices = Array.from({ length: tangentCountOf(options) }, (_, index) => index);
  const replacements = new Map(tangents.bufferUpdates.map(({ buffer, output }) => [buffer, output]));
  const parameters = packs.parameters.flatMap((pack) => [pack, ...indices.map((index) => tangentPack(pack, index))]);
  return {
    pass: passNotes(tangents, options),
    graphs: { tangent: packGraph(tangents.graph, { ...packs, parameters, replacements }), ...updates },
  };
}

function passNotes(
  tangents: Pick<TangentGraph, 'bufferUpdates' | 'dropouts'>,
  options: StageOptions,
  gradients: Partial<Pick<PassNotes, 'gradients' | 'isSumming' | 'activities'>> = {},
): PassNotes {
  return {
    ...{ saved: [], savedInputs: [], intermediates: [], inputGradients: [], pieces: [] },
    bufferUpdates: packedUpdates(tangents.bufferUpdates, layOut(options).packs.buffers),
    ...{ isUpdating: false, isSumming: false, gradients: [] },
    dropouts: dropoutsOf(tangents, options),
    ...gradients,
  };
}

/** Whether a stage estimates gradients from activities: the last one can, which has the loss. */
function movesActivities({ training, layers, sequence }: StageOptions): boolean {
  return training.forwardGradient?.perturbs === 'activations' && layers[1] === sequence.layers.length;
}

/** A pass that adds its estimates to the round's sums, as a backward pass does with gradients. */
function designActivities(
  engine: Pick<Engine, 'blockSize'>,
  options: StageOptions,
  updates: StageDesign['graphs'],
): StageDesign {
  const { sequence, layers, sampleCount } = options;
  const { packs, trained, unpacked } = layOut(options);
  const names = unpacked.flatMap((bucket) => bucket.map(({ name }) => name));
  const stage = extractStage(sequence, layers[0], layers[1], sampleCount);
  const { graph, parts } = activityPass(stage, options, { parameters: names, ...loweringOf(engine) });
  const { tangents, activities } = parts;
  const replacements = new Map(tangents.bufferUpdates.map(({ buffer, output }) => [buffer, output]));
  const tangent = withSums(packGraph(graph, { ...packs, replacements }), trained, packMemberLimit);
  const gradients = packedNames(names, packs.parameters);
  return {
    pass: passNotes(tangents, options, { gradients, isSumming: true, activities }),
    graphs: { tangent, ...updates, zeros: zerosGraph(trained) },
  };
}

/**
 * The last stage's pass with the loss, whose gradient with respect to the output the estimates need: gives the sums of
 * the loss and `gradientName` of each of `parameters`.
 */
export function activityPass(
  stage: StageGraph,
  options: Pick<StageOptions, 'training' | 'label' | 'sampleCount'>,
  given: Pick<TangentOptions, 'lower'> & Required<Pick<TangentOptions, 'parameters'>>,
): { readonly graph: Graph; readonly parts: ActivityGraphs } {
  const { name: output } = defined(stage.graph.outputs[0], 'the output');
  const tangentCount = tangentCountOf(options);
  const parts = activityGraphs(stage, { ...given, output, tangentCount });
  const { graph: loss, rename } = lossOf(stage, options);
  const sums = loss.outputs.map(({ name }) => name).filter((name) => name !== 'gradient');
  const { tangents, estimate, backward } = parts;
  const graph = joinGraphs(
    stage.graph.name,
    [
      { graph: tangents.graph },
      { graph: loss, rename: new Map([...rename, ['gradient', outputGradientName(output)]]) },
      { graph: estimate },
      { graph: backward },
    ],
    [
      ...sums.map((name) => defined(rename.get(name), name)),
      ...tangents.bufferUpdates.map((update) => update.output),
      ...given.parameters.map((name) => gradientName(name)),
    ],
  );
  return { graph, parts };
}

function tangentsOf(options: StageOptions, blockSize: number | undefined): TangentGraph {
  const { sequence, layers, sampleCount } = options;
  const stage = extractStage(sequence, layers[0], layers[1], sampleCount);
  const isLast = layers[1] === sequence.layers.length;
  const outputs = isLast ? [stepNames.loss] : differentiableNames(stage.outputs);
  return directionalGraph(isLast ? withLoss(stage, options) : stage, options.training, {
    inputs: [...differentiableNames(stage.inputs), ...stage.states.map(({ input }) => input)],
    parameters: layOut(options).unpacked.flatMap((bucket) => bucket.map(({ name }) => name)),
    outputs: [...new Set([...outputs, ...stage.states.map(({ output }) => output)])],
    ...loweringOf({ blockSize }),
  });
}

/** A pass with all of a round's directional derivatives: by tangents, or by two forward passes. */
export function directionalGraph(
  stage: StaticGraph,
  { forwardGradient }: Pick<StageOptions['training'], 'forwardGradient'>,
  { lower, ...options }: TangentOptions & Required<Pick<TangentOptions, 'parameters' | 'outputs'>>,
): TangentGraph {
  const { tangentCount, difference: step } = defined(forwardGradient, 'what forward gradients need');
  if (step === undefined)
    return severalTangents(
      tangentGraph(stage, { ...options, ...(lower === undefined ? {} : { lower }) }),
      tangentCount,
    );
  return differenceGraph(stage, {
    ...options,
    step,
    losses: options.outputs.filter((name) => name === stepNames.loss),
  });
}

/**
 * The last stage with the loss behind it: the sum over the samples, and the right predictions, in place of outputs, and
 * what its states become.
 */
export function withLoss(
  stage: StageGraph,
  options: Pick<StageOptions, 'training' | 'label' | 'sampleCount'>,
): StaticGraph {
  const { graph, states } = stage;
  const { graph: loss, rename } = lossOf(stage, options);
  const sums = loss.outputs.map(({ name }) => name).filter((name) => name !== 'gradient');
  const parts = [{ graph }, { graph: loss, rename }];
  const joined = joinGraphs(graph.name, parts, [
    ...sums.map((name) => defined(rename.get(name), name)),
    ...states.map(({ output }) => output),
  ]);
  // The scale is of the gradient alone.
  const inputs = joined.inputs.filter(({ name }) => name !== stepNames.scale);
  const { parameters, buffers } = graph;
  return instantiate({ ...graph, ...joined, inputs, parameters, buffers }, options.sampleCount);
}

/** The loss of a last stage's output, and what its inputs and outputs are called there. */
function lossOf(
  { graph }: StageGraph,
  { training, label, sampleCount }: Pick<StageOptions, 'training' | 'label' | 'sampleCount'>,
): { readonly graph: Graph; readonly rename: ReadonlyMap<string, string> } {
  const { name: logits, type, shape } = defined(graph.outputs[0], 'the output');
  const labels = { type: label.type, shape: [sampleCount, ...(label.shape.slice(1) as number[])] };
  const { loss: kind, ignoresNegative = false } = training;
  const loss = lossGraph(kind, { type, shape: shape as number[] }, labels, { ignoresNegative });
  return { graph: loss, rename: new Map([...Object.entries(stepNames), ['logits', logits]]) };
}

/** The pack of a tangent of packed parameters. */
function tangentPack({ name, count, members }: Pack, index: number): Pack {
  return {
    name: tangentName(name, index),
    count,
    members: members.map((member) => ({ ...member, name: tangentName(member.name, index) })),
  };
}

/** The tangents that travel with a cut: each tensor that has one, tangent by tangent. */
export function tangentCuts(cuts: readonly CutTensor[], tangentCount: number): readonly CutTensor[] {
  const moving = cuts.filter(({ differentiable }) => differentiable);
  return Array.from({ length: tangentCount }, (_, index) =>
    moving.map((cut) => ({ ...cut, name: tangentName(cut.name, index) })),
  ).flat();
}
