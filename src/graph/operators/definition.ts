// The interface of operators: the type and the value of their results. `evaluate` is the slow, simple oracle (any float
// type, so float64 for finite differences); fast kernels are in the engines.

import type { Node } from '../graph.ts';
import type { Tensor, ValueType } from '../tensor.ts';

/** The meaning of one ONNX operator at the canonical opset. Absent inputs are undefined. */
export interface OperatorDefinition {
  /**
   * The types and static shapes of the outputs (as many as the node has outputs, including absent ones ('')).
   * `constants[i]` is the value of input i if it is known before running (shapes, axes, pads). Throws InputError naming
   * the node if the shapes do not fit.
   */
  infer(
    node: Node,
    inputs: readonly (ValueType | undefined)[],
    constants: readonly (Tensor | undefined)[],
  ): readonly ValueType[];
  /** The outputs' values. Must not change its inputs; may return an input's data if the operator only reshapes. */
  evaluate(node: Node, inputs: readonly (Tensor | undefined)[]): readonly Tensor[];
  /** The inputs whose values `infer` needs in `constants`, because the outputs' shapes depend on them. */
  readonly constantInputs: readonly number[];
}
