// From a forward pass to the question what of it to keep (recompute.ts): bytes are exact, times estimated from
// operations and bytes moved.

import { nodeFlops } from '../graph/flops.ts';
import type { Node } from '../graph/graph.ts';
import type { StaticGraph } from '../graph/static.ts';
import { byteLength, type ValueType } from '../graph/tensor.ts';
import { type DifferentiateOptions, differentiate, type ForwardPass } from './differentiate.ts';
import { type Recomputation, type RecomputationProblem, recomputationFront } from './recompute.ts';

/** Milliseconds of one run of a node. */
export type NodeCost = (
  node: Node,
  inputs: readonly (ValueType | undefined)[],
  outputs: readonly ValueType[],
) => number;

/** The question what to keep of a pass. */
export function recomputationProblem(
  { nodes, bytes, required, type }: ForwardPass,
  costMs: NodeCost = estimatedMs,
): RecomputationProblem {
  const typeOf = (value: string): ValueType | undefined => (value === '' ? undefined : type(value));
  return {
    nodes: nodes.map((node) => {
      const outputs = node.outputs.map((output): ValueType => typeOf(output) ?? { type: 'bool', shape: [0] });
      return { inputs: node.inputs, outputs: node.outputs, costMs: costMs(node, node.inputs.map(typeOf), outputs) };
    }),
    bytes,
    required,
  };
}

/** How `recomputations` counts time. */
export interface TimeOptions {
  /** Default: `estimatedMs`. */
  readonly costMs?: NodeCost;
  /**
   * The measured time of the forward pass: what the nodes' times are scaled to. Default: they are taken as they are.
   */
  readonly forwardMs?: number;
}

/**
 * What a stage may keep for its backward pass, from everything with no extra time to the least with the most: bytes of
 * the whole batch, inputs that are kept included; milliseconds more. `withinBudget` picks the choice for a budget,
 * whose `recompute` goes to `differentiate`.
 */
export function recomputations(
  stage: StaticGraph,
  options: Omit<DifferentiateOptions, 'recompute'>,
  { costMs = estimatedMs, forwardMs }: TimeOptions = {},
): readonly Recomputation[] {
  let front: readonly Recomputation[] = [];
  const recompute = (pass: ForwardPass): Iterable<string> => {
    const problem = recomputationProblem(pass, costMs);
    const totalMs = problem.nodes.reduce((sum, node) => sum + (Number.isFinite(node.costMs) ? node.costMs : 0), 0);
    const scale = forwardMs === undefined || totalMs === 0 ? 1 : forwardMs / totalMs;
    front = recomputationFront(problem).map((point) => ({ ...point, extraMs: point.extraMs * scale }));
    return [];
  };
  differentiate(stage, { ...options, recompute });
  return front;
}

/**
 * One core of 2020 with eight to sixteen lanes. Only proportions matter: times are scaled to measured ones where those
 * are known.
 */
const productFlopsPerMs = 6e7;
const bytesPerMs = 6e6;
const elementsPerMs = 1e6;

/** Operators whose elements take several operations each, by their number. */
const steps: Readonly<Record<string, number>> = {
  BatchNormalization: 0.5,
  Clip: 0.3,
  Erf: 1.5,
  Gelu: 2,
  HardSigmoid: 0.5,
  HardSwish: 1,
  LayerNormalization: 1,
  MaxPool: 1,
  Mish: 4,
  Pow: 4,
  Sigmoid: 1,
  Softmax: 2,
  Softplus: 3,
  Tanh: 1.5,
  Transpose: 1,
};

const products = new Set(['Conv', 'ConvTranspose', 'Gemm', 'MatMul']);
const views = new Set(['Reshape', 'Flatten', 'Squeeze', 'Unsqueeze', 'Identity']);

/**
 * A guess that needs no measurement: the time of products from their operations, of others from the bytes they move and
 * the work on each element.
 */
export const estimatedMs: NodeCost = (node, inputs, outputs) => {
  if (views.has(node.operator)) return 0;
  const moved =
    [...inputs, ...outputs].reduce((sum, value) => sum + (value === undefined ? 0 : byteLength(value)), 0) / bytesPerMs;
  const flops = nodeFlops(node, inputs, outputs);
  if (!products.has(node.operator)) return moved + (flops * (steps[node.operator] ?? 0.2)) / elementsPerMs;
  const inputChannels = inputs[1]?.shape[1] ?? 1;
  // depthwise convolutions do not reach what products reach
  return moved + flops / (node.operator === 'Conv' && inputChannels < 4 ? productFlopsPerMs / 10 : productFlopsPerMs);
};
