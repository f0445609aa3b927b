// Through which inputs of a node a gradient can flow, and hence which values depend on parameters and which reach an
// output. Positions only; the gradient rules are in autodiff/.

import type { Graph, Node } from './graph.ts';
import { type ElementType, isFloat } from './tensor.ts';

/**
 * The input positions that carry gradients, for operators with float inputs that do not. For operators without an
 * entry: all inputs.
 */
const positions: Readonly<Record<string, readonly number[]>> = {
  AffineGrid: [0],
  ArgMax: [],
  ArgMin: [],
  BatchNormalization: [0, 1, 2],
  Bernoulli: [],
  BitwiseAnd: [],
  BitwiseNot: [],
  BitwiseOr: [],
  BitwiseXor: [],
  Cast: [0],
  CastLike: [0],
  Ceil: [],
  CenterCropPad: [0],
  Clip: [0],
  Col2Im: [0],
  Compress: [0],
  ConstantOfShape: [],
  CumSum: [0],
  DFT: [0],
  Dropout: [0],
  Equal: [],
  Expand: [0],
  EyeLike: [],
  Floor: [],
  Gather: [0],
  GatherElements: [0],
  GatherND: [0],
  Greater: [],
  GreaterOrEqual: [],
  Hardmax: [],
  IsInf: [],
  IsNaN: [],
  Less: [],
  LessOrEqual: [],
  NegativeLogLikelihoodLoss: [0],
  NonZero: [],
  OneHot: [],
  Pad: [0],
  RandomNormalLike: [],
  RandomUniformLike: [],
  Range: [],
  ReduceL1: [0],
  ReduceL2: [0],
  ReduceLogSum: [0],
  ReduceLogSumExp: [0],
  ReduceMax: [0],
  ReduceMean: [0],
  ReduceMin: [0],
  ReduceProd: [0],
  ReduceSum: [0],
  ReduceSumSquare: [0],
  Reshape: [0],
  Resize: [0],
  ReverseSequence: [0],
  RotaryEmbedding: [0],
  Round: [],
  ScatterElements: [0, 2],
  ScatterND: [0, 2],
  Shape: [],
  Sign: [],
  Size: [],
  Slice: [0],
  SoftmaxCrossEntropyLoss: [0],
  Split: [0],
  Squeeze: [0],
  Tile: [0],
  TopK: [0],
  Trilu: [0],
  Unsqueeze: [0],
  Where: [1, 2],
};

/** Operators all of whose float outputs carry gradients. */
const severalOutputs: ReadonlySet<string> = new Set([
  'Attention',
  'GRU',
  'LSTM',
  'RNN',
  'SkipLayerNormalization',
  'SkipSimplifiedLayerNormalization',
  'SoftmaxCrossEntropyLoss',
  'Split',
]);

/** The inputs of a node (by name) that gradients of its outputs can reach, judged by the operator alone. */
export function gradientInputs(node: Node): readonly string[] {
  const entry = Object.hasOwn(positions, node.operator) ? positions[node.operator] : undefined;
  const names = entry === undefined ? node.inputs : entry.map((index) => node.inputs[index] ?? '');
  return names.filter((name) => name !== '');
}

/** The outputs of a node that carry gradients: no masks, indices or running statistics. */
export function gradientOutputs(node: Node): readonly string[] {
  const names = severalOutputs.has(node.operator) ? node.outputs : node.outputs.slice(0, 1);
  return names.filter((name) => name !== '');
}

/** The values with a gradient path to one of `outputs`: "useful" in activity analysis. Ignores types. */
export function usefulFor(outputs: Iterable<string>, nodes: readonly Node[]): Set<string> {
  const reached = new Set(outputs);
  for (let index = nodes.length - 1; index >= 0; index--) {
    const node = nodes[index] as Node;
    if (gradientOutputs(node).some((output) => reached.has(output)))
      for (const input of gradientInputs(node)) reached.add(input);
  }
  return reached;
}

/**
 * `sources` and the values with a gradient path from one of them: "varied" in activity analysis. `isCounted` excludes
 * values, and values reachable only through them.
 */
export function variedBy(
  sources: Iterable<string>,
  nodes: readonly Node[],
  isCounted: (name: string) => boolean = () => true,
): Set<string> {
  const varied = new Set(sources);
  for (const node of nodes) {
    if (!gradientInputs(node).some((input) => varied.has(input))) continue;
    for (const output of gradientOutputs(node)) if (isCounted(output)) varied.add(output);
  }
  return varied;
}

/**
 * The float values with a gradient path from one of `trained` and one to the graph's first output: those whose
 * gradients are needed. Through carried states, paths lead from one step to the next.
 */
export function gradientValues(
  graph: Graph,
  trained: readonly string[],
  type: (name: string) => ElementType,
): Set<string> {
  const { states = [], outputs } = graph;
  const sources = [...trained, ...states.map(({ input }) => input)];
  const varied = variedBy(sources, graph.nodes, (name) => isFloat(type(name)));
  const results = [...outputs.slice(0, 1).map(({ name }) => name), ...states.map(({ output }) => output)];
  const reached = usefulFor(results, graph.nodes);
  return new Set([...varied].filter((name) => reached.has(name)));
}
