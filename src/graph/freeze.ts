// Frozen parameters: how they change what a graph computes. Which gradients are left out is decided in layers.ts (cuts)
// and autodiff (stages).

import { gradientInputs, variedBy } from './gradient-paths.ts';
import { type Graph, int, intAttribute, type Node } from './graph.ts';
import { freshName } from './liveness.ts';

/**
 * The graph with frozen batch normalization in inference mode: if its own scale and bias are frozen, or, if it has no
 * parameters, if nothing before it is trained. Such a node uses its running statistics and does not update them, so
 * that the layers after it keep the inputs they were trained on. (Keras does the same; in PyTorch it takes `eval()` on
 * the frozen modules.)
 */
export function freezeBatchNormalization(graph: Graph, frozen: readonly string[]): Graph {
  if (frozen.length === 0) return graph;
  const isFrozen = new Set(frozen);
  const trained = new Set(graph.parameters.filter((name) => !isFrozen.has(name)));
  const parameters = new Set(graph.parameters);
  const varied = variedBy(trained, graph.nodes);
  const staysStill = (node: Node): boolean => {
    const own = node.inputs.slice(1, 3).filter((name) => parameters.has(name));
    return own.length > 0
      ? own.every((name) => isFrozen.has(name))
      : !gradientInputs(node).some((name) => varied.has(name));
  };
  const nodes = graph.nodes.map((node) => {
    if (!isTrainingBatchNormalization(node) || !staysStill(node)) return node;
    return { ...node, outputs: node.outputs.slice(0, 1), attributes: { ...node.attributes, training_mode: int(0) } };
  });
  return { ...graph, nodes };
}

/**
 * The graph in which each reader of a frozen weight has one of its own, of the same values, and the names of all frozen
 * weights: what is not trained need not be one, and the graph can be cut between its readers.
 */
export function untieFrozen(
  graph: Graph,
  frozen: readonly string[],
): { readonly graph: Graph; readonly frozen: readonly string[] } {
  const isFrozen = new Set(frozen);
  const taken = new Set([...graph.initializers.keys(), ...graph.nodes.flatMap(({ outputs }) => outputs)]);
  const seen = new Set<string>();
  const initializers = new Map(graph.initializers);
  const added: string[] = [];
  const nodes = graph.nodes.map((node) => {
    if (!node.inputs.some((name) => isFrozen.has(name) && seen.has(name))) {
      for (const name of node.inputs) seen.add(name);
      return node;
    }
    const inputs = node.inputs.map((name) => {
      const value = graph.initializers.get(name);
      if (!isFrozen.has(name) || !seen.has(name) || value === undefined) return name;
      const own = freshName(name, taken);
      initializers.set(own, value);
      added.push(own);
      return own;
    });
    return { ...node, inputs };
  });
  if (added.length === 0) return { graph, frozen };
  const parameters = [...graph.parameters, ...added];
  return { graph: { ...graph, nodes, initializers, parameters }, frozen: [...frozen, ...added] };
}

/** The buffers that a forward pass replaces; those of batch normalization in inference mode are not. */
export function replacedBuffers({ nodes, buffers }: Pick<Graph, 'nodes' | 'buffers'>): string[] {
  const replaced = new Set(nodes.filter(isTrainingBatchNormalization).flatMap((node) => node.inputs.slice(3, 5)));
  return buffers.filter((name) => replaced.has(name));
}

function isTrainingBatchNormalization(node: Node): boolean {
  return node.domain === '' && node.operator === 'BatchNormalization' && intAttribute(node, 'training_mode', 0) !== 0;
}
