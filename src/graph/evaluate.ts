// Runs a graph through the operators' own definitions: slow and simple; the oracle that passes and engines are checked
// against.

import { assert, defined } from '../assert.ts';
import type { Graph } from './graph.ts';
import { isOperator, operators } from './operators/index.ts';
import { refuseUnsupported } from './static.ts';
import type { Tensor } from './tensor.ts';

/**
 * The outputs of `graph` for these inputs, by name. Throws InputError for unsupported operators and for values that do
 * not fit.
 */
export function evaluateGraph(graph: Graph, inputs: ReadonlyMap<string, Tensor>): Map<string, Tensor> {
  refuseUnsupported(graph.nodes);
  const values = new Map(graph.initializers);
  for (const { name } of graph.inputs) values.set(name, defined(inputs.get(name), `input "${name}"`));
  for (const node of graph.nodes) {
    assert(isOperator(node.operator), `operator ${node.operator} was not refused`);
    const outputs = operators[node.operator].evaluate(
      node,
      node.inputs.map((name) => (name === '' ? undefined : defined(values.get(name), `value "${name}"`))),
    );
    node.outputs.forEach((name, index) => {
      if (name !== '') values.set(name, defined(outputs[index], `output ${index} of node "${node.name}"`));
    });
  }
  return new Map(graph.outputs.map(({ name }) => [name, defined(values.get(name), `output "${name}"`)]));
}
