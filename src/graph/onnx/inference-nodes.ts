// Switches the user's own nodes, at their file's opset, to inference; modes.ts does the same for graphs.

import { create } from '@bufbuild/protobuf';
import { normalDomain } from './decode.ts';
import { patchGraph, patchNode } from './encode.ts';
import { randomDecisions } from './expected-draws.ts';
import { AttributeProtoSchema, type GraphProto, type NodeProto, NodeProtoSchema } from './generated/onnx_pb.ts';

/**
 * A graph with batch normalization and dropout in inference mode, and each random decision replaced by its mean
 * (expected-draws.ts). Running statistics that are read elsewhere keep their node unchanged. Flags that only switched
 * dropout to training are removed.
 */
export function inferenceNodes(training: GraphProto): GraphProto {
  const graph = expectedDraws(training);
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
  const isLeftOver = (name: string | undefined): boolean =>
    name !== undefined && name !== '' && dropped.has(name) && !stillRead.has(name);
  return patchGraph(graph, {
    node: switched.filter(({ opType, output }) => !(opType === 'Constant' && isLeftOver(output[0]))),
    initializer: graph.initializer.filter(({ name }) => !isLeftOver(name)),
    input: graph.input.filter(
      ({ name }) => !(isLeftOver(name) && graph.initializer.some((tensor) => tensor.name === name)),
    ),
  });
}

function expectedDraws(graph: GraphProto): GraphProto {
  const decisions = randomDecisions(
    graph.node.map(({ opType, domain, input, output }) =>
      normalDomain(domain) === '' ? { operator: opType, inputs: input, outputs: output } : undefined,
    ),
    (index) => isUnit(graph.node[index] as NodeProto),
  );
  if (decisions.size === 0) return graph;
  const node = graph.node.flatMap((one, index): readonly NodeProto[] => {
    const decision = decisions.get(index);
    if (decision === undefined) return [one];
    const { chance, like } = decision;
    const type = one.attribute.filter(({ name }) => name === 'to' || name === 'dtype');
    const to = type.map((attribute) => Object.assign(create(AttributeProtoSchema), attribute, { name: 'to' }));
    if (like === undefined)
      return [patchNode(one, { opType: to.length === 0 ? 'Identity' : 'Cast', input: [chance], attribute: to })];
    const [shape, mean] = [`${one.output[0]}.shape`, `${one.output[0]}.mean`];
    return [
      create(NodeProtoSchema, { name: shape, opType: 'Shape', input: [like], output: [shape] }),
      create(NodeProtoSchema, { name: mean, opType: 'Cast', input: [chance], output: [mean], attribute: to }),
      patchNode(one, { opType: 'Expand', input: [mean, shape], attribute: [] }),
    ];
  });
  // Nodes that only drew or compared are no longer read.
  const compared = patchGraph(graph, { node });
  const readAfter = readNames(compared);
  const drawn = patchGraph(compared, {
    node: node.filter(
      ({ opType, output }) => !/^(Less|Greater)/.test(opType) || output.some((name) => readAfter.has(name)),
    ),
  });
  const read = readNames(drawn);
  return patchGraph(drawn, {
    node: drawn.node.filter(
      ({ opType, output }) => opType !== 'RandomUniformLike' || output.some((name) => read.has(name)),
    ),
  });
}

/** True for draws that are uniform in [0, 1). */
function isUnit({ attribute }: NodeProto): boolean {
  return attribute.every(({ name, f }) => (name === 'low' ? f === 0 : name === 'high' ? f === 1 : true));
}

function inferenceBatchNormalization(node: NodeProto, read: ReadonlySet<string>): NodeProto {
  if (node.output.slice(1).some((name) => read.has(name))) return node;
  return patchNode(node, {
    output: node.output.slice(0, 1),
    attribute: node.attribute.filter(({ name }) => name !== 'training_mode'),
  });
}

/** Names that nodes and outputs read, including those inside subgraphs. */
function readNames({ node, output }: Pick<GraphProto, 'node' | 'output'>): Set<string> {
  const names = new Set(output.map(({ name }) => name));
  for (const { input, attribute } of node) {
    for (const name of input) names.add(name);
    for (const { g, graphs } of attribute)
      for (const inner of [...(g === undefined ? [] : [g]), ...graphs])
        for (const name of readNames(inner)) names.add(name);
  }
  return names;
}
