// Values that stay where an engine computes, such as on a GPU, between runs: only what is asked for comes down.

import type { Tensor, ValueType } from '../graph/tensor.ts';

/** A computed value that no array of this process holds. */
export interface Resident extends ValueType {
  readonly data?: undefined;
  /** Brings a copy down. */
  read(): Promise<Tensor>;
  /** Frees the memory. */
  dispose(): void;
}

/** A computed value, wherever it is. */
export type Content = Tensor | Resident;

/** Whether a value is in an array of this process. */
export function isTensor(content: Content): content is Tensor {
  return content.data !== undefined;
}
