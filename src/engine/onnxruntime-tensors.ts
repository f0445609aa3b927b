// Our tensors as ONNX Runtime's, and back, without a copy.

import type { ElementArray, ElementType, Tensor } from '../graph/tensor.ts';
import { tensorBytes, viewBytes } from '../graph/tensor.ts';
import type { OnnxRuntime, RuntimeTensor } from './onnxruntime-module.ts';

/**
 * Where JavaScript has a Float16Array (Node 24), the runtime makes one of half-precision bits, which its native part
 * then takes for empty: such a tensor is made of the bits as integers and called float16 afterwards.
 */
export function toRuntime(
  runtime: OnnxRuntime,
  type: ElementType,
  data: ElementArray,
  shape: readonly number[],
): RuntimeTensor {
  if (type !== 'float16') return new runtime.Tensor(type, data, shape);
  return Object.defineProperty(new runtime.Tensor('uint16', data, shape), 'type', { value: type });
}

/** Our tensor over the same memory. Runtimes with a Float16Array use it where we hold raw bits. */
export function fromRuntime({ type, dims, data }: RuntimeTensor): Tensor {
  const result: Tensor = { type: type as ElementType, shape: [...dims], data: data as ElementArray };
  return type === 'float16' ? { ...result, data: viewBytes('float16', tensorBytes(result)) } : result;
}

/** What an error says, for a sentence of ours. */
export function messageOf(error: unknown): string {
  return (error instanceof Error ? error.message : String(error)).trim();
}
