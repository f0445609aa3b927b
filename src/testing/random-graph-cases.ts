// Random graphs as differentiation's tests read them: in float64, with two parameters and an image as the input.

import type { Graph, Node } from '../graph/graph.ts';
import { instantiate } from '../graph/static.ts';
import type { Tensor } from '../graph/tensor.ts';
import { type GraphCase, inDoublePrecision } from './gradient-check.ts';
import { randomGraph } from './random-graph.ts';

/** A random graph whose parameters are `matrix` and `scalar`, and the value of its input `image`. */
export function randomTrainedGraph(
  seed: number,
  nodeCount?: number,
): { readonly model: Graph; readonly image: Tensor } {
  const { graph, inputs } = randomGraph(seed, nodeCount);
  const wide = inDoublePrecision({ ...graph, initializers: new Map([...graph.initializers, ...inputs]) });
  const model: Graph = {
    ...wide,
    inputs: wide.inputs.filter(({ name }) => name === 'image'),
    initializers: new Map([...wide.initializers].filter(([name]) => name !== 'image')),
    parameters: ['matrix', 'scalar'],
  };
  return { model, image: wide.initializers.get('image') as Tensor };
}

/**
 * A random graph with its image as a case for gradient checks, simplified for even seeds. Undefined for graphs that
 * read running statistics, which carry no gradient.
 */
export function randomGraphCase(seed: number): GraphCase | undefined {
  const { model, image } = randomTrainedGraph(seed);
  const statistics = new Set(
    model.nodes.flatMap(({ operator, outputs }) => (operator === 'BatchNormalization' ? outputs.slice(1) : [])),
  );
  const read = [...model.nodes.flatMap((node: Node) => node.inputs), ...model.outputs.map(({ name }) => name)];
  if (read.some((name) => statistics.has(name))) return undefined;
  const stage = instantiate(model, 1, { simplify: seed % 2 === 0, keep: model.parameters });
  return { stage, feeds: new Map([['image', image]]), inputs: ['image'] };
}
