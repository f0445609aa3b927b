// The names on the borders of training's graphs: inputs and outputs that belong to a parameter carry its name.

import type { ElementType } from '../graph/tensor.ts';

/** A parameter to be trained. */
export interface Parameter {
  readonly name: string;
  readonly shape: readonly number[];
  /** float32 (the default) or float64. */
  readonly type?: ElementType;
}
