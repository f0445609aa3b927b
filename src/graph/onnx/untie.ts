// Exporters store equal tensors once: in a model that was never trained, all biases of one length, all scales of ones
// and all running means are then one tensor. Trained as one they would be tied, although they are not. Weights that are
// tied on purpose hold random values and stay tied.

import { create } from '@bufbuild/protobuf';

import { freshName } from '../liveness.ts';
import { normalDomain } from './decode.ts';
import { patchGraph, patchNode } from './encode.ts';
import {
  type GraphProto,
  type NodeProto,
  type TensorProto,
  TensorProto_DataType,
  TensorProtoSchema,
  type ValueInfoProto,
  ValueInfoProtoSchema,
} from './generated/onnx_pb.ts';

/** Input positions of matrices, of which no two begin with equal elements on purpose. */
const matrixPositions: Readonly<Record<string, number>> = { Conv: 1, ConvTranspose: 1, Gemm: 1, MatMul: 1 };

/** Input positions in which every node has a vector of its own. */
const vectorPositions: Readonly<Record<string, readonly number[]>> = {
  Add: [0, 1],
  BatchNormalization: [1, 2, 3, 4],
  Clip: [0],
  Conv: [2],
  ConvTranspose: [2],
  Exp: [0],
  Gemm: [2],
  GroupNormalization: [1, 2],
  InstanceNormalization: [1, 2],
  LayerNormalization: [1, 2],
  Mul: [0, 1],
  PRelu: [1],
  RMSNormalization: [1],
};

interface Reader {
  readonly nodeIndex: number;
  readonly inputIndex: number;
  /** The Identity through which it reads; its output is the vector's own name. */
  readonly alias?: string;
}

/**
 * The graph with a vector of its own (the same values under another name) for every reader of a float vector of equal
 * elements that several nodes read as scale, bias or statistic; [C, 1, 1] counts as a vector, too. So does a matrix of
 * equal elements, such as convolutions whose normalization began with scales of zero. An Identity in between gives the
 * vector its name and is removed. Nothing else changes.
 */
export function untieVectors(graph: GraphProto): GraphProto {
  if (graph.node.some(({ attribute }) => attribute.some(({ g, graphs }) => g !== undefined || graphs.length > 0)))
    return graph;
  const aliases = aliasesOf(graph);
  const readers = readersOf(graph, aliases);
  const names = new Set([
    ...graph.initializer.map(({ name }) => name),
    ...graph.input.map(({ name }) => name),
    ...graph.node.flatMap(({ output }) => output),
  ]);
  const outputs = new Set(graph.output.map(({ name }) => name));
  const nodes = [...graph.node];
  const added: TensorProto[] = [];
  const described: ValueInfoProto[] = [];
  const infos = new Set(graph.valueInfo.map(({ name }) => name));
  const removed = new Set<string>();
  for (const tensor of graph.initializer) {
    const [first, ...others] = sortReaders(readers.get(tensor.name) ?? []);
    if (first === undefined || others.length === 0 || !isUniform(tensor)) continue;
    const all = [first, ...others];
    const isOutput = outputs.has(tensor.name) || all.some(({ alias }) => alias !== undefined && outputs.has(alias));
    if (isOutput || !all.every((reader) => hasOwnVector(reader, nodes, tensor))) continue;
    for (const reader of all) {
      const { nodeIndex, inputIndex, alias } = reader;
      const isFirst = reader === first && alias === undefined;
      const name = isFirst
        ? tensor.name
        : alias !== undefined && !removed.has(alias)
          ? alias
          : freshName(alias ?? tensor.name, names);
      if (alias !== undefined) removed.add(alias);
      if (!isFirst) {
        added.push(renamed(tensor, name));
        const info = graph.valueInfo.find((entry) => entry.name === tensor.name);
        if (info !== undefined && !infos.has(name))
          described.push(Object.assign(create(ValueInfoProtoSchema), info, { name }));
      }
      nodes[nodeIndex] = withInput(nodes[nodeIndex] as NodeProto, inputIndex, name);
    }
  }
  if (added.length === 0) return graph;
  const stays = ({ opType, output }: NodeProto): boolean => !(opType === 'Identity' && removed.has(output[0] ?? ''));
  return patchGraph(graph, {
    node: nodes.filter(stays),
    initializer: [...graph.initializer, ...added],
    valueInfo: [...graph.valueInfo, ...described],
  });
}

