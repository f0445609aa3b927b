// Keeps ONNX Runtime from writing into what it is fed. Its `BatchNormalization` in training mode computes its outputs 1
// and 2 (mean and variance) in the memory of its inputs 3 and 4, read by others or not, and be they the caller's;
// unless these outputs are the graph's.

import { type Graph, intAttribute, type Node, type ValueInfo } from '../graph/graph.ts';
import type { ElementType } from '../graph/tensor.ts';

/**
 * The graph with the statistics of training-mode batch normalizations among its outputs, behind its own. Nobody needs
 * to fetch them.
 */
export function withStatistics(graph: Graph): Graph {
  const types = new Map<string, ElementType>();
  for (const { name, type } of graph.inputs) types.set(name, type);
  for (const [name, { type }] of graph.initializers) types.set(name, type);
  const returned = new Set(graph.outputs.map(({ name }) => name));
  const added = graph.nodes.filter(isTraining).flatMap((node): readonly ValueInfo[] => {
    const known = node.inputs.slice(1).map((input) => types.get(input));
    const type = known.find((found) => found !== undefined) ?? 'float32';
    const statistics = node.outputs.slice(1).filter((name) => name !== '' && !returned.has(name));
    return statistics.map((name) => ({ name, type, shape: [`channels of ${node.name}`] }));
  });
  return added.length === 0 ? graph : { ...graph, outputs: [...graph.outputs, ...added] };
}

function isTraining(node: Node): boolean {
  return node.domain === '' && node.operator === 'BatchNormalization' && intAttribute(node, 'training_mode', 0) !== 0;
}
