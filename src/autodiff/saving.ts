// From a forward pass to the question what of it to keep (recompute.ts): bytes are exact, times estimated from operations and bytes moved.

import { nodeFlops } from '../graph/flops.ts';
import type { Node } from '../graph/graph.ts';
import { byteLength, type ValueType } from '../graph/tensor.ts';
import type { ForwardPass } from './differentiate.ts';
import type { RecomputationProblem } from './recompute.ts';

/** Milliseconds of one run of a node. */
export type NodeCost = (node: Node, inputs: readonly (ValueType | undefined)[], outputs: readonly ValueType[]) => number;

/** The question what to keep of a pass. */
export function recomputationProblem({ nodes, bytes, required, type }: ForwardPass, costMs: NodeCost = estimatedMs): RecomputationProblem {
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

/** One core of 2020 with eight to sixteen lanes. Only proportions matter: times are scaled to measured ones where those are known. */
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

/** A guess that needs no measurement: the time of products from their operations, of others from the bytes they move and the work on each element. */
export const estimatedMs: NodeCost = (node, inputs, outputs) => {
  if (views.has(node.operator)) return 0;
  const moved = [...inputs, ...outputs].reduce((sum, value) => sum + (value === undefined ? 0 : byteLength(value)), 0) / bytesPerMs;
  const flops = nodeFlops(node, inputs, outputs);
  if (!products.has(node.operator)) return moved + (flops * (steps[node.operator] ?? 0.2)) / elementsPerMs;
  const inputChannels = inputs[1]?.shape[1] ?? 1;
  // depthwise convolutions do not reach what products reach
  return moved + flops / (node.operator === 'Conv' && inputChannels < 4 ? productFlopsPerMs / 10 : productFlopsPerMs);
};