/** Outputs of Identity nodes over initializers → the initializer. */
function aliasesOf(graph: GraphProto): ReadonlyMap<string, string> {
  const initializers = new Set(graph.initializer.map(({ name }) => name));
  const aliases = new Map<string, string>();
  for (const { opType, domain, input, output } of graph.node) {
    const source = input[0] ?? '';
    if (opType === 'Identity' && normalDomain(domain) === '' && initializers.has(source))
      aliases.set(output[0] ?? '', source);
  }
  return aliases;
}

function readersOf(graph: GraphProto, aliases: ReadonlyMap<string, string>): ReadonlyMap<string, readonly Reader[]> {
  const readers = new Map<string, Reader[]>();
  graph.node.forEach(({ opType, input, output }, nodeIndex) => {
    if (aliases.has(output[0] ?? '')) return;
    input.forEach((name, inputIndex) => {
      if (opType === 'CastLike' && inputIndex === 1) return; // it reads no elements
      const source = aliases.get(name);
      const key = source ?? name;
      const list = readers.get(key) ?? [];
      list.push({ nodeIndex, inputIndex, ...(source === undefined ? {} : { alias: name }) });
      readers.set(key, list);
    });
  });
  return readers;
}

/** Readers under the tensor's own name first: one of them keeps it. */
function sortReaders(readers: readonly Reader[]): readonly Reader[] {
  return [...readers.filter(({ alias }) => alias === undefined), ...readers.filter(({ alias }) => alias !== undefined)];
}

function hasOwnVector({ nodeIndex, inputIndex }: Reader, nodes: readonly NodeProto[], tensor: TensorProto): boolean {
  const { opType, domain } = nodes[nodeIndex] as NodeProto;
  const isOwn = normalDomain(domain) === '';
  if (isOwn && Object.hasOwn(matrixPositions, opType) && matrixPositions[opType] === inputIndex) return true;
  if (!isVector(tensor)) return false;
  const positions = isOwn && Object.hasOwn(vectorPositions, opType) ? vectorPositions[opType] : undefined;
  if (positions === undefined || !positions.includes(inputIndex)) return false;
  // A single element there is a number of a formula.
  return !['Add', 'Clip', 'Exp', 'Mul'].includes(opType) || tensor.dims.some((dimension) => dimension !== 1n);
}

function isVector({ dims }: TensorProto): boolean {
  return dims.filter((dimension) => dimension !== 1n).length <= 1;
}

function isUniform({ dims, dataType, rawData, floatData, doubleData }: TensorProto): boolean {
  const sizes: Readonly<Record<number, number>> = {
    [TensorProto_DataType.FLOAT]: 4,
    [TensorProto_DataType.DOUBLE]: 8,
    [TensorProto_DataType.FLOAT16]: 2,
    [TensorProto_DataType.BFLOAT16]: 2,
  };
  const size = sizes[dataType];
  if (size === undefined || dims.length === 0) return false;
  const typed = floatData.length > 0 ? floatData : doubleData;
  if (rawData.length === 0) return typed.length > 0 && typed.every((value) => value === typed[0]);
  for (let index = size; index < rawData.length; index++) if (rawData[index] !== rawData[index - size]) return false;
  return true;
}

function renamed(tensor: TensorProto, name: string): TensorProto {
  return Object.assign(create(TensorProtoSchema), tensor, { name });
}

function withInput(node: NodeProto, index: number, name: string): NodeProto {
  return patchNode(node, { input: node.input.map((old, position) => (position === index ? name : old)) });
}
