// The order in which ONNX Runtime runs the nodes of a graph, and how a file brings it to run them in another. Found by
// its profiles (version 1.30): it was the same for every node of ResNet-50's forward and backward graphs.

import type { Graph, Node } from '../graph/graph.ts';
import { producers } from '../graph/liveness.ts';

/**
 * Runs on demand: from each node that nobody reads (the last one in the file first) it goes back to what that needs,
 * the inputs that stand last in the file first, and runs a node when all it needs has run.
 */
export function executionOrder({ nodes }: Pick<Graph, 'nodes'>): readonly number[] {
  const makers = producers(nodes);
  const places = new Map(nodes.map((node, index) => [node, index]));
  const sources = nodes.map(({ inputs }) =>
    [...new Set(inputs.map((name) => makers.get(name)).filter((node) => node !== undefined)).values()]
      .map((node) => places.get(node) as number)
      .sort((a, b) => a - b),
  );
  const read = new Set(sources.flat());
  const open = nodes.map((_, index) => index).filter((index) => !read.has(index));
  const entered = new Set<number>();
  const order: number[] = [];
  const done = new Set<number>();
  for (let index = open.at(-1); index !== undefined; index = open.at(-1)) {
    if (entered.has(index)) {
      open.pop();
      if (!done.has(index)) order.push(index);
      done.add(index);
      continue;
    }
    entered.add(index);
    open.push(...(sources[index] as number[]).filter((source) => !entered.has(source)));
  }
  return order;
}

/**
 * The same graph with its nodes in an order that makes ONNX Runtime use less memory: what nobody reads (a weight's
 * gradient) comes last, in reverse, so that it runs in the order of the original. Otherwise all weight gradients run
 * after the last input gradient, and all that they read waits for them.
 */
export function arrangeForMemory(graph: Graph): Graph {
  const read = new Set(graph.nodes.flatMap(({ inputs }) => inputs));
  const isRead = ({ outputs }: Node): boolean => outputs.some((name) => read.has(name));
  const last = graph.nodes.filter((node) => !isRead(node));
  return { ...graph, nodes: [...graph.nodes.filter(isRead), ...last.reverse()] };
}
