// Activity perturbation (Ren et al., "Scaling forward gradient with local losses", arXiv 2210.03310): in place of
// weights, what the layers with trained weights give is moved, by noise of its own for each sample. A sample's
// directional derivative d_i = ⟨∂f/∂h, tangent of h⟩_i of the output h (AsyncFGD, eq. 5) times its noise u_i is an
// unbiased estimate of the gradient of what the layer gives, and the layer's own rule makes of it and of its inputs the
// gradient of its weights:
//
//   x_k ─▶ layer k ─▶ y_k ─▶ … ─▶ h ─▶ loss       δ_k,i = (1/N) Σ_j d_ij u_k,ij       ∂/∂w_k ≈ ⟨δ_k, ∂y_k/∂w_k⟩
//                      ▲ u_k
//
// Noise is in as few dimensions as a sample's y_k has, not in as many as there are weights. Samples must not depend on
// each other, and the inputs of those layers stay until the derivatives are there.

import { defined } from '../assert.ts';
import { InputError } from '../errors.ts';
import { Emitter } from '../graph/emitter.ts';
import { type Graph, int } from '../graph/graph.ts';
import type { StaticGraph } from '../graph/static.ts';
import { elementCount, type ValueType } from '../graph/tensor.ts';
import {
  type DifferentiateOptions,
  differentiate,
  outputGradientName,
  type StageGraphs,
  type TrainingPass,
} from './differentiate.ts';
import { activityName, type TangentGraph, tangentGraph, tangentName } from './forward-mode.ts';
import { severalTangents } from './several-tangents.ts';

/** What a layer with trained parameters gives. */
export interface Activity {
  readonly value: string;
  readonly shape: readonly number[];
  /** The first of its trained parameters, by whose name its noise is drawn. */
  readonly parameter: string;
}

export interface ActivityOptions {
  /** Trained parameters. */
  readonly parameters: readonly string[];
  /** The output that the loss takes. */
  readonly output: string;
  readonly tangentCount: number;
  /** As for `tangentGraph`. */
  readonly lower?: (pass: TrainingPass) => TrainingPass;
}

/** A pass with estimates of its parameters' gradients, in three graphs that follow each other. */
export interface ActivityGraphs {
  /**
   * The stage's pass with tangents of its output. Takes `tangentName(activityName(value), tangent)` for each activity
   * and tangent. Gives what the other graphs read, besides the stage's outputs.
   */
  readonly tangents: TangentGraph;
  /** From `outputGradientName(output)` to the estimated gradients of activities. */
  readonly estimate: Graph;
  /** From these to `gradientName(parameter)`. */
  readonly backward: Graph;
  readonly activities: readonly Activity[];
}

/** The stage's pass whose activities move. Throws InputError as `activitiesOf` does. */
export function activityGraphs(stage: StaticGraph, options: ActivityOptions): ActivityGraphs {
  const { parameters, output, tangentCount, lower } = options;
  const activities = activitiesOf(stage, parameters);
  const values = activities.map(({ value }) => value);
  const cut = cutBehind(stage, values);
  const local = { inputs: [], parameters, outputs: values.map(exactName) };
  const { backward, saved, savedInputs } = readingOwn(cut, local, (name) => stage.types.has(name));
  const read = [...saved, ...savedInputs.filter(({ name }) => values.includes(name))];
  const outputs = [...new Set([...stage.graph.outputs, ...read].map(({ name }) => name))];
  const typed = outputs.map((name) => ({ name, ...defined(stage.types.get(name), name) }));
  const single = tangentGraph(
    { ...stage, graph: { ...stage.graph, outputs: typed } },
    { inputs: [], parameters: [], values, outputs: [output], ...(lower === undefined ? {} : { lower }) },
  );
  return {
    tangents: severalTangents(single, tangentCount),
    estimate: estimateGraph(activities, { output, ...defined(stage.types.get(output), output) }, tangentCount),
    backward,
    activities,
  };
}

/** A backward pass that reads of the forward pass only values of the model: what differentiating adds is made again. */
function readingOwn(cut: StaticGraph, options: DifferentiateOptions, isOwn: (value: string) => boolean): StageGraphs {
  const recompute = new Set<string>();
  for (;;) {
    const graphs = differentiate(cut, { ...options, recompute });
    const added = graphs.saved.filter(({ name }) => !isOwn(name) && !recompute.has(name));
    if (added.length === 0) return graphs;
    for (const { name } of added) recompute.add(name);
  }
}

