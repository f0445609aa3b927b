// Graphs on their way to another thread: tensors in buffers of their own, which are moved; of those that lie in files
// only the places.

import type { Graph, Node } from '../graph/graph.ts';
import { type ElementArray, type FilePlace, filePlace, type Tensor, type ValueType } from '../graph/tensor.ts';
import { discard } from './buffers.ts';

/** A graph that can be posted. */
export interface PackedGraph {
  readonly name: string;
  /** Without the initializers that lie in files. */
  readonly graph: Graph;
  readonly placed: ReadonlyMap<string, ValueType & { readonly place: FilePlace }>;
}

/** The graph and the buffers that go along. Cloning a view would copy the whole file that it looks into. */
export function packGraph(graph: Graph): { readonly packed: PackedGraph; readonly moved: readonly ArrayBuffer[] } {
  const moved: ArrayBuffer[] = [];
  const pack = (value: Tensor): Tensor => {
    const data = value.data.slice() as ElementArray & { readonly buffer: ArrayBuffer };
    moved.push(data.buffer);
    return { ...value, data };
  };
  const packNode = (node: Node): Node => {
    const tensors = Object.entries(node.attributes).flatMap(([name, attribute]) =>
      attribute.type === 'tensor' ? [{ name, attribute }] : [],
    );
    const packed = tensors.map(
      ({ name, attribute }) => [name, { ...attribute, value: pack(attribute.value) }] as const,
    );
    return packed.length === 0 ? node : { ...node, attributes: { ...node.attributes, ...Object.fromEntries(packed) } };
  };
  const placed = new Map<string, ValueType & { readonly place: FilePlace }>();
  const initializers = new Map<string, Tensor>();
  for (const [name, value] of graph.initializers) {
    const place = filePlace(value);
    if (place === undefined) initializers.set(name, pack(value));
    else placed.set(name, { type: value.type, shape: value.shape, place });
  }
  const packed = { ...graph, initializers, nodes: graph.nodes.map(packNode) };
  return { packed: { name: graph.name, graph: packed, placed }, moved };
}

/** Reads a tensor that lies in a file. */
export type ReadPlaced = (type: ValueType, place: FilePlace) => Tensor;

/** The graph again. */
export function unpackGraph({ graph, placed }: PackedGraph, fileTensor: ReadPlaced): Graph {
  const files = Array.from(placed, ([name, value]) => [name, fileTensor(value, value.place)] as const);
  return { ...graph, initializers: new Map([...graph.initializers, ...files]) };
}

/** Frees the buffers that came along; the graph cannot be used any more. */
export function discardGraph({ graph }: PackedGraph): void {
  for (const { data } of graph.initializers.values()) discard(data);
}
