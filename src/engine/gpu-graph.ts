// What ONNX Runtime's WebGPU provider lacks, written in operators that it has. Found by trying version 1.30: it takes
// `BatchNormalization` in training mode for its own and then refuses to run it.

import { add, mul, range, reduceMean, reshape, scale, square } from '../autodiff/expressions.ts';
import { perChannel, statistics } from '../autodiff/rules/normalization.ts';
import { Emitter } from '../graph/emitter.ts';
import { floatAttribute, type Graph, intAttribute, type Node } from '../graph/graph.ts';
import { inferTypes } from '../graph/infer-types.ts';
import type { Tensor, ValueType } from '../graph/tensor.ts';

/** The same computation without what the provider lacks. All shapes must be static. */
export function writtenOutForGpu(graph: Graph): Graph {
  if (!graph.nodes.some(isTrainingNormalization)) return graph;
  const types = inferTypes(graph);
  const initializers = new Map(graph.initializers);
  const nodes = graph.nodes.flatMap((node) =>
    isTrainingNormalization(node) ? normalization(node, types, initializers) : [node],
  );
  return { ...graph, initializers, nodes };
}

function isTrainingNormalization(node: Node): boolean {
  return node.domain === '' && node.operator === 'BatchNormalization' && intAttribute(node, 'training_mode', 0) !== 0;
}

/**
 * y = scale·(x − mean)/√(variance + ε) + bias over the batch, and each running statistic r as r·momentum +
 * s·(1 − momentum).
 */
function normalization(
  node: Node,
  types: ReadonlyMap<string, ValueType>,
  initializers: Map<string, Tensor>,
): readonly Node[] {
  const e = new Emitter(`${node.name}/`);
  for (const name of new Set(node.inputs)) {
    const { type, shape } = types.get(name) as ValueType;
    e.input(name, type, shape);
  }
  const [x, gain, bias, ...running] = node.inputs as [string, string, string, string, string];
  const rank = e.shape(x).length;
  const axes = range(rank).filter((axis) => axis !== 1);
  const { centered, inverse } = statistics(e, x, axes, floatAttribute(node, 'epsilon', 1e-5));
  const slope = mul(e, inverse, perChannel(e, gain, rank));
  const written = new Map([[add(e, mul(e, centered, slope), perChannel(e, bias, rank)), node.outputs[0] as string]]);
  const momentum = floatAttribute(node, 'momentum', 0.9);
  const ofBatch = [() => reduceMean(e, x, axes), () => reduceMean(e, square(e, centered), axes)];
  ofBatch.forEach((statistic, index) => {
    const [output = '', old = ''] = [node.outputs[index + 1], running[index]];
    if (output === '') return;
    const fresh = reshape(e, statistic(), e.shape(old));
    written.set(add(e, scale(e, old, momentum), scale(e, fresh, 1 - momentum)), output);
  });
  for (const [name, value] of e.initializers) initializers.set(name, value);
  const named = (name: string): string => written.get(name) ?? name;
  return e.nodes.map((one) => ({ ...one, inputs: one.inputs.map(named), outputs: one.outputs.map(named) }));
}
