// Keeps shapes from ONNX Runtime that it has no use for. Where it knows the shape of a value, it looks through all
// memory that is free at that moment for a piece of the same shape, with several string comparisons a look: a third of
// the time in which it creates the session of a step of 6,000 nodes. What it finds that way it holds until then. Where
// it knows none, it runs the same kernels on shapes that it sees when they come. Two things it must know: that what
// comes into a kernel and what goes out have one shape, so that it may write over its input; and the shapes of large
// values, because memory that is held for the next value of its size leaves fewer holes in the C library's heap than
// memory that is freed (ResNet-50, half computed again: 440 against 640 MiB).

import { type Graph, int, type Node, type ValueInfo } from '../graph/graph.ts';
import { viewOperators } from '../graph/lifetimes.ts';
import { byteLength, int64s, type Tensor, toNumbers, type ValueType } from '../graph/tensor.ts';

/** From this size on, values are large. */
const largeBytes = 2 ** 22;
/**
 * Smaller values may have memory of their own: to look for some that can be written over takes longer than it saves.
 */
const smallBytes = 2 ** 16;

/**
 * The values whose shapes the runtime has a use for: large ones, and what comes into a kernel that may write over its
 * input and what goes out, unless it is small.
 */
export function shownValues(
  { nodes, inputs, outputs, initializers }: Graph,
  overwrites: (node: Node) => number | undefined,
  types: ReadonlyMap<string, ValueType>,
): readonly ValueInfo[] {
  const border = new Set([...inputs, ...outputs].map(({ name }) => name));
  const shown = new Map<string, ValueInfo>();
  for (const node of nodes) {
    for (const name of viewOperators.has(node.operator) ? [] : node.outputs) {
      const type = border.has(name) ? undefined : types.get(name);
      if (type !== undefined && byteLength(type) >= largeBytes) shown.set(name, { name, ...type });
    }
    const place = overwrites(node);
    const pair = place === undefined ? [] : [node.inputs[place] ?? '', node.outputs[0] as string];
    const known = pair.map((name) => (border.has(name) || initializers.has(name) ? undefined : types.get(name)));
    if (!known.every((type) => type !== undefined && byteLength(type) >= smallBytes)) continue;
    pair.forEach((name, index) => {
      shown.set(name, { name, ...(known[index] as ValueType) });
    });
  }
  return [...shown.values()];
}

/**
 * The same computation with the targets of `Reshape`, the only constants from which shapes would follow, behind a
 * `Split` whose parts the runtime does not know before it runs.
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
  const kept = [...graph.initializers].filter(
    ([name]) => read.has(name) || graph.outputs.some((output) => output.name === name),
  );
  const [all, counts, copied] = [`${prefix}/all`, `${prefix}/counts`, `${prefix}/copied counts`];
  const node = (
    operator: string,
    inputs: readonly string[],
    outputs: readonly string[],
    attributes: Node['attributes'],
  ): Node => ({
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
