// The table of all operators: the one place where an ONNX operator's type rule and its value are looked up.

import type { OperatorDefinition } from './definition.ts';
import { elementwise } from './elementwise.ts';
import type { OperatorName } from './names.ts';
import { neural } from './neural.ts';
import { randoms } from './random.ts';
import { reductions } from './reductions.ts';
import { shapes } from './shapes.ts';

export const operators: Readonly<Record<OperatorName, OperatorDefinition>> = {
  ...elementwise,
  ...reductions,
  ...shapes,
  ...neural,
  ...randoms,
};

/** True for an operator of the default domain that Asteroid knows. */
export function isOperator(name: string): name is OperatorName {
  return Object.hasOwn(operators, name);
}
