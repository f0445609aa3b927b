// Operators on quantized weights, in ONNX's domain and in com.microsoft's.

const operators = /[Qq]uant|^QLinear|^Q(Attention|Gemm|MoE)$|Integer|NBits|Bnb4/;

/** What to do about them. */
export const quantizedHint = 'its weights are quantized and have no gradients; export the model before it is quantized';

/** True for an operator that computes with quantized numbers, or makes such. */
export function isQuantizing(operator: string): boolean {
  return operators.test(operator);
}
