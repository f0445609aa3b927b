// PyTorch's newer exporter leaves biases out that are zero, as those of a fresh classifier are. The file still says
// that there was such a parameter; this module puts it back, so that it is trained.

import { allocate, wrap } from '../tensor.ts';
import { normalDomain } from './decode.ts';
import { patchGraph, patchNode } from './encode.ts';
import type { GraphProto, NodeProto, TensorProto } from './generated/onnx_pb.ts';
import { type Origins, originsOf } from './origins.ts';
import { encodeTensor } from './tensors.ts';

/** Position of the weight and of the bias in nodes that may have one. */
const [weightPosition, biasPosition] = [1, 2] as const;
const biased: ReadonlySet<string> = new Set(['Conv', 'ConvTranspose', 'Gemm']);

/**
 * The graph with a bias of zeros for each node without one whose weight is, or was computed from, the parameter
 * `NAME.weight`, where the file declares a parameter `NAME.bias` that is neither in it nor in what was computed ahead.
 */
export function restoreZeroBiases(graph: GraphProto): GraphProto {
  const origins = originsOf(graph);
  const missing = new Set(missingParameters(graph, origins));
  if (missing.size === 0) return graph;
  const weights = new Map(graph.initializer.map((value) => [value.name, value]));
  const added: TensorProto[] = [];
  const node = graph.node.map((one) => {
    const weight = hasRoom(one) ? weights.get(one.input[weightPosition] ?? '') : undefined;
    const name = weight === undefined ? undefined : biasesOf(weight.name, origins).find((bias) => missing.has(bias));
    const count = weight === undefined ? 0 : outputCount(one, weight);
    if (name === undefined || count === 0) return one;
    missing.delete(name);
    added.push(encodeTensor(wrap('float32', [count], allocate('float32', count)), name));
    return patchNode(one, { input: [...one.input.slice(0, biasPosition), name] });
  });
  return added.length === 0 ? graph : patchGraph(graph, { node, initializer: [...graph.initializer, ...added] });
}

/** The parameters that the file declares and does not hold in any form. */
function missingParameters({ initializer, node }: GraphProto, { kinds, computed }: Origins): readonly string[] {
  const held = new Set([
    ...initializer.map(({ name }) => name),
    ...node.flatMap(({ output }) => output),
    ...[...computed.values()].flatMap(({ parameters }) => parameters),
  ]);
  return [...kinds].filter(([name, isParameter]) => isParameter && !held.has(name)).map(([name]) => name);
}

function hasRoom({ opType, domain, input }: NodeProto): boolean {
  return biased.has(opType) && normalDomain(domain) === '' && (input[biasPosition] ?? '') === '';
}

/** The names that a bias beside this weight may have. */
function biasesOf(weight: string, { computed }: Origins): readonly string[] {
  const sources = computed.get(weight)?.parameters ?? [weight];
  return sources.filter((name) => name.endsWith('weight')).map((name) => name.replace(/weight$/, 'bias'));
}

/** Elements of a node's bias, 0 for a weight of an unknown form. */
function outputCount({ opType, attribute }: NodeProto, { dims }: TensorProto): number {
  const number = (name: string, fallback: number): number => {
    const found = attribute.find((one) => one.name === name);
    return found === undefined ? fallback : Number(found.i);
  };
  if (dims.length < 2) return 0;
  if (opType === 'ConvTranspose') return Number(dims[1]) * number('group', 1);
  return Number(opType === 'Conv' || number('transB', 0) !== 0 ? dims[0] : dims[1]);
}
