// Short names for the values inside a graph. ONNX Runtime looks values up by name throughout the creation of a session,
// and allocates memory for names of more than 15 characters.

import type { Graph } from '../graph/graph.ts';

/**
 * The same graph; values that are no inputs and no outputs have made-up names. Nodes keep theirs, by which errors name
 * them.
 */
export function shortNames(graph: Graph): { readonly graph: Graph; nameOf(value: string): string } {
  const names = new Map<string, string>();
  for (const { name } of [...graph.inputs, ...graph.outputs]) names.set(name, name);
  names.set('', '');
  const taken = new Set(names.keys());
  let count = 0;
  const nameOf = (value: string): string => {
    let name = names.get(value);
    if (name !== undefined) return name;
    do name = (count++).toString(36);
    while (taken.has(name));
    names.set(value, name);
    return name;
  };
  const initializers = new Map([...graph.initializers].map(([name, value]) => [nameOf(name), value]));
  const nodes = graph.nodes.map((node) => ({
    ...node,
    inputs: node.inputs.map(nameOf),
    outputs: node.outputs.map(nameOf),
  }));
  return { graph: { ...graph, initializers, nodes }, nameOf };
}
