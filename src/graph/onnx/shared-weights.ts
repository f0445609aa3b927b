// Exporters that store equal tensors once also merge layers that only began equal, such as copies of one layer
// (torch.nn.TransformerEncoder). In the file they look like layers that share weights on purpose, and are trained so.
// This module writes a note for the user.

import type { Node } from '../graph.ts';
import type { Tensor } from '../tensor.ts';

/** Operators whose nodes usually have a matrix of their own, with its input position. */
const matrixPositions: Readonly<Record<string, number>> = {
  Conv: 1,
  ConvTranspose: 1,
  GRU: 1,
  Gemm: 1,
  LSTM: 1,
  MatMul: 1,
};

/**
 * A note about matrices that several nodes of one kind read, or undefined if there are none. `nodes` are the file's.
 */
export function sharedWeightsNote(
  nodes: readonly Node[],
  parameters: readonly string[],
  initializers: ReadonlyMap<string, Tensor>,
): string | undefined {
  const trained = new Set(parameters);
  const source = new Map<string, string>();
  const readerCount = new Map<string, number>();
  for (const { operator, inputs, outputs } of nodes) {
    const first = inputs[0] ?? '';
    if (operator === 'Identity' || operator === 'Transpose') source.set(outputs[0] ?? '', source.get(first) ?? first);
    const read = inputs[matrixPositions[operator] ?? -1];
    if (read === undefined) continue;
    const name = source.get(read) ?? read;
    if (trained.has(name) && isMatrix(initializers.get(name))) readerCount.set(name, (readerCount.get(name) ?? 0) + 1);
  }
  const shared = [...readerCount].filter(([, count]) => count > 1);
  const [name, count] = shared[0] ?? [];
  if (name === undefined) return undefined;
  const others = shared.length === 1 ? '' : ` (and ${shared.length - 1} more like it)`;
  return (
    `Weight "${name}"${others} is used by ${count} nodes and trained as one; ` +
    'if these are layers that only began equal, export the model in training mode.'
  );
}

function isMatrix(value: Tensor | undefined): boolean {
  return value !== undefined && value.shape.filter((dimension) => dimension > 1).length > 1;
}
