// The types of all values of a static graph, including operators of other domains if the caller knows their types.

import { assert } from '../assert.ts';
import type { Graph, Node } from './graph.ts';
import { isOperator, operators } from './operators/index.ts';
import type { ValueType } from './tensor.ts';

/** The output type of a node of another domain, if known. */
export type ForeignType = (node: Node, inputs: readonly (ValueType | undefined)[]) => ValueType | undefined;

/**
 * The types of all values of a static graph. Results of unknown operators of other domains, and values that depend on
 * them, are left out.
 */
export function inferTypes(graph: Graph, foreign: ForeignType = () => undefined): Map<string, ValueType> {
  const types = new Map<string, ValueType>(graph.initializers);
  for (const { name, type, shape } of [...graph.inputs, ...graph.outputs])
    types.set(name, { type, shape: shape as readonly number[] });
  for (const node of graph.nodes) {
    if (node.inputs.some((name) => name !== '' && !types.has(name))) continue;
    if (node.domain !== '') {
      const inputs = node.inputs.map((name) => types.get(name));
      const result = foreign(node, inputs);
      if (result !== undefined) types.set(node.outputs[0] as string, result);
      continue;
    }
    assert(isOperator(node.operator), `operator ${node.operator} was not refused`);
    const results = operators[node.operator].infer(
      node,
      node.inputs.map((name) => types.get(name)),
      node.inputs.map((name) => graph.initializers.get(name)),
    );
    node.outputs.forEach((name, index) => {
      const type = results[index];
      if (name !== '' && type !== undefined) types.set(name, type);
    });
  }
  return types;
}
