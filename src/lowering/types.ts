// The type of every value of a graph with static shapes, deferred gradients included.

import { assert, defined, unreachable } from '../assert.ts';
import { deferredOperator, slidingOf } from '../autodiff/deferred.ts';
import type { Graph, Node } from '../graph/graph.ts';
import { isOperator, operators } from '../graph/operators/index.ts';
import type { ValueType } from '../graph/tensor.ts';

/** Types by name. */
export function typesOf(graph: Graph): ReadonlyMap<string, ValueType> {
  const types = new Map<string, ValueType>();
  for (const [name, { type, shape }] of graph.initializers) types.set(name, { type, shape });
  for (const { name, type, shape } of graph.inputs) types.set(name, { type, shape: shape as readonly number[] });
  const type = (name: string): ValueType => defined(types.get(name), `the type of ${name}`);
  for (const node of graph.nodes) {
    const results = nodeTypes(graph, node, type);
    node.outputs.forEach((name, index) => {
      if (name !== '') types.set(name, defined(results[index], `the type of ${name}`));
    });
  }
  return types;
}

function nodeTypes(graph: Graph, node: Node, type: (name: string) => ValueType): readonly ValueType[] {
  const deferred = deferredOperator(node);
  if (deferred === undefined) {
    assert(node.domain === '' && isOperator(node.operator), `no type rule for ${node.domain}.${node.operator}`);
    return operators[node.operator].infer(
      node,
      node.inputs.map((name) => (name === '' ? undefined : type(name))),
      node.inputs.map((name) => graph.initializers.get(name)),
    );
  }
  const [first, second, third] = node.inputs.map(type) as [ValueType, ValueType, ValueType];
  switch (deferred) {
    case 'ConvInputGradient': {
      const { input, group } = slidingOf(node);
      return [{ type: first.type, shape: [first.shape[0] as number, (second.shape[1] as number) * group, ...input] }];
    }
    case 'ConvWeightGradient': {
      const { kernel, group } = slidingOf(node);
      return [{ type: first.type, shape: [second.shape[1] as number, (first.shape[1] as number) / group, ...kernel] }];
    }
    case 'BatchNormalizationGradient':
      return [second, third, third];
    default:
      return unreachable(deferred);
  }
}
