// Evaluates a static graph node by node with the operators' own definitions: the slowest and most obvious way there is.

import { defined } from '../assert.ts';
import { expandComposite, isComposite } from '../graph/composites/expand.ts';
import type { Graph, Node } from '../graph/graph.ts';
import { isOperator, operators } from '../graph/operators/index.ts';
import type { Tensor } from '../graph/tensor.ts';

/**
 * The values of the graph's outputs. `feeds` must hold its inputs, and may hold other values for its parameters and
 * buffers.
 */
export function evaluateGraph(graph: Graph, feeds: ReadonlyMap<string, Tensor>): Map<string, Tensor> {
  const values = new Map(graph.initializers);
  for (const { name } of graph.inputs) values.set(name, defined(feeds.get(name), `input "${name}" of ${graph.name}`));
  for (const name of [...graph.parameters, ...graph.buffers]) {
    const value = feeds.get(name);
    if (value !== undefined) values.set(name, value);
  }
  const evaluate = (node: Node): void => {
    const inputs = node.inputs.map((input) =>
      input === '' ? undefined : defined(values.get(input), `"${input}" for node "${node.name}"`),
    );
    if (isComposite(node)) {
      const { initializers, nodes } = expandComposite(node, inputs, inputs);
      for (const [name, value] of initializers) values.set(name, value);
      nodes.forEach(evaluate);
      return;
    }
    if (!isOperator(node.operator)) throw new Error(`no definition of ${node.operator}`);
    const outputs = operators[node.operator].evaluate(node, inputs);
    node.outputs.forEach((output, index) => {
      if (output !== '') values.set(output, defined(outputs[index], `output "${output}"`));
    });
  };
  graph.nodes.forEach(evaluate);
  return new Map(
    graph.outputs.map(({ name }) => [name, defined(values.get(name), `output "${name}" of ${graph.name}`)]),
  );
}
