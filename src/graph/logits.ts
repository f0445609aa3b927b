// Removes the final Softmax of a model: losses need its input.

import { type Graph, intAttribute, type Node } from './graph.ts';
import { usedValues } from './liveness.ts';

/** A graph whose first output is logits. */
export interface Logits {
  readonly graph: Graph;
  /** The removed Softmax node's name; undefined if there was none. */
  readonly softmax: string | undefined;
}

/** Operators that may follow a Softmax over classes before the output: they move or rename values. */
const movers: ReadonlySet<string> = new Set(['Identity', 'Reshape', 'Flatten', 'Squeeze', 'Unsqueeze']);

/**
 * The graph without the Softmax over classes (axis 1 or the last) at the end of its first output, if there is one;
 * other outputs are then removed as well. If the Softmax computed the output itself, the output is named after the
 * logits.
 */
export function withLogits(graph: Graph): Logits {
  const first = graph.outputs[0];
  const softmax = first === undefined ? undefined : lastSoftmax(graph, first.name);
  if (first === undefined || softmax === undefined) return { graph, softmax: undefined };
  const [probabilities = '', logits = ''] = [softmax.outputs[0], softmax.inputs[0]];
  const rename = (name: string): string => (name === probabilities ? logits : name);
  const nodes = graph.nodes
    .filter((node) => node !== softmax)
    .map((node) => ({ ...node, inputs: node.inputs.map(rename) }));
  const outputs = [{ ...first, name: rename(first.name) }];
  const used = usedValues(nodes, [rename(first.name)]);
  const keep = (names: readonly string[]): string[] => names.filter((name) => used.has(name));
  return {
    graph: { ...graph, outputs, nodes, parameters: keep(graph.parameters), buffers: keep(graph.buffers) },
    softmax: softmax.name,
  };
}

function lastSoftmax({ nodes }: Graph, output: string): Node | undefined {
  const producers = new Map(nodes.flatMap((node) => node.outputs.map((name) => [name, node] as const)));
  for (let node = producers.get(output); node?.domain === ''; node = producers.get(node.inputs[0] ?? '')) {
    if (node.operator === 'Softmax') return [1, -1].includes(intAttribute(node, 'axis', -1)) ? node : undefined;
    if (!movers.has(node.operator)) return undefined;
  }
  return undefined;
}
