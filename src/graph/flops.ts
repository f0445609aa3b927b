// Counts floating point operations, for planning without measurements and for layers' sizes. A multiply-add counts as
// two.

import { intAttribute, type Node } from './graph.ts';
import { elementCount, type ValueType } from './tensor.ts';

/**
 * Floating point operations of one node: 2 · multiply-adds for convolutions and matrix products; for reductions the
 * elements of the largest input or of the first output, whichever is more; otherwise the output's elements.
 */
export function nodeFlops(
  node: Node,
  inputs: readonly (ValueType | undefined)[],
  outputs: readonly ValueType[],
): number {
  const output = elementCount(outputs[0]?.shape ?? []);
  const first = inputs[0]?.shape ?? [];
  const second = inputs[1]?.shape ?? [];
  switch (node.operator) {
    case 'Conv':
      // Weights [outChannels, inChannels / group, ...kernel]: every output element sums over all but the first
      // dimension.
      return 2 * output * elementCount(second.slice(1));
    case 'ConvTranspose':
      // Weights [inChannels, outChannels / group, ...kernel]: every input element is spread over all but the first
      // dimension.
      return 2 * elementCount(first) * elementCount(second.slice(1));
    case 'Gemm':
      return 2 * output * (first[intAttribute(node, 'transA', 0) === 0 ? 1 : 0] ?? 1);
    case 'MatMul':
      return 2 * output * (first.at(-1) ?? 1);
    case 'AveragePool':
    case 'MaxPool': {
      const kernel = node.attributes['kernel_shape'];
      return output * (kernel?.type === 'ints' ? elementCount(kernel.value) : 1);
    }
    case 'GlobalAveragePool':
    case 'GlobalMaxPool':
      return elementCount(first);
    default:
      return node.operator.startsWith('Reduce') || node.operator.startsWith('Arg') ? elementCount(first) : output;
  }
}
