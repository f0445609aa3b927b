// Writes ONNX files: the user's own file with trained weights, or a graph of ours.

import { create } from '@bufbuild/protobuf';

import { assert, defined } from '../../assert.ts';
import { type Attribute, canonicalOpset, type Graph, type Node, type ValueInfo } from '../graph.ts';
import { filePlace, sameShape, type Tensor } from '../tensor.ts';
import { encodeModel, patchGraph, patchModel, patchNode } from './encode.ts';
import {
  type AttributeProto,
  AttributeProto_AttributeType,
  AttributeProtoSchema,
  type GraphProto,
  GraphProtoSchema,
  ModelProtoSchema,
  type NodeProto,
  NodeProtoSchema,
  OperatorSetIdProtoSchema,
  type TensorProto,
  TensorShapeProto_DimensionSchema,
  TensorShapeProtoSchema,
  TypeProto_TensorSchema,
  TypeProtoSchema,
  type ValueInfoProto,
  ValueInfoProtoSchema,
} from './generated/onnx_pb.ts';
import type { ImportedModel } from './import.ts';
import { inferenceNodes } from './inference-nodes.ts';
import { producerName, withEntries, writeMetadata } from './metadata.ts';
import { dataTypeOf, elementTypeOf, encodePlacedTensor, encodeTensor, replaceTensor } from './tensors.ts';

/** Options of {@link exportModel}. */
export interface ExportOptions {
  /**
   * 'inference' (default) switches batch normalization and dropout to inference; 'as-imported' changes nothing but
   * weights.
   */
  readonly mode?: 'inference' | 'as-imported';
  /** Entries of the file's metadata, in place of those with their keys. Default: none. */
  readonly metadata?: ReadonlyMap<string, string> | undefined;
}

/** Versions of other domains whose operators our graphs may use; default 1. */
const domainVersions: Readonly<Record<string, number>> = {
  '': canonicalOpset,
  'com.microsoft': 1,
  'com.microsoft.nchwc': 1,
};
/** The file format version of the canonical opset. */
const irVersion = 10n;

/**
 * The user's own file with the tensors named in `trained` (parameters and buffers, by their names in the graph) in
 * place of its own; opset, names, documentation and metadata are kept. Does not change the imported model.
 */
export function exportModel(
  imported: ImportedModel,
  trained: ReadonlyMap<string, Tensor>,
  options: ExportOptions = {},
): Uint8Array {
  const graph = defined(imported.proto.graph, 'the graph of an imported model');
  const initializer = [...graph.initializer];
  const node = [...graph.node];
  for (const [name, value] of trained) {
    const place = defined(imported.places.get(name), `the place of "${name}" in the file`);
    if (place.kind === 'initializer') initializer[place.index] = replaced(initializer[place.index], value, name);
    else node[place.nodeIndex] = replacedConstant(defined(node[place.nodeIndex], `the node of "${name}"`), value, name);
  }
  const patched = patchGraph(graph, { initializer, node });
  return encodeModel(
    patchModel(imported.proto, {
      graph: options.mode === 'as-imported' ? patched : inferenceNodes(patched),
      metadataProps: withEntries(imported.proto.metadataProps, options.metadata),
    }),
  );
}

/** Which types and shapes a graph's file contains. */
export interface ShapeOptions {
  /** Whether inputs and outputs have shapes. Default true. */
  readonly isBorderTyped?: boolean;
  /** Inner values whose type and shape are written. Default: none. */
  readonly values?: readonly ValueInfo[];
  /** The name of an additional first output, an empty sequence of tensors. Default: none. */
  readonly emptySequence?: string | undefined;
  /** Entries of the file's metadata. Default: none. */
  readonly metadata?: ReadonlyMap<string, string> | undefined;
  /** Tensors that lie in files stay there, and the model refers to them. Default false. */
  readonly leavesPlaced?: boolean;
}

/**
 * A graph of ours as an ONNX file of the canonical opset, with the values of `trained` in place of its initializers of
 * these names. What ONNX cannot express goes into the metadata, and is read back by `importModel`.
 */
export function exportGraph(
  graph: Graph,
  trained: ReadonlyMap<string, Tensor> = new Map(),
  shapes: ShapeOptions = {},
): Uint8Array {
  const domains = new Set(['', ...graph.nodes.map(({ domain }) => domain)]);
  return encodeModel(
    create(ModelProtoSchema, {
      irVersion,
      producerName,
      opsetImport: [...domains].map((domain) =>
        create(OperatorSetIdProtoSchema, { domain, version: BigInt(domainVersions[domain] ?? 1) }),
      ),
      graph: encodeGraph(graph, trained, shapes),
      metadataProps: withEntries(writeMetadata(graph), shapes.metadata),
    }),
  );
}