/**
 * What the layers with trained parameters give, in the order of the nodes. Throws InputError if a parameter is read
 * other than by one node together with samples, or what that gives does not have the samples first.
 */
export function activitiesOf({ graph, types }: StaticGraph, parameters: readonly string[]): readonly Activity[] {
  const trained = new Set(parameters);
  const data = new Set(graph.inputs.map(({ name }) => name));
  const sampleCount = defined(graph.inputs[0], 'an input').shape[0];
  const readers = new Map<string, string>();
  return graph.nodes.flatMap(({ name, inputs, outputs }): readonly Activity[] => {
    const isData = inputs.some((input) => data.has(input));
    if (isData) for (const output of outputs) data.add(output);
    const own = inputs.filter((input) => trained.has(input));
    const [parameter] = own;
    if (parameter === undefined) return [];
    const value = outputs[0] ?? '';
    const { type, shape } = defined(types.get(value), value);
    for (const read of own) {
      const other = readers.get(read);
      readers.set(read, name);
      const isFitting = isData && type === 'float32' && shape[0] === sampleCount && other === undefined;
      if (!isFitting)
        throw new InputError(
          `--perturb activations cannot train "${read}", which node "${name}" reads: it takes parameters that one ` +
            'node reads together with samples, and that gives float32 with the samples first, not ' +
            `${type}[${shape.join(', ')}]` +
            `${other === undefined ? '' : `, and node "${other}" reads it, too`}; freeze it, or leave out --perturb.`,
        );
    }
    return [{ value, shape, parameter }];
  });
}

/** The name of a value where it arises; those who read it have it from outside. */
function exactName(value: string): string {
  return `${value}/exact`;
}

/** The stage cut behind some values: they are outputs under `exactName`, and inputs under their own. */
function cutBehind({ graph, types }: StaticGraph, values: readonly string[]): StaticGraph {
  const cut = new Set(values);
  const info = (name: string, value: string) => ({ name, ...defined(types.get(value), value) });
  return {
    graph: {
      ...graph,
      inputs: [...graph.inputs, ...values.map((value) => info(value, value))],
      outputs: values.map((value) => info(exactName(value), value)),
      nodes: graph.nodes.map((node) => ({
        ...node,
        outputs: node.outputs.map((output) => (cut.has(output) ? exactName(output) : output)),
      })),
    },
    types: new Map([...types, ...values.map((value) => [exactName(value), defined(types.get(value), value)] as const)]),
  };
}

/** δ_k,i = (1/N) Σ_j d_ij u_k,ij with d_ij = ⟨∂f/∂h, tangent j of h⟩_i. */
function estimateGraph(
  activities: readonly Activity[],
  { output, type, shape }: { readonly output: string } & ValueType,
  tangentCount: number,
): Graph {
  const e = new Emitter();
  const [sampleCount = 1, ...rest] = shape;
  const gradient = e.input(outputGradientName(output), type, shape);
  const derivatives = Array.from({ length: tangentCount }, (_, index) => {
    const product = e.emit('Mul', [gradient, e.input(tangentName(output, index), type, shape)]);
    const flat = e.emit('Reshape', [product, e.int64s([sampleCount, elementCount(rest)])]);
    return e.emit('ReduceSum', [flat, e.int64s([1])], { keepdims: int(1) });
  });
  for (const { value, shape: own } of activities) {
    const parts = derivatives.map((derivative, index) => {
      const noise = e.input(tangentName(activityName(value), index), 'float32', own);
      return e.emit('Mul', [noise, e.emit('Reshape', [derivative, e.int64s([sampleCount, ...own.slice(1).fill(1)])])]);
    });
    const sum = parts.reduce((before, part) => e.emit('Add', [before, part]));
    const name = outputGradientName(exactName(value));
    const inputs = [sum, e.scalarLike(sum, 1 / tangentCount)];
    e.append({ operator: 'Mul', domain: '', name, inputs, outputs: [name], attributes: {} });
  }
  return e.build(
    'estimate',
    activities.map(({ value }) => outputGradientName(exactName(value))),
  );
}
