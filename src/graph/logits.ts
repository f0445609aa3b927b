// Removes what squashes a model's logits at its end, a Softmax or a Sigmoid: losses need its input.

import { type Graph, intAttribute, type Node } from './graph.ts';
import { producers, usedValues } from './liveness.ts';

/** What a loss does itself, and may have been done already: over classes, or number by number. */
export type Squashing = 'Softmax' | 'Sigmoid';

/** A graph whose first output is logits. */
export interface Logits {
  readonly graph: Graph;
  /** What was removed, as users know it: 'Softmax', 'LogSoftmax', 'Sigmoid'; undefined if there was nothing. */
  readonly removed: string | undefined;
}

/** Operators that may follow before the output: they move or rename values. */
const movers: ReadonlySet<string> = new Set(['Identity', 'Reshape', 'Flatten', 'Squeeze', 'Unsqueeze']);

/**
 * The graph without the Softmax over classes (axis 1 or the last), its logarithm included, or without the Sigmoid at
 * the end of its first output, if there is one; other outputs are then removed as well. If it computed the output
 * itself, the output is named after the logits.
 */
export function withLogits(graph: Graph, squashing: Squashing): Logits {
  const first = graph.outputs[0];
  const found = first === undefined ? undefined : lastSquashing(graph, first.name, squashing);
  if (first === undefined || found === undefined) return { graph, removed: undefined };
  const { squashed, logits, nodes: gone, name } = found;
  const rename = (value: string): string => (value === squashed ? logits : value);
  const nodes = graph.nodes
    .filter((node) => !gone.includes(node))
    .map((node) => ({ ...node, inputs: node.inputs.map(rename) }));
  const outputs = [{ ...first, name: rename(first.name) }];
  const used = usedValues(nodes, [rename(first.name)]);
  const keep = (names: readonly string[]): string[] => names.filter((value) => used.has(value));
  return {
    graph: { ...graph, outputs, nodes, parameters: keep(graph.parameters), buffers: keep(graph.buffers) },
    removed: name,
  };
}

interface Found {
  readonly name: string;
  readonly nodes: readonly Node[];
  readonly squashed: string;
  readonly logits: string;
}

function lastSquashing({ nodes, outputs }: Graph, output: string, squashing: Squashing): Found | undefined {
  const made = producers(nodes);
  const axes = [1, -1, (outputs[0]?.shape.length ?? 0) - 1];
  let logarithm: Node | undefined;
  for (let node = made.get(output); node?.domain === ''; node = made.get(node.inputs[0] ?? '')) {
    const { operator } = node;
    if (isSquashing(operator, squashing)) {
      if (squashing === 'Softmax' && !axes.includes(intAttribute(node, 'axis', -1))) return undefined;
      return {
        name: logarithm === undefined ? operator : 'LogSoftmax',
        nodes: logarithm === undefined ? [node] : [logarithm, node],
        squashed: (logarithm ?? node).outputs[0] ?? '',
        logits: node.inputs[0] ?? '',
      };
    }
    // log(softmax(x)), written out; nothing stands between the two.
    if (logarithm !== undefined) return undefined;
    if (operator === 'Log' && squashing === 'Softmax') logarithm = node;
    else if (!movers.has(operator)) return undefined;
  }
  return undefined;
}

function isSquashing(operator: string, squashing: Squashing): boolean {
  return operator === squashing || (squashing === 'Softmax' && operator === 'LogSoftmax');
}
