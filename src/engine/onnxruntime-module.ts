// ONNX Runtime's packages, as far as they are used here: the maker of an engine passes one in.

import type { ElementArray, ElementType } from '../graph/tensor.ts';

/** ONNX Runtime's tensor, as far as it is used here. */
export interface RuntimeTensor {
  readonly type: string;
  readonly dims: readonly number[];
  readonly data: unknown;
  /** Where the elements are: 'cpu' (then `data` has them), 'gpu-buffer', … */
  readonly location?: string;
  /** Frees a tensor that is elsewhere than in this process's memory. */
  dispose?(): void;
}

/** ONNX Runtime's session, as far as it is used here. */
export interface RuntimeSession {
  /** `fetches`: the outputs wanted, or tensors to write them into; null for those that get a new one. */
  run(
    feeds: Readonly<Record<string, RuntimeTensor>>,
    fetches: readonly string[] | Readonly<Record<string, RuntimeTensor | null>>,
  ): Promise<Readonly<Record<string, RuntimeTensor>>>;
  release(): Promise<void>;
}

/** What the packages `onnxruntime-node` and `onnxruntime-web` export, as far as it is used here. */
export interface OnnxRuntime {
  readonly InferenceSession: {
    create(model: Uint8Array, options: Readonly<Record<string, unknown>>): Promise<RuntimeSession>;
  };
  readonly Tensor: new (type: ElementType, data: ElementArray, dims: readonly number[]) => RuntimeTensor;
}
