// Exporters that fold constants store a weight that is used both as it is and transposed (an embedding that is also the
// classifier) twice. Trained separately, the two would diverge. A tensor that is the exact transpose of another with
// random values is therefore the same weight.

import { create } from '@bufbuild/protobuf';

import { elementBytes } from '../tensor.ts';
import { patchGraph } from './encode.ts';
import {
  AttributeProto_AttributeType,
  AttributeProtoSchema,
  type GraphProto,
  type NodeProto,
  NodeProtoSchema,
  type TensorProto,
} from './generated/onnx_pb.ts';
import { madeUpName } from './made-up-name.ts';
import { elementTypeOf } from './tensors.ts';

/** Smaller matrices may be transposes by chance. */
const leastElementCount = 16;

/**
 * The graph in which a float matrix that is the transpose of another one is computed from it by a Transpose node. The
 * one with a name from the source is kept; between two such, the first. Symmetric matrices and those of equal elements
 * are unchanged.
 */
export function retieTransposes(graph: GraphProto): GraphProto {
  const outside = new Set([...graph.input, ...graph.output].map(({ name }) => name));
  const byShape = new Map<string, TensorProto[]>();
  const sources = new Map<string, string>();
  for (const tensor of namedFirst(
    graph.initializer.filter((candidate) => isMatrix(candidate) && !outside.has(candidate.name)),
  )) {
    const [rows = 0n, columns = 0n] = tensor.dims;
    const source = byShape.get(`${tensor.dataType}:${columns}x${rows}`)?.find((other) => areTransposes(other, tensor));
    if (source !== undefined) sources.set(tensor.name, source.name);
    else {
      const key = `${tensor.dataType}:${rows}x${columns}`;
      byShape.set(key, [...(byShape.get(key) ?? []), tensor]);
    }
  }
  if (sources.size === 0) return graph;
  return patchGraph(graph, {
    initializer: graph.initializer.filter(({ name }) => !sources.has(name)),
    node: [...[...sources].map(([name, source]) => transposeNode(source, name)), ...graph.node],
  });
}

function namedFirst(tensors: readonly TensorProto[]): readonly TensorProto[] {
  return [
    ...tensors.filter(({ name }) => !madeUpName.test(name)),
    ...tensors.filter(({ name }) => madeUpName.test(name)),
  ];
}

function isMatrix({ dims, dataType, rawData }: TensorProto): boolean {
  const [rows = 0n, columns = 0n] = dims;
  const type = elementTypeOf(dataType);
  if (dims.length !== 2 || rows < 2n || columns < 2n || (type !== 'float32' && type !== 'float64')) return false;
  return rows * columns >= BigInt(leastElementCount) && rawData.length >= leastElementCount * 2;
}

/** True if `other` is the transpose of `tensor` and not equal to it. */
function areTransposes(tensor: TensorProto, other: TensorProto): boolean {
  const [rows, columns] = tensor.dims.map(Number) as [number, number];
  const size = tensor.rawData.length / (rows * columns);
  if (tensor.rawData.length !== other.rawData.length || !isElementSize(size)) return false;
  const [from, to] = [units(tensor.rawData, size), units(other.rawData, size)];
  let hasMoved = false;
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const value = from[row * columns + column];
      if (value !== to[column * rows + row]) return false;
      hasMoved ||= value !== to[row * columns + column];
    }
  }
  return hasMoved;
}

function isElementSize(size: number): size is 2 | 4 | 8 {
  return size === 2 || size === elementBytes('float32') || size === elementBytes('float64');
}

/** The elements as bit patterns. */
function units(bytes: Uint8Array, size: 2 | 4 | 8): Uint16Array | Uint32Array | BigUint64Array {
  const { buffer } = bytes.slice();
  return size === 2 ? new Uint16Array(buffer) : size === 4 ? new Uint32Array(buffer) : new BigUint64Array(buffer);
}

function transposeNode(source: string, name: string): NodeProto {
  const perm = create(AttributeProtoSchema, { name: 'perm', type: AttributeProto_AttributeType.INTS, ints: [1n, 0n] });
  return create(NodeProtoSchema, {
    opType: 'Transpose',
    name: `${name}.transpose`,
    input: [source],
    output: [name],
    attribute: [perm],
  });
}
