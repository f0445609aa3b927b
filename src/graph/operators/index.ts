// The table of all operators: an ONNX operator's type rule and value by its name.

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

/** True for a supported operator of the default domain. */
export function isOperator(name: string): name is OperatorName {
  return Object.hasOwn(operators, name);
}
