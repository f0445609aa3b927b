// Reverse mode on graphs with static shapes: from a stage's graph to the graphs that train it, as plain data. The
// forward graph also outputs what the backward graphs read (`saved`, counted in bytes). The backward pass comes whole
// and split into two halves, because zero-bubble schedules compute input gradients first and weight gradients later.

import type { Emitter } from '../graph/emitter.ts';
import type { Graph } from '../graph/graph.ts';
import type { StaticGraph } from '../graph/static.ts';
import { isFloat, type ValueType } from '../graph/tensor.ts';
import { type AssembledGraphs, assembleGraphs } from './assemble-graphs.ts';
import { backpropagate } from './backward.ts';
import { type DropoutInput, replaceDropouts } from './dropout.ts';
import { type ConvolutionForms, plainForms } from './forms.ts';
import { type BufferUpdate, checkNames, loadForward } from './forward.ts';
import { type ForwardPass, type PiecesOption, type Roles, splitBackward } from './split-backward.ts';

/** What to differentiate, and how. */
export interface DifferentiateOptions {
  /** Graph inputs that need gradients: those computed by an earlier stage's trained layers. */
  readonly inputs: readonly string[];
  /** Trained parameters; others are frozen and cost no gradient work. Default: all of the graph's. */
  readonly parameters?: readonly string[];
  /** Float outputs that receive gradients from outside. Default: all of them. */
  readonly outputs?: readonly string[];
  /**
   * Values of the forward pass that the backward pass recomputes instead of reading them from `saved`, or a function
   * that chooses them. Default: none.
   */
  readonly recompute?: Iterable<string> | ((pass: ForwardPass) => Iterable<string>);
  /** Additionally splits the whole backward pass, or its second half, into pieces. Default: none. */
  readonly pieces?: PiecesOption;
  /** Chooses the forms of convolutions' gradients. Default: those that ONNX Runtime's plain kernels compute fastest. */
  readonly forms?: ConvolutionForms;
  /**
   * Rewrites the whole pass before it is split into its graphs; receives deferred gradients. Default: no rewriting, and
   * gradients written out.
   */
  readonly lower?: (pass: TrainingPass) => TrainingPass;
}

/** A forward pass followed by its backward pass, in one list of nodes. */
export interface TrainingPass {
  /** Holds the nodes, with all types and constants. */
  readonly emitter: Emitter;
  /** The number of leading nodes that are the forward pass. */
  readonly forwardCount: number;
  /** The results of the forward pass, each under its own name: the stage's outputs and new buffers. */
  readonly results: readonly string[];
  /** Value → its gradient. */
  readonly gradients: ReadonlyMap<string, string>;
}

/**
 * The graphs that train a stage. Every graph's inputs are exactly the values it reads, except for `forward`, which has
 * all the stage's inputs.
 */
export interface StageGraphs extends AssembledGraphs {
  readonly bufferUpdates: readonly BufferUpdate[];
  /** Masks and other random numbers to feed to the forward graph. */
  readonly dropouts: readonly DropoutInput[];
  /** The inputs that have a gradient. */
  readonly inputGradients: readonly string[];
  /** The parameters that have a gradient. */
  readonly parameterGradients: readonly string[];
  /** The requested inputs and parameters that no output depends on: their gradient is zero and no graph computes it. */
  readonly withoutGradient: readonly string[];
}

/** The name, in the backward graphs, of the gradient that an output receives from outside. */
export function outputGradientName(output: string): string {
  return `outputGradient(${output})`;
}

/**
 * The graphs that train a stage: forward, backward, and the backward split into two halves. Throws InputError, naming
 * node and operator, if a gradient has to pass an operator without a rule.
 */
export function differentiate(stage: StaticGraph, options: DifferentiateOptions): StageGraphs {
  const { stage: masked, dropouts } = replaceDropouts(stage);
  const { graph } = masked;
  const parameters = options.parameters ?? graph.parameters;
  const outputs = options.outputs ?? graph.outputs.filter(({ type }) => isFloat(type)).map(({ name }) => name);
  checkNames(graph, { inputs: options.inputs, parameters, outputs });
  const isFloatValue = (name: string): boolean => isFloat((masked.types.get(name) as ValueType).type);
  const sources = [...options.inputs, ...parameters].filter(isFloatValue);
  const { forms = plainForms, lower } = options;
  const forward = loadForward(masked, sources, { deferred: lower !== undefined });
  const { bufferUpdates, varied } = forward;
  const written = forward.emitter.nodes.length;
  const seeds = new Map<string, string>();
  for (const output of outputs) if (varied.has(output)) seeds.set(output, declareSeed(forward.emitter, output));
  const all = backpropagate(forward.emitter, { varied, seeds, forms, deferred: lower !== undefined });
  const wanted = new Map([...all].filter(([name]) => options.inputs.includes(name) || parameters.includes(name)));
  const results = [...graph.outputs.map(({ name }) => name), ...bufferUpdates.map(({ output }) => output)];
  const pass: TrainingPass = { emitter: forward.emitter, forwardCount: written, results, gradients: wanted };
  const { emitter, forwardCount, gradients } = lower === undefined ? pass : lower(pass);
  const roles = rolesOf(graph, bufferUpdates, seeds);
  const halves = splitBackward(emitter, {
    forwardCount,
    gradients,
    inputs: options.inputs,
    parameters,
    roles,
    recompute: options.recompute ?? [],
    pieces: options.pieces,
  });
  return {
    ...assembleGraphs({ emitter, graph, halves, roles, bufferUpdates, dropouts, forwardCount }),
    bufferUpdates,
    dropouts,
    inputGradients: options.inputs.filter((name) => gradients.has(name)),
    parameterGradients: parameters.filter((name) => gradients.has(name)),
    withoutGradient: [...options.inputs, ...parameters].filter((name) => !gradients.has(name)),
  };
}

function declareSeed(emitter: Emitter, output: string): string {
  const { type, shape } = emitter.type(output);
  return emitter.input(outputGradientName(output), type, shape);
}

function rolesOf(graph: Graph, bufferUpdates: readonly BufferUpdate[], seeds: ReadonlyMap<string, string>): Roles {
  const replaced = new Set(bufferUpdates.map(({ buffer }) => buffer));
  return {
    seeds: new Set(seeds.values()),
    fixed: new Set([...graph.parameters, ...graph.buffers].filter((name) => !replaced.has(name))),
    inputs: new Set([...graph.inputs.map(({ name }) => name), ...replaced]),
  };
}
