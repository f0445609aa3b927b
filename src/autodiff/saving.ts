// From a forward pass to the problem of what to keep of it (recompute.ts): bytes are exact, times are estimated from
// operations and bytes moved.

import { nodeFlops } from '../graph/flops.ts';
import type { Node } from '../graph/graph.ts';
import type { StaticGraph } from '../graph/static.ts';
import { byteLength, type ValueType } from '../graph/tensor.ts';
import { type DifferentiateOptions, differentiate } from './differentiate.ts';
import { type Recomputation, type RecomputationProblem, recomputationFront } from './recompute.ts';
import type { ForwardPass } from './split-backward.ts';

/** Milliseconds of one run of a node. */
export type NodeCost = (
  node: Node,
  inputs: readonly (ValueType | undefined)[],
  outputs: readonly ValueType[],
) => number;

/** The recomputation problem of a forward pass. */
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

/** Options of `recomputations` for times. */
export interface TimeOptions {
  /** Default: `estimatedMs`. */
  readonly costMs?: NodeCost;
  /** The measured time of the forward pass, to which the nodes' times are scaled. Default: not scaled. */
  readonly forwardMs?: number;
}

/**
 * The choices of what a stage keeps for its backward pass, from everything with no extra time to the least with the
 * most: bytes of the whole batch, including kept inputs, and additional milliseconds. `withinBudget` chooses for a
 * budget; its `recompute` is an option of `differentiate`.
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
 * One core of 2020 with eight to sixteen SIMD lanes. Only proportions matter: times are scaled to measured ones if
 * those are known.
 */
const productFlopsPerMs = 6e7;
const bytesPerMs = 6e6;
const elementsPerMs = 1e6;

/** Operators that take several operations for each element, with their number. */
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
 * A node's time without measurement: for products from their operations, for others from the bytes they move and the
 * work on each element.
 */
export const estimatedMs: NodeCost = (node, inputs, outputs) => {
  if (views.has(node.operator)) return 0;
  const moved =
    [...inputs, ...outputs].reduce((sum, value) => sum + (value === undefined ? 0 : byteLength(value)), 0) / bytesPerMs;
  const flops = nodeFlops(node, inputs, outputs);
  if (!products.has(node.operator)) return moved + (flops * (steps[node.operator] ?? 0.2)) / elementsPerMs;
  const inputChannels = inputs[1]?.shape[1] ?? 1;
  // depthwise convolutions run slower than products
  return moved + flops / (node.operator === 'Conv' && inputChannels < 4 ? productFlopsPerMs / 10 : productFlopsPerMs);
};
