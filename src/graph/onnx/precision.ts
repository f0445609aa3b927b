// Models in other precisions than float32, in which Asteroid trains. float64 is read as float32 and written as float64
// again. bfloat16 is read and written as float32: ONNX Runtime's CPU could not run the result otherwise.

import { create } from '@bufbuild/protobuf';

import { type Attribute, type Attributes, int, tensorAttribute } from '../graph.ts';
import { elementCount, type Tensor, wrap } from '../tensor.ts';
import type { DecodedModel } from './decode.ts';
import { patchGraph, patchNode } from './encode.ts';
import {
  type AttributeProto,
  AttributeProtoSchema,
  type GraphProto,
  type TensorProto,
  TensorProto_DataType,
  TensorProtoSchema,
  TypeProto_TensorSchema,
  TypeProtoSchema,
  type ValueInfoProto,
  ValueInfoProtoSchema,
} from './generated/onnx_pb.ts';
import { decodeTensor, encodeTensor } from './tensors.ts';

const { DOUBLE, FLOAT, BFLOAT16 } = TensorProto_DataType;
/** Attributes that hold a data type. */
const typeAttributes: ReadonlySet<string> = new Set(['dtype', 'output_dtype', 'to']);

/**
 * The model with float32 in place of float64, if it has weights (float64 tensors of more than one element); otherwise
 * the model itself, in which float64 is a detail of a formula.
 */
export function inFloat32(model: DecodedModel): DecodedModel {
  // Their elements are not looked at: those of large models are left in files.
  if (![...model.initializers.values()].some(({ type, shape }) => type === 'float64' && elementCount(shape) > 1))
    return model;
  const value = <T extends { readonly type: string }>(info: T): T =>
    info.type === 'float64' ? { ...info, type: 'float32' } : info;
  return {
    ...model,
    inputs: model.inputs.map(value),
    outputs: model.outputs.map(value),
    initializers: new Map([...model.initializers].map(([name, tensor]) => [name, narrowed(tensor)])),
    nodes: model.nodes.map((node) => ({ ...node, attributes: narrowedAttributes(node.attributes) })),
  };
}

function narrowed(value: Tensor): Tensor {
  return value.type === 'float64' ? wrap('float32', value.shape, Float32Array.from(value.data as Float64Array)) : value;
}

function narrowedAttributes(attributes: Attributes): Attributes {
  const entry = ([name, attribute]: readonly [string, Attribute]): readonly [string, Attribute] => {
    if (attribute.type === 'tensor') return [name, tensorAttribute(narrowed(attribute.value))];
    const isType = typeAttributes.has(name) && attribute.type === 'int' && attribute.value === DOUBLE;
    return [name, isType ? int(FLOAT) : attribute];
  };
  return Object.fromEntries(Object.entries(attributes).map(entry));
}

/** The graph with float32 in place of bfloat16, or the graph itself if it has none. */
export function withoutBfloat16(graph: GraphProto): GraphProto {
  return hasBfloat16(graph) ? widenedGraph(graph) : graph;
}

function hasBfloat16({ initializer, input, output, node }: GraphProto): boolean {
  return (
    initializer.some(({ dataType }) => dataType === BFLOAT16) ||
    [...input, ...output].some((info) => elementType(info) === BFLOAT16) ||
    node.some(({ attribute }) => attribute.some((one) => one.t?.dataType === BFLOAT16 || isBfloat16(one)))
  );
}

function elementType({ type }: ValueInfoProto): number | undefined {
  return type?.value.case === 'tensorType' ? type.value.value.elemType : undefined;
}

function isBfloat16({ name, i }: AttributeProto): boolean {
  return typeAttributes.has(name) && i === BigInt(BFLOAT16);
}

function widenedGraph(graph: GraphProto): GraphProto {
  return patchGraph(graph, {
    initializer: graph.initializer.map(widenedTensor),
    input: graph.input.map(widenedInfo),
    output: graph.output.map(widenedInfo),
    valueInfo: graph.valueInfo.map(widenedInfo),
    node: graph.node.map((node) => patchNode(node, { attribute: node.attribute.map(widenedAttribute) })),
  });
}

function widenedTensor(proto: TensorProto): TensorProto {
  if (proto.dataType !== BFLOAT16) return proto;
  const { dataType, rawData } = encodeTensor(decodeTensor(proto, `Tensor "${proto.name}"`));
  return Object.assign(create(TensorProtoSchema), proto, { dataType, rawData, int32Data: [] });
}

function widenedInfo(info: ValueInfoProto): ValueInfoProto {
  if (info.type?.value.case !== 'tensorType' || elementType(info) !== BFLOAT16) return info;
  const value = Object.assign(create(TypeProto_TensorSchema), info.type.value.value, { elemType: FLOAT });
  const type = Object.assign(create(TypeProtoSchema), info.type, { value: { case: 'tensorType', value } });
  return Object.assign(create(ValueInfoProtoSchema), info, { type });
}

function widenedAttribute(attribute: AttributeProto): AttributeProto {
  const { t, g, graphs } = attribute;
  return Object.assign(create(AttributeProtoSchema), attribute, {
    ...(t === undefined ? {} : { t: widenedTensor(t) }),
    ...(g === undefined ? {} : { g: widenedGraph(g) }),
    graphs: graphs.map(widenedGraph),
    ...(isBfloat16(attribute) ? { i: BigInt(FLOAT) } : {}),
  });
}
