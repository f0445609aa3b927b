// The names of inputs and outputs of training graphs that belong to a parameter.

import type { ElementType } from '../graph/tensor.ts';

/** A parameter to be trained. */
export interface Parameter {
  readonly name: string;
  readonly shape: readonly number[];
  /** float32 (the default) or float64. */
  readonly type?: ElementType;
}
