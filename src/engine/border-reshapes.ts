// Takes `Reshape` off the border of a graph. ONNX Runtime copies a graph input or output that is only reshaped; the
// engine, which holds plain row-major arrays, can give them another shape for nothing. Inputs keep their names; an
// output may have another name inside.

import type { Graph, Node, ValueInfo } from '../graph/graph.ts';
import { intAttribute } from '../graph/graph.ts';
import { inferTypes } from '../graph/infer-types.ts';
import { elementCount, sameShape, toNumbers, type ValueType } from '../graph/tensor.ts';
import { blockedType } from './blocked-types.ts';

/** A graph that wants its inputs, and gives its outputs, in other shapes than the original. */
export interface PeeledGraph {
  readonly graph: Graph;
  /** The name inside for each output of the original graph. */
  readonly inside: ReadonlyMap<string, string>;
}

/**
 * The same computation without the reshapes on its border. All shapes must be static. `blockSize`: of the blocked
 * values in it.
 */
export function peelReshapes(graph: Graph, blockSize?: number): PeeledGraph {
  return peelOutputs(peelInputs(graph), blockSize);
}

/** Input x whose only use is Reshape(x, constant), always to the same shape: x arrives in that shape. */
function peelInputs(graph: Graph): Graph {
  const outputs = new Set(graph.outputs.map(({ name }) => name));
  const users = new Map<string, Node[]>();
  for (const node of graph.nodes) {
    for (const name of new Set(node.inputs)) users.set(name, [...(users.get(name) ?? []), node]);
  }
  const dropped = new Set<Node>();
  const renamed = new Map<string, string>();
  const peel = (input: ValueInfo): ValueInfo => {
    const nodes = users.get(input.name) ?? [];
    const shapes = nodes.map((node) =>
      outputs.has(node.outputs[0] as string) ? undefined : targetShape(graph, node, input),
    );
    const first = shapes[0];
    if (first === undefined || outputs.has(input.name)) return input;
    if (!shapes.every((shape) => shape !== undefined && sameShape(shape, first))) return input;
    for (const node of nodes) {
      dropped.add(node);
      renamed.set(node.outputs[0] as string, input.name);
    }
    return { ...input, shape: first };
  };
  const inputs = graph.inputs.map(peel);
  if (dropped.size === 0) return graph;
  const nodes = graph.nodes.filter((node) => !dropped.has(node));
  return {
    ...graph,
    inputs,
    nodes: nodes.map((node) => ({ ...node, inputs: node.inputs.map((name) => renamed.get(name) ?? name) })),
  };
}

/**
 * Output y = Reshape(v, constant) that nothing else reads, perhaps several times over: v leaves instead, if a node
 * makes it and it is no output already.
 */
function peelOutputs(graph: Graph, blockSize: number | undefined): PeeledGraph {
  const inside = new Map(graph.outputs.map(({ name }) => [name, name]));
  const makers = new Map(graph.nodes.flatMap((node) => node.outputs.map((name) => [name, node] as const)));
  const readerCounts = new Map<string, number>();
  for (const { inputs } of graph.nodes)
    for (const name of inputs) readerCounts.set(name, (readerCounts.get(name) ?? 0) + 1);
  const leaving = new Set(inside.keys());
  const candidates = graph.outputs.filter(
    ({ name }) => makers.get(name)?.operator === 'Reshape' && !readerCounts.has(name),
  );
  if (candidates.length === 0) return { graph, inside };
  const types = inferTypes(graph, (node, inputs) => blockedType(node, inputs, blockSize));
  const dropped = new Set<Node>();
  /** The reshapes in a row that make a value which nothing else reads, the last one first. */
  function* reshapesBehind(output: string): Generator<Node, void, void> {
    for (let name = output; name === output || readerCounts.get(name) === 1; ) {
      const node = makers.get(name);
      const source = node?.inputs[0];
      const type = source === undefined ? undefined : types.get(source);
      if (node === undefined || type === undefined || targetShape(graph, node, type) === undefined) return;
      yield node;
      name = source as string;
    }
  }
  for (const { name } of candidates) {
    const passed: Node[] = [];
    for (const node of reshapesBehind(name)) {
      passed.push(node);
      const source = node.inputs[0] as string;
      if (leaving.has(source)) break;
      if (!makers.has(source)) continue;
      inside.set(name, source);
      for (const one of passed.splice(0)) dropped.add(one);
    }
    leaving.add(inside.get(name) as string);
  }
  const outputs = graph.outputs.map((output): ValueInfo => {
    const name = inside.get(output.name) as string;
    return name === output.name ? output : { name, ...(types.get(name) as ValueType) };
  });
  return { graph: { ...graph, nodes: graph.nodes.filter((node) => !dropped.has(node)), outputs }, inside };
}

/** The shape to which `node` brings a value, if it is a Reshape of it to a constant one. */
function targetShape(
  graph: Graph,
  node: Node,
  { name, shape }: Partial<ValueInfo> & Pick<ValueInfo, 'shape'>,
): readonly number[] | undefined {
  if (node.operator !== 'Reshape' || node.domain !== '' || intAttribute(node, 'allowzero', 0) !== 0) return undefined;
  const target = graph.initializers.get(node.inputs[1] as string);
  if (target === undefined || (name !== undefined && node.inputs[0] !== name)) return undefined;
  const sizes = toNumbers(target).map((size, axis) => (size === 0 ? (shape[axis] as number) : size));
  const known = elementCount(sizes.filter((size) => size >= 0));
  const count = elementCount(shape as readonly number[]);
  if (sizes.includes(-1) && (known === 0 || count % known !== 0)) return undefined;
  const result = sizes.map((size) => (size === -1 ? count / known : size));
  return elementCount(result) === count ? result : undefined;
}
