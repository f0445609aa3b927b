// Cuts graphs out of one list of nodes (a forward pass followed by its backward pass): the nodes that compute some
// targets from given values. Also merges nodes that compute the same.

import { assert, defined } from '../assert.ts';
import type { Emitter } from '../graph/emitter.ts';
import type { Attribute, Graph, Node } from '../graph/graph.ts';
import type { Tensor } from '../graph/tensor.ts';

/** The nodes that compute the targets, and the values they read from outside. */
export interface Selection {
  /** Indices into the list, ascending. */
  readonly nodes: ReadonlySet<number>;
  /**
   * Values that the selection reads, but that no selected node computes and that are no constants, in the order of
   * their producers.
   */
  readonly leaves: readonly string[];
}

/** The list of nodes with an index of producers. */
export class NodeList {
  readonly nodes: readonly Node[];
  readonly #producers = new Map<string, number>();

  constructor(nodes: readonly Node[]) {
    this.nodes = nodes;
    nodes.forEach((node, index) => {
      for (const output of node.outputs) if (output !== '') this.#producers.set(output, index);
    });
  }

  /** The index of the node that computes a value; undefined for graph inputs and constants. */
  producer(value: string): number | undefined {
    return this.#producers.get(value);
  }

  /**
   * The nodes that the targets need, stopping at values for which `isGiven` holds, at graph inputs and at constants.
   */
  select(
    targets: readonly string[],
    isGiven: (value: string) => boolean,
    isConstant: (value: string) => boolean,
  ): Selection {
    const nodes = new Set<number>();
    const leaves = new Set<string>();
    const open = [...targets];
    for (let value = open.pop(); value !== undefined; value = open.pop()) {
      if (value === '' || isConstant(value) || leaves.has(value)) continue;
      const index = this.#producers.get(value);
      if (index === undefined || isGiven(value)) leaves.add(value);
      else if (!nodes.has(index)) {
        nodes.add(index);
        open.push(...defined(this.nodes[index], 'node').inputs);
      }
    }
    const order = (value: string): number => this.#producers.get(value) ?? -1;
    return {
      nodes: new Set([...nodes].sort((a, b) => a - b)),
      leaves: [...leaves].sort((a, b) => order(a) - order(b)),
    };
  }
}

/** The parts from which {@link assemble} makes a graph. `rename` maps values to their names in the graph. */
export interface GraphParts {
  readonly name: string;
  readonly inputs: readonly string[];
  readonly nodes: readonly Node[];
  readonly outputs: readonly string[];
  readonly rename?: ReadonlyMap<string, string>;
}

/** A graph from its parts, whose types and constants the emitter knows. */
export function assemble(emitter: Emitter, { name, inputs, nodes, outputs, rename = new Map() }: GraphParts): Graph {
  const renamed = (value: string): string => rename.get(value) ?? value;
  const initializers = new Map<string, Tensor>();
  const given = new Set(inputs);
  for (const node of nodes) {
    for (const input of node.inputs) {
      const constant = emitter.constantValue(input);
      if (constant !== undefined) initializers.set(input, constant);
      else assert(input === '' || given.has(input), `graph ${name} misses "${input}"`);
    }
    for (const output of node.outputs) given.add(output);
  }
  for (const output of outputs) {
    const constant = emitter.constantValue(output);
    if (constant !== undefined) initializers.set(output, constant);
    else assert(given.has(output), `graph ${name} has no "${output}" to return`);
  }
  const info = (value: string): { name: string; type: Tensor['type']; shape: readonly number[] } => {
    const { type, shape } = emitter.type(value);
    return { name: renamed(value), type, shape };
  };
  return {
    name,
    inputs: inputs.map(info),
    outputs: outputs.map(info),
    initializers,
    parameters: [],
    buffers: [],
    nodes: nodes.map((node) => ({ ...node, inputs: node.inputs.map(renamed), outputs: node.outputs.map(renamed) })),
  };
}

/**
 * Drops nodes that repeat an earlier one (same operator, inputs and attributes); `aliases` maps their outputs to the
 * earlier ones.
 */
export function mergeEqualNodes(nodes: readonly Node[]): {
  readonly nodes: readonly Node[];
  readonly aliases: ReadonlyMap<string, string>;
} {
  const aliases = new Map<string, string>();
  const known = new Map<string, Node>();
  const kept: Node[] = [];
  for (const original of nodes) {
    const node = { ...original, inputs: original.inputs.map((input) => aliases.get(input) ?? input) };
    const key = JSON.stringify([
      node.domain,
      node.operator,
      node.inputs,
      node.outputs.length,
      Object.entries(node.attributes).sort().map(attributeKey),
    ]);
    const earlier = known.get(key);
    if (earlier === undefined) {
      known.set(key, node);
      kept.push(node);
    } else node.outputs.forEach((output, index) => aliases.set(output, earlier.outputs[index] as string));
  }
  return { nodes: kept, aliases };
}

/** The graph without nodes that repeat an earlier one. */
export function mergeEqual(graph: Graph): Graph {
  const { nodes, aliases } = mergeEqualNodes(graph.nodes);
  const copies = graph.outputs.flatMap(({ name }): Node[] => {
    const source = aliases.get(name);
    return source === undefined
      ? []
      : [{ operator: 'Identity', domain: '', name: `${name}/copy`, inputs: [source], outputs: [name], attributes: {} }];
  });
  return { ...graph, nodes: [...nodes, ...copies] };
}

function attributeKey([name, { type, value }]: readonly [string, Attribute]): unknown {
  return type === 'tensor'
    ? [name, value.type, value.shape, Array.from(value.data as ArrayLike<number | bigint>, String)]
    : [name, type, value];
}
