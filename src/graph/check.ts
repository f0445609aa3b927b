// Checks the invariants of a Graph (graph.ts) that comes from outside: every value is defined once and before it is
// read, names exist, and node names are unique.

import { InputError } from '../errors.ts';
import type { Graph, Node } from './graph.ts';
import { elementCount, isUnread } from './tensor.ts';

/** Throws InputError for the first violated invariant. Does not check operators. */
export function checkGraph(graph: Graph): void {
  const where = `in model "${graph.name}"`;
  const defined = new Set<string>();
  const define = (name: string, what: string): void => {
    if (name === '') throw new InputError(`${what} ${where} has an empty name.`);
    if (defined.has(name))
      throw new InputError(`Value "${name}" ${where} is defined twice, the second time by ${what}.`);
    defined.add(name);
  };
  graph.inputs.forEach((input, index) => define(input.name, `input ${index}`));
  for (const [name, value] of graph.initializers) {
    define(name, 'an initializer');
    if (!isUnread(value) && elementCount(value.shape) !== value.data.length) {
      throw new InputError(
        `Initializer "${name}" ${where} has ${value.data.length} elements for shape [${value.shape.join(', ')}].`,
      );
    }
  }
  checkNames(graph, where);
  for (const node of graph.nodes) {
    for (const input of node.inputs) {
      if (input !== '' && !defined.has(input))
        throw new InputError(
          `Node "${node.name}" (${node.operator}) ${where} reads "${input}", which nothing before it defines.`,
        );
    }
    for (const output of node.outputs) if (output !== '') define(output, `node "${node.name}"`);
  }
  if (graph.outputs.length === 0) throw new InputError(`Model "${graph.name}" has no outputs.`);
  for (const { name } of graph.outputs)
    if (!defined.has(name)) throw new InputError(`Output "${name}" ${where} is not computed by anything.`);
}

function checkNames(graph: Graph, where: string): void {
  const nodes = new Set<string>();
  for (const { name, operator, outputs } of graph.nodes) {
    if (nodes.has(name)) throw new InputError(`Two nodes ${where} are called "${name}".`);
    nodes.add(name);
    if (outputs.every((output) => output === ''))
      throw new InputError(`Node "${name}" (${operator}) ${where} has no outputs.`);
  }
  for (const name of [...graph.parameters, ...graph.buffers]) {
    if (!graph.initializers.has(name))
      throw new InputError(`Parameter or buffer "${name}" ${where} is not an initializer.`);
  }
}

/**
 * The nodes in topological order: unchanged if they already are, otherwise moved after their inputs' producers, no
 * further than needed. `given` are the values that no node computes. Nodes on a cycle, or with undefined inputs, come
 * last in their old order.
 */
export function sortTopologically(nodes: readonly Node[], given: Iterable<string>): readonly Node[] {
  const ready = new Set(given);
  ready.add('');
  const readers = new Map<string, number[]>();
  const missing = nodes.map((node) => new Set(node.inputs.filter((input) => !ready.has(input))));
  missing.forEach((names, index) => {
    for (const name of names) readers.set(name, [...(readers.get(name) ?? []), index]);
  });
  const sorted: Node[] = [];
  const placed = new Set<number>();
  const place = (start: number): void => {
    const stack = [start];
    for (let index = stack.pop(); index !== undefined; index = stack.pop()) {
      if (placed.has(index) || (missing[index] as Set<string>).size > 0) continue;
      placed.add(index);
      const node = nodes[index] as Node;
      sorted.push(node);
      for (const output of node.outputs) {
        for (const reader of readers.get(output) ?? []) {
          (missing[reader] as Set<string>).delete(output);
          if (reader < start) stack.push(reader); // it was waiting for this node
        }
      }
    }
  };
  nodes.forEach((_, index) => place(index));
  return [...sorted, ...nodes.filter((_, index) => !placed.has(index))];
}
