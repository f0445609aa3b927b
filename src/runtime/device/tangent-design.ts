// The graphs of a stage that trains by forward gradients (AsyncFGD §3): its outputs and, in the same pass, their
// tangents; on the last stage the loss and its derivatives. Nothing is kept for a backward pass. Updates take gradient
// estimates as they take gradients.

import { defined } from '../../assert.ts';
import { differenceGraph } from '../../autodiff/finite-difference.ts';
import { type TangentGraph, type TangentOptions, tangentGraph, tangentName } from '../../autodiff/forward-mode.ts';
import { severalTangents } from '../../autodiff/several-tangents.ts';
import type { Engine } from '../../engine/engine.ts';
import { loweringOf } from '../../engine/lowering.ts';
import { joinGraphs } from '../../graph/join.ts';
import type { CutTensor } from '../../graph/layers.ts';
import { extractStage, type StageGraph } from '../../graph/stage.ts';
import { instantiate, type StaticGraph } from '../../graph/static.ts';
import { squaredNormGraph } from '../../training/clipping.ts';
import { lossGraph } from '../../training/losses.ts';
import { type Pack, packGraph } from './packs.ts';
import { dropoutsOf, packedUpdates } from './pass-design.ts';
import { differentiableNames, type StageDesign, type StageOptions, stepNames } from './stage-graphs.ts';
import { layOut } from './stage-layout.ts';

/** Tangents of a round. */
function tangentCountOf({ training }: StageOptions): number {
  return defined(training.forwardGradient, 'what forward gradients need').tangentCount;
}

/** Designs `tangent`, for a device with samples, and what updates take. */
export function designTangents({ blockSize }: Pick<Engine, 'blockSize'>, options: StageOptions): StageDesign {
  const { packs, trained, optimizer } = layOut(options);
  const updates = trained.length === 0 ? {} : { update: optimizer.graph, squaredNorm: squaredNormGraph(trained) };
  if (options.sampleCount === 0) return { pass: undefined, graphs: updates };
  const tangents = tangentsOf(options, blockSize);
  const indices = Array.from({ length: tangentCountOf(options) }, (_, index) => index);
  const replacements = new Map(tangents.bufferUpdates.map(({ buffer, output }) => [buffer, output]));
  const parameters = packs.parameters.flatMap((pack) => [pack, ...indices.map((index) => tangentPack(pack, index))]);
  return {
    pass: {
      saved: [],
      savedInputs: [],
      intermediates: [],
      bufferUpdates: packedUpdates(tangents.bufferUpdates, packs.buffers),
      isUpdating: false,
      isSumming: false,
      inputGradients: [],
      gradients: [],
      dropouts: dropoutsOf(tangents, options),
      pieces: [],
    },
    graphs: { tangent: packGraph(tangents.graph, { ...packs, parameters, replacements }), ...updates },
  };
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
  { graph, states }: StageGraph,
  { training, label, sampleCount }: Pick<StageOptions, 'training' | 'label' | 'sampleCount'>,
): StaticGraph {
  const { name: logits, type, shape } = defined(graph.outputs[0], 'the output');
  const labels = { type: label.type, shape: [sampleCount, ...(label.shape.slice(1) as number[])] };
  const { loss: kind, ignoresNegative = false } = training;
  const loss = lossGraph(kind, { type, shape: shape as number[] }, labels, { ignoresNegative });
  const rename = new Map([...Object.entries(stepNames), ['logits', logits]]);
  const sums = loss.outputs.map(({ name }) => name).filter((name) => name !== 'gradient');
  const parts = [{ graph }, { graph: loss, rename }];
  const joined = joinGraphs(graph.name, parts, [
    ...sums.map((name) => defined(rename.get(name), name)),
    ...states.map(({ output }) => output),
  ]);
  // The scale is of the gradient alone.
  const inputs = joined.inputs.filter(({ name }) => name !== stepNames.scale);
  const { parameters, buffers } = graph;
  return instantiate({ ...graph, ...joined, inputs, parameters, buffers }, sampleCount);
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
