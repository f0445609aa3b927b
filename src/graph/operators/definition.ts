// What an operator is to Asteroid: its result's type and its value. One entry an operator; families of them in the
// files beside. `evaluate` is the slow, obvious oracle (any float type, so float64 for finite differences); fast
// kernels are the engines' business.

import type { Node } from '../graph.ts';
import type { Tensor, ValueType } from '../tensor.ts';

/** The meaning of one ONNX operator at the canonical opset. Inputs that are absent are undefined. */
export interface OperatorDefinition {
  /**
   * The types and static shapes of the outputs (as many as the node has outputs; an absent one ('') still has its
   * place). `constants[i]` is the value of input i where it is known before running (shapes, axes, pads). Throws
   * InputError naming the node when the shapes do not fit.
   */
  infer(
    node: Node,
    inputs: readonly (ValueType | undefined)[],
    constants: readonly (Tensor | undefined)[],
  ): readonly ValueType[];
  /** The outputs' values. Must not change its inputs; may return an input's data where the operator only reshapes. */
  evaluate(node: Node, inputs: readonly (Tensor | undefined)[]): readonly Tensor[];
  /** The inputs whose values `infer` needs in `constants`, because the outputs' shapes depend on them. */
  readonly constantInputs: readonly number[];
}
