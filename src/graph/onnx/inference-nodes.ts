// The user's own nodes, at the opset of their file, switched to inference: what modes.ts does for graphs.

import { normalDomain } from './decode.ts';
import { patchGraph, patchNode } from './encode.ts';
import type { GraphProto, NodeProto } from './generated/onnx_pb.ts';

/**
 * A graph with batch normalization and dropout in inference mode. Running statistics that are read elsewhere keep their node as it is.
 * Tensors that only told dropout that it is training are left out.
 */
export function inferenceNodes(graph: GraphProto): GraphProto {
  const read = readNames(graph);
  const dropped = new Set<string>();
  const switched = graph.node.map((node) => {
    if (normalDomain(node.domain) !== '') return node;
    if (node.opType === 'BatchNormalization') return inferenceBatchNormalization(node, read);
    if (node.opType !== 'Dropout' || node.input.length < 3) return node;
    dropped.add(node.input[2] ?? '');
    return patchNode(node, { input: node.input.slice(0, node.input[1] === '' ? 1 : 2) });
  });
  const stillRead = readNames({ node: switched, output: graph.output });
  const isLeftOver = (name: string | undefined): boolean => name !== undefined && name !== '' && dropped.has(name) && !stillRead.has(name);
  return patchGraph(graph, {
    node: switched.filter(({ opType, output }) => !(opType === 'Constant' && isLeftOver(output[0]))),
    initializer: graph.initializer.filter(({ name }) => !isLeftOver(name)),
    input: graph.input.filter(({ name }) => !(isLeftOver(name) && graph.initializer.some((tensor) => tensor.name === name))),
  });
}

function inferenceBatchNormalization(node: NodeProto, read: ReadonlySet<string>): NodeProto {
  if (node.output.slice(1).some((name) => read.has(name))) return node;
  return patchNode(node, { output: node.output.slice(0, 1), attribute: node.attribute.filter(({ name }) => name !== 'training_mode') });
}

/** What nodes and outputs read; names inside of subgraphs too. */
function readNames({ node, output }: Pick<GraphProto, 'node' | 'output'>): Set<string> {
  const names = new Set(output.map(({ name }) => name));
  for (const { input, attribute } of node) {
    for (const name of input) names.add(name);
    for (const { g, graphs } of attribute)
      for (const inner of [...(g === undefined ? [] : [g]), ...graphs]) for (const name of readNames(inner)) names.add(name);
  }
  return names;
}
