// Applies one operator to values, for tests that are about its meaning.

import { InputError } from '../errors.ts';
import type { Attributes, Node } from '../graph/graph.ts';
import { operators } from '../graph/operators/index.ts';
import type { OperatorName } from '../graph/operators/names.ts';
import type { Tensor } from '../graph/tensor.ts';

/** The node that {@link runOperator} runs: named "node", its inputs "x0", "x1", … ('' where they are undefined). */
export function operatorNode(
  operator: OperatorName,
  inputs: readonly (Tensor | undefined)[],
  attributes: Attributes = {},
  outputCount = 1,
): Node {
  return {
    operator,
    domain: '',
    name: 'node',
    inputs: inputs.map((input, index) => (input === undefined ? '' : `x${index}`)),
    outputs: Array.from({ length: outputCount }, (_, index) => `y${index}`),
    attributes,
  };
}

/** The outputs of one operator by its reference kernel. */
export function runOperator(
  operator: OperatorName,
  inputs: readonly (Tensor | undefined)[],
  attributes: Attributes = {},
  outputCount = 1,
): readonly Tensor[] {
  return operators[operator].evaluate(operatorNode(operator, inputs, attributes, outputCount), inputs);
}

/** The message of the InputError that the operator throws. Another error is thrown on; none is one. */
export function operatorProblem(
  operator: OperatorName,
  inputs: readonly (Tensor | undefined)[],
  attributes: Attributes = {},
  outputCount = 1,
): string {
  try {
    runOperator(operator, inputs, attributes, outputCount);
  } catch (error) {
    if (error instanceof InputError) return error.message;
    throw error;
  }
  throw new Error(`${operator} did not complain`);
}
