// placeholder: see interfaces below; the graph's owner fills this in.
import type { Graph } from './graph.ts';
import type { ElementType } from './tensor.ts';

/** A tensor alive across a cut between two layers. */
export interface CutTensor {
  readonly name: string;
  readonly type: ElementType;
  /** The shape for one sample in the batch; the batch dimension itself is 'N'. */
  readonly shape: readonly (number | 'N')[];
  /** The axis of 'N'. */
  readonly batchAxis: number;
  /** True where a gradient travels back (float tensors that depend on a parameter or are on the way to one). */
  readonly differentiable: boolean;
}

/** One layer: a run of nodes between two legal cuts. */
export interface Layer {
  readonly name: string;
  /** Names of its nodes, in order. */
  readonly nodes: readonly string[];
  readonly parameters: readonly string[];
  readonly buffers: readonly string[];
  /** Every tensor alive across the cut after this layer (the graph's outputs for the last one). */
  readonly outputs: readonly CutTensor[];
  /** True when the layer's result for one sample depends on the other samples of its batch (batch normalization in training mode). */
  readonly batchDependent: boolean;
  /** Equal for layers that compute the same thing on the same shapes: profiled once. */
  readonly signature: string;
  /** Multiply-adds ×2 of a forward pass, per sample. */
  readonly flops: number;
}

/** A model as the planner sees it: layers in order, cut anywhere between them. */
export interface LayerSequence {
  readonly graph: Graph;
  readonly inputs: readonly CutTensor[];
  readonly layers: readonly Layer[];
}
