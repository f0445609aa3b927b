// Joins graphs in sequence: the outputs of earlier ones are the inputs of later ones by name; inputs that no part
// computes become inputs of the whole.

import { assert } from '../assert.ts';
import type { Graph, Node, ValueInfo } from './graph.ts';
import type { Tensor } from './tensor.ts';

/** A graph to be joined. */
export interface Part {
  readonly graph: Graph;
  /** New names for its inputs and outputs. Its other names are changed only if they are taken. */
  readonly rename?: ReadonlyMap<string, string>;
}

/**
 * The graph that computes the parts in order and outputs `outputs`, each an output of a part (after renaming). Inputs:
 * those of the parts that no earlier part computes, in order, without repetition.
 */
export function joinGraphs(name: string, parts: readonly Part[], outputs: readonly string[]): Graph {
  const inputs = new Map<string, ValueInfo>();
  const known = new Map<string, ValueInfo>();
  const initializers = new Map<string, Tensor>();
  const taken = new Set<string>(
    parts.flatMap(({ graph, rename }) => borderNames(graph).map((border) => rename?.get(border) ?? border)),
  );
  const nodes: Node[] = [];
  parts.forEach(({ graph, rename }, index) => {
    const names = new Map<string, string>();
    for (const border of borderNames(graph)) names.set(border, rename?.get(border) ?? border);
    const own = (value: string): string => {
      let renamed = names.get(value);
      if (renamed === undefined) {
        renamed = value;
        for (let attempt = 0; taken.has(renamed); attempt++)
          renamed = `${value}@${index}${attempt === 0 ? '' : `.${attempt}`}`;
        taken.add(renamed);
        names.set(value, renamed);
      }
      return renamed;
    };
    for (const input of graph.inputs) {
      const outer = names.get(input.name) as string;
      if (!known.has(outer)) inputs.set(outer, { ...input, name: outer });
      known.set(outer, { ...input, name: outer });
    }
    for (const [key, value] of graph.initializers) initializers.set(own(key), value);
    for (const node of graph.nodes) {
      const renamed = (value: string): string => (value === '' ? '' : own(value));
      nodes.push({ ...node, inputs: node.inputs.map(renamed), outputs: node.outputs.map(renamed) });
    }
    for (const output of graph.outputs)
      known.set(names.get(output.name) as string, { ...output, name: names.get(output.name) as string });
  });
  const describe = (output: string): ValueInfo => {
    const info = known.get(output);
    assert(info !== undefined, `no part of ${name} gives "${output}"`);
    return info;
  };
  return {
    name,
    inputs: [...inputs.values()],
    outputs: outputs.map(describe),
    initializers,
    parameters: [],
    buffers: [],
    nodes: uniqueNodeNames(nodes),
  };
}

function borderNames(graph: Graph): string[] {
  return [...graph.inputs, ...graph.outputs].map(({ name }) => name);
}

function uniqueNodeNames(nodes: readonly Node[]): readonly Node[] {
  const taken = new Set<string>();
  return nodes.map((node) => {
    let { name } = node;
    for (let attempt = 2; taken.has(name); attempt++) name = `${node.name}_${attempt}`;
    taken.add(name);
    return name === node.name ? node : { ...node, name };
  });
}
