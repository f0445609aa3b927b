// Keeps shapes from ONNX Runtime that it has no use for. Where it knows the shape of a value, it looks through all memory that is free at that moment for a
// piece of the same shape, with several string comparisons a look: a third of the time in which it creates the session of a step of 6,000 nodes. What it
// finds that way it holds until then, too, which without an arena takes more memory than to free it. Where it knows none, it runs the same kernels on
// shapes that it sees when they come. Only to let a kernel write over its input it must know that both have one shape.

import { type Graph, int, type Node, type ValueInfo } from '../graph/graph.ts';
import { int64s, type Tensor, toNumbers, type ValueType } from '../graph/tensor.ts';

/** The values whose shapes decide whether a kernel may write over its input: what comes into such a kernel and what goes out. */
export function shownValues(
  { nodes, inputs, outputs, initializers }: Graph,
  overwrites: (node: Node) => number | undefined,
  types: ReadonlyMap<string, ValueType>,
): readonly ValueInfo[] {
  const border = new Set([...inputs, ...outputs].map(({ name }) => name));
  const shown = new Map<string, ValueInfo>();
  for (const node of nodes) {
    const place = overwrites(node);
    const pair = place === undefined ? [] : [node.inputs[place] ?? '', node.outputs[0] as string];
    const known = pair.map((name) => (border.has(name) || initializers.has(name) ? undefined : types.get(name)));
    pair.forEach((name, index) => {
      const type = known[index];
      if (type !== undefined && known.every((each) => each !== undefined)) shown.set(name, { name, ...type });
    });
  }
  return [...shown.values()];
}

/**
 * The same computation with the targets of `Reshape`, the only constants from which shapes would follow, behind a `Split` whose parts the runtime does not
 * know before it runs.
 */
export function hideReshapes(graph: Graph): Graph {
  const isHidden = ({ operator, domain, inputs }: Node): boolean =>
    operator === 'Reshape' && domain === '' && graph.initializers.has(inputs[1] as string);
  const targets = new Map<string, { readonly part: string; readonly sizes: readonly number[] }>();
  const nodes = graph.nodes.map((node) => {
    if (!isHidden(node)) return node;
    const sizes = toNumbers(graph.initializers.get(node.inputs[1] as string) as Tensor);
    const key = sizes.join();
    const target = targets.get(key) ?? { part: `${prefix}/${key}`, sizes };
    targets.set(key, target);
    return { ...node, inputs: [node.inputs[0] as string, target.part] };
  });
  if (targets.size === 0) return graph;
  const parts = [...targets.values()];
  const read = new Set(nodes.flatMap(({ inputs }) => inputs));
  const kept = [...graph.initializers].filter(([name]) => read.has(name) || graph.outputs.some((output) => output.name === name));
  const [all, counts, copied] = [`${prefix}/all`, `${prefix}/counts`, `${prefix}/copied counts`];
  const node = (operator: string, inputs: readonly string[], outputs: readonly string[], attributes: Node['attributes']): Node => ({
    ...{ operator, domain: '', name: `${prefix}/${operator}`, inputs, outputs, attributes },
  });
  return {
    ...graph,
    initializers: new Map([
      ...kept,
      [all, int64s(parts.flatMap(({ sizes }) => sizes))],
      [counts, int64s(parts.map(({ sizes }) => sizes.length))],
    ]),
    nodes: [
      node('Identity', [counts], [copied], {}),
      node(
        'Split',
        [all, copied],
        parts.map(({ part }) => part),
        { axis: int(0) },
      ),
      ...nodes,
    ],
  };
}

const prefix = 'hidden shapes';