function replaced(proto: TensorProto | undefined, value: Tensor, name: string): TensorProto {
  const old = defined(proto, `the tensor "${name}"`);
  assert(
    sameShape(value.shape, old.dims.map(Number)),
    `"${name}" was trained with shape [${value.shape.join(', ')}] instead of [${old.dims.join(', ')}]`,
  );
  // A model in float64 is trained in float32 (precision.ts).
  const type = elementTypeOf(old.dataType);
  assert(
    value.type === type || (value.type === 'float32' && type === 'float64'),
    `"${name}" was trained as ${value.type}`,
  );
  return replaceTensor(old, value);
}

function replacedConstant(node: NodeProto, value: Tensor, name: string): NodeProto {
  const attribute = node.attribute.map((entry) => {
    if (entry.name === 'value')
      return Object.assign(create(AttributeProtoSchema), entry, { t: replaced(entry.t, value, name) });
    return entry.name === 'value_floats'
      ? Object.assign(create(AttributeProtoSchema), entry, { floats: Array.from(value.data as Float32Array) })
      : entry;
  });
  return patchNode(node, { attribute });
}

function encodeGraph(graph: Graph, trained: ReadonlyMap<string, Tensor>, options: ShapeOptions): GraphProto {
  const { isBorderTyped = true, values = [], emptySequence, leavesPlaced = false } = options;
  const encodeInitializer = (name: string, value: Tensor): TensorProto => {
    const place = leavesPlaced ? filePlace(value) : undefined;
    return place === undefined ? encodeTensor(value, name) : encodePlacedTensor(value, name, place);
  };
  const [sequences, makers] =
    emptySequence === undefined
      ? [[], []]
      : [[create(ValueInfoProtoSchema, { name: emptySequence })], [sequenceNode(emptySequence)]];
  return create(GraphProtoSchema, {
    name: graph.name,
    input: graph.inputs.map((input) => encodeValueInfo(input, isBorderTyped)),
    // A shape without dimensions may mean an unknown one: omit it rather than write a wrong one.
    output: [
      ...sequences,
      ...graph.outputs.map((output) => encodeValueInfo(output, isBorderTyped && output.shape.length > 0)),
    ],
    initializer: [...graph.initializers].map(([name, value]) => encodeInitializer(name, trained.get(name) ?? value)),
    node: [...makers, ...graph.nodes.map(encodeNode)],
    valueInfo: values.map((value) => encodeValueInfo(value, true)),
  });
}

function encodeValueInfo({ name, type, shape }: ValueInfo, withShape: boolean): ValueInfoProto {
  const dim = shape.map((dimension) =>
    create(TensorShapeProto_DimensionSchema, {
      value:
        typeof dimension === 'number'
          ? { case: 'dimValue', value: BigInt(dimension) }
          : { case: 'dimParam', value: dimension },
    }),
  );
  const tensorType = create(TypeProto_TensorSchema, {
    elemType: dataTypeOf(type),
    ...(withShape ? { shape: create(TensorShapeProtoSchema, { dim }) } : {}),
  });
  return create(ValueInfoProtoSchema, {
    name,
    type: create(TypeProtoSchema, { value: { case: 'tensorType', value: tensorType } }),
  });
}

function sequenceNode(name: string): NodeProto {
  return create(NodeProtoSchema, { opType: 'SequenceEmpty', name, output: [name] });
}

function encodeNode({ operator, domain, name, inputs, outputs, attributes }: Node): NodeProto {
  return create(NodeProtoSchema, {
    opType: operator,
    ...(domain === '' ? {} : { domain }),
    name,
    input: [...inputs],
    output: [...outputs],
    attribute: Object.entries(attributes).map(([key, attribute]) => encodeAttribute(key, attribute)),
  });
}

function encodeAttribute(name: string, attribute: Attribute): AttributeProto {
  const Type = AttributeProto_AttributeType;
  const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
  switch (attribute.type) {
    case 'int':
      return create(AttributeProtoSchema, { name, type: Type.INT, i: BigInt(attribute.value) });
    case 'float':
      return create(AttributeProtoSchema, { name, type: Type.FLOAT, f: attribute.value });
    case 'string':
      return create(AttributeProtoSchema, { name, type: Type.STRING, s: bytes(attribute.value) });
    case 'tensor':
      return create(AttributeProtoSchema, { name, type: Type.TENSOR, t: encodeTensor(attribute.value) });
    case 'ints':
      return create(AttributeProtoSchema, { name, type: Type.INTS, ints: attribute.value.map(BigInt) });
    case 'floats':
      return create(AttributeProtoSchema, { name, type: Type.FLOATS, floats: [...attribute.value] });
    case 'strings':
      return create(AttributeProtoSchema, { name, type: Type.STRINGS, strings: attribute.value.map(bytes) });
  }
}
