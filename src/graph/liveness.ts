// Which nodes and values a graph's outputs need. Pure helpers that passes share.

import type { Node } from './graph.ts';

/** The nodes needed for `outputs`, in their order. A value in `known` needs no node. */
export function neededNodes(
  nodes: readonly Node[],
  outputs: Iterable<string>,
  known: ReadonlySet<string> = new Set(),
): Node[] {
  const needed = new Set(outputs);
  for (const name of known) needed.delete(name);
  const kept: Node[] = [];
  for (let index = nodes.length - 1; index >= 0; index--) {
    const node = nodes[index] as Node;
    if (!node.outputs.some((output) => needed.has(output))) continue;
    kept.push(node);
    for (const input of node.inputs) if (!known.has(input)) needed.add(input);
  }
  return kept.reverse();
}

/** Every value that a node reads or that is an output; without the empty string of absent inputs. */
export function usedValues(nodes: readonly Node[], outputs: Iterable<string> = []): Set<string> {
  const used = new Set(outputs);
  for (const node of nodes) for (const input of node.inputs) used.add(input);
  used.delete('');
  return used;
}

/** The node that computes each value. */
export function producers(nodes: readonly Node[]): Map<string, Node> {
  const result = new Map<string, Node>();
  for (const node of nodes) for (const output of node.outputs) if (output !== '') result.set(output, node);
  return result;
}

/** A name that starts with `stem` and is not in `taken`; it is added there. */
export function freshName(stem: string, taken: Set<string>): string {
  let name = stem;
  for (let count = 2; taken.has(name); count++) name = `${stem}_${count}`;
  taken.add(name);
  return name;
}
