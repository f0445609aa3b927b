// ModelProto to bytes in one allocation of the final size, so that weights are copied once. (The general encoder grows
// a buffer by doubling, which takes three times the memory.)

import { create, toBinary } from '@bufbuild/protobuf';
import { BinaryWriter, WireType } from '@bufbuild/protobuf/wire';

import { InputError } from '../../errors.ts';
import {
  type GraphProto,
  GraphProtoSchema,
  type ModelProto,
  ModelProtoSchema,
  type NodeProto,
  NodeProtoSchema,
  type TensorProto,
  TensorProtoSchema,
} from './generated/onnx_pb.ts';

const graphField = ModelProtoSchema.field.graph.number;
const initializerField = GraphProtoSchema.field.initializer.number;
const rawDataField = TensorProtoSchema.field.rawData.number;
/** The largest protobuf message. */
const byteLimit = 2 ** 31 - 1;

/** A message of the same type with some fields replaced; the rest is shared. */
export function patchModel(model: ModelProto, fields: Partial<ModelProto>): ModelProto {
  return Object.assign(create(ModelProtoSchema), model, fields);
}

/** A message of the same type with some fields replaced; the rest is shared. */
export function patchGraph(graph: GraphProto, fields: Partial<GraphProto>): GraphProto {
  return Object.assign(create(GraphProtoSchema), graph, fields);
}

/** A message of the same type with some fields replaced; the rest is shared. */
export function patchNode(node: NodeProto, fields: Partial<NodeProto>): NodeProto {
  return Object.assign(create(NodeProtoSchema), node, fields);
}

/** Encodes a model. Throws InputError if it exceeds the size of an ONNX file (2 GiB). */
export function encodeModel(model: ModelProto): Uint8Array {
  const { graph } = model;
  const pieces: Uint8Array[] = [];
  if (graph !== undefined) {
    for (const tensor of graph.initializer) pieces.push(...field(initializerField, tensorPieces(tensor)));
    pieces.push(toBinary(GraphProtoSchema, patchGraph(graph, { initializer: [] })));
  }
  const withoutGraph = patchModel(model, {});
  delete withoutGraph.graph;
  const all = [toBinary(ModelProtoSchema, withoutGraph), ...(graph === undefined ? [] : field(graphField, pieces))];
  const size = totalBytes(all);
  if (size > byteLimit)
    throw new InputError(`The model takes ${size} bytes, and an ONNX file holds at most ${byteLimit}.`);
  const bytes = new Uint8Array(size);
  let offset = 0;
  for (const piece of all) {
    bytes.set(piece, offset);
    offset += piece.length;
  }
  return bytes;
}

function tensorPieces(tensor: TensorProto): Uint8Array[] {
  const header = Object.assign(create(TensorProtoSchema), tensor);
  // The generated type requires every field; `delete` is this library's way to leave one unset.
  delete (header as Partial<TensorProto>).rawData;
  const encoded = toBinary(TensorProtoSchema, header);
  return tensor.rawData.length === 0 ? [encoded] : [encoded, ...field(rawDataField, [tensor.rawData])];
}

/** A length-delimited field: its tag, its length, and its content. */
function field(number: number, content: readonly Uint8Array[]): Uint8Array[] {
  const length = Math.min(totalBytes(content), byteLimit + 1);
  return [new BinaryWriter().tag(number, WireType.LengthDelimited).uint32(length).finish(), ...content];
}

function totalBytes(pieces: readonly Uint8Array[]): number {
  return pieces.reduce((sum, piece) => sum + piece.length, 0);
}
