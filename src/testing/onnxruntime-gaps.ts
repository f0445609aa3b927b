// What ONNX Runtime's CPU provider cannot run although ONNX allows it: element types without a kernel, by operator.
// Checked against the installed version on random cases; makers of graphs for it (autodiff, lowering) must avoid these.

import type { OperatorName } from '../graph/operators/names.ts';
import type { ElementType } from '../graph/tensor.ts';

/** The version for which the table holds. */
export const gapsVersion = '1.30.0';

/**
 * The element types that the table speaks about: those of training, and of shapes and masks. float32 has all kernels.
 */
export const gapTypes: readonly ElementType[] = ['float32', 'float64', 'int32', 'int64', 'bool'];

/** Element types that the operator takes by ONNX's word and for which the runtime has no kernel. */
export const onnxRuntimeGaps: Readonly<Partial<Record<OperatorName, readonly ElementType[]>>> = {
  Acos: ['float64'],
  Acosh: ['float64'],
  Asin: ['float64'],
  Asinh: ['float64'],
  Atan: ['float64'],
  Atanh: ['float64'],
  AveragePool: ['float64'],
  Conv: ['float64'],
  ConvTranspose: ['float64'],
  Cosh: ['float64'],
  Elu: ['float64'],
  Erf: ['float64'],
  EyeLike: ['bool'],
  Gelu: ['float64'],
  Gemm: ['int32', 'int64'],
  GlobalAveragePool: ['float64'],
  GlobalMaxPool: ['float64'],
  HardSigmoid: ['float64'],
  HardSwish: ['float64'],
  InstanceNormalization: ['float64'],
  LeakyRelu: ['float64'],
  Mean: ['float64'],
  Mish: ['float64'],
  NonZero: ['float64'],
  OneHot: ['float64', 'int32', 'bool'],
  PRelu: ['float64', 'int32', 'int64'],
  Relu: ['int64'],
  Resize: ['float64', 'int64'],
  Selu: ['float64'],
  Sinh: ['float64'],
  Softplus: ['float64'],
  Softsign: ['float64'],
  Tan: ['float64'],
  ThresholdedRelu: ['float64'],
  Where: ['bool'],
};
