// ModelProto to plain data, still at the file's own opset: names made unique, types and sizes checked, Constant nodes
// turned into initializers. Refuses, with one sentence, what Asteroid cannot represent.

import { fromBinary } from '@bufbuild/protobuf';

import { InputError } from '../../errors.ts';
import type { Attribute, Dimension, Node, ValueInfo } from '../graph.ts';
import { freshName } from '../liveness.ts';
import { isOperator } from '../operators/index.ts';
import { scalar, type Tensor, tensor } from '../tensor.ts';
import type { ExternalLoader } from './external.ts';
import {
  type AttributeProto,
  AttributeProto_AttributeType,
  type GraphProto,
  type ModelProto,
  ModelProtoSchema,
  type NodeProto,
  type ValueInfoProto,
} from './generated/onnx_pb.ts';
import { type Origins, originsOf } from './origins.ts';
import { dataTypeName, decodeTensor, elementTypeOf, isHalf } from './tensors.ts';

/** What stands in a file for a dimension that has no name. */
export const unknownDimension: RegExp = /^([?*]|-1|None|)$/;

/** Longer names are refused; no exporter writes them. */
const nameLengthLimit = 4096;

/** Where a tensor is in the file: an initializer or the value of a Constant node. */
export type TensorPlace =
  | { readonly kind: 'initializer'; readonly index: number }
  | { readonly kind: 'constant'; readonly nodeIndex: number };

/** The contents of a model file. */
export interface DecodedModel {
  readonly name: string;
  readonly opset: number;
  readonly inputs: readonly ValueInfo[];
  readonly outputs: readonly ValueInfo[];
  readonly initializers: Map<string, Tensor>;
  /** By initializer: its place in the file. */
  readonly places: ReadonlyMap<string, TensorPlace>;
  readonly nodes: readonly Node[];
  /** All names of values and nodes. */
  readonly names: Set<string>;
  /** True if the file has half-precision tensors or values, which are float32 here. */
  readonly hadHalf: boolean;
  /** What the exporter declares of the initializers. */
  readonly origins: Origins;
}

/**
 * Reads the protobuf message. Throws InputError for bytes that are no such message or a truncated one, and for names
 * that are not text.
 */
export function parseModel(bytes: Uint8Array): ModelProto {
  // A plain view: subclasses such as Buffer override `slice`.
  const plain = new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let model: ModelProto;
  try {
    model = fromBinary(ModelProtoSchema, plain);
  } catch (error) {
    throw new InputError(`The ${bytes.length} bytes are not a complete ONNX model; export or copy the file again.`, {
      cause: error,
    });
  }
  if (model.graph === undefined)
    throw new InputError(`The ${bytes.length} bytes are not an ONNX model, or it is empty: there is no graph in it.`);
  checkNames(model.graph);
  return model;
}

/** The version of ONNX's default operator set that the model uses. */
export function opsetOf(model: ModelProto): number {
  const entry = model.opsetImport.find(({ domain }) => normalDomain(domain) === '');
  if (entry === undefined)
    throw new InputError('The model does not say which version of the ONNX operators it uses; export it again.');
  return Number(entry.version);
}

/** Normalizes the default domain's other name, 'ai.onnx', to ''. */
export function normalDomain(domain: string): string {
  return domain === 'ai.onnx' ? '' : domain;
}

/**
 * Decodes a parsed model. `load` reads what was left outside. Throws InputError for invalid or unsupported contents.
 */
export function decodeModel(model: ModelProto, load?: ExternalLoader): DecodedModel {
  const graph = model.graph as GraphProto;
  const initializers = new Map<string, Tensor>();
  const places = new Map<string, TensorPlace>();
  const add = (name: string, value: Tensor, place: TensorPlace): void => {
    if (name === '') throw new InputError('An initializer of the model has no name; export it again.');
    if (initializers.has(name)) throw new InputError(`The model defines "${name}" twice; export it again.`);
    initializers.set(name, value);
    places.set(name, place);
  };
  let hadHalf = graph.initializer.some(({ dataType }) => isHalf(dataType));
  graph.initializer.forEach((proto, index) =>
    add(proto.name, decodeTensor(proto, `Initializer "${proto.name}"`, load), { kind: 'initializer', index }),
  );
  const sparse = graph.sparseInitializer[0];
  if (sparse !== undefined)
    throw new InputError(
      `Initializer "${sparse.values?.name ?? ''}" is sparse, which Asteroid does not support; store it densely.`,
    );
  const nodeNames = nameNodes(graph.node);
  const nodes: Node[] = [];
  graph.node.forEach((proto, nodeIndex) => {
    const name = nodeNames[nodeIndex] as string;
    hadHalf ||= proto.attribute.some(
      ({ t, i, name: key }) => isHalf(t?.dataType ?? 0) || (castsTo(proto, key) && isHalf(Number(i))),
    );
    if (proto.opType === 'Constant' && normalDomain(proto.domain) === '') {
      add(proto.output[0] ?? '', constantValue(proto, name), { kind: 'constant', nodeIndex });
    } else nodes.push(decodeNode(proto, name));
  });
  const inputs = graph.input
    .filter(({ name }) => !initializers.has(name))
    .map((input) => decodeValueInfo(input, 'Input'));
  const outputs = graph.output.map((output) => decodeValueInfo(output, 'Output'));
  hadHalf ||= [...graph.input, ...graph.output].some(
    ({ type }) => type?.value.case === 'tensorType' && isHalf(type.value.value.elemType),
  );
  const names = new Set([
    ...initializers.keys(),
    ...inputs.map(({ name }) => name),
    ...nodes.flatMap(({ name, outputs: made }) => [name, ...made]),
  ]);
  return {
    name: graph.name,
    opset: opsetOf(model),
    inputs,
    outputs,
    initializers,
    places,
    nodes,
    names,
    hadHalf,
    origins: originsOf(graph),
  };
}

/** Names are printed, so they must be text on one line; anything else comes from a damaged file. */
function checkNames(graph: GraphProto): void {
  const check = (names: readonly string[]): void => {
    for (const name of names) {
      // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for.
      if (name.length > nameLengthLimit || /[\u0000-\u001f\u007f-\u009f\u2028\u2029]/.test(name)) {
        throw new InputError(
          `A name in the model is ${name.length} characters long or has control characters in it, so the file ` +
            'is damaged; export or copy it again.',
        );
      }
    }
  };
  const tensors = [
    ...graph.initializer,
    ...graph.sparseInitializer.flatMap(({ values }) => values ?? []),
    ...graph.node.flatMap(({ attribute }) => attribute.flatMap(({ t }) => t ?? [])),
  ];
  check([
    graph.name,
    ...tensors.flatMap(({ name, externalData }) => [name, ...externalData.map(({ value }) => value)]),
  ]);
  for (const { name, type } of [...graph.input, ...graph.output]) {
    check([name]);
    if (type?.value.case === 'tensorType')
      check(type.value.value.shape?.dim.map(({ value }) => (value.case === 'dimParam' ? value.value : '')) ?? []);
  }
  for (const { name, opType, domain, input, output, attribute } of graph.node)
    check([name, opType, domain, ...input, ...output, ...attribute.map((entry) => entry.name)]);
}

/** The nodes' own names if they are unique, otherwise names from the operator and a number. */
function nameNodes(nodes: readonly NodeProto[]): readonly string[] {
  const taken = new Set<string>();
  const names = nodes.map(({ name }) => {
    if (name === '' || taken.has(name)) return undefined;
    taken.add(name);
    return name;
  });
  return names.map((name, index) => {
    const { name: given, opType } = nodes[index] as NodeProto;
    return name ?? freshName(given === '' ? `${opType}_${index}` : given, taken);
  });
}

function decodeNode(proto: NodeProto, name: string): Node {
  const attributes: Record<string, Attribute> = Object.create(null) as Record<string, Attribute>;
  const domain = normalDomain(proto.domain);
  const known = domain === '' && isOperator(proto.opType);
  for (const attribute of proto.attribute) {
    const value = decodeAttribute(attribute, proto, name);
    if (value !== undefined) attributes[attribute.name] = value;
    else if (known)
      throw new InputError(
        `Attribute "${attribute.name}" of node "${name}" (${proto.opType}) has a type that this operator does ` +
          'not take.',
      );
  }
  return {
    operator: proto.opType,
    domain,
    name,
    inputs: proto.input,
    outputs: proto.output,
    attributes: { ...attributes },
  };
}

/** True for attributes that hold a data type. */
function castsTo({ opType }: NodeProto, attribute: string): boolean {
  return (opType === 'Cast' && attribute === 'to') || (opType === 'EyeLike' && attribute === 'dtype');
}

function decodeAttribute(proto: AttributeProto, node: NodeProto, nodeName: string): Attribute | undefined {
  const Type = AttributeProto_AttributeType;
  const what = `Attribute "${proto.name}" of node "${nodeName}" (${node.opType})`;
  if (proto.refAttrName !== '')
    throw new InputError(`${what} refers to a function's attribute outside of one; export the model again.`);
  switch (attributeType(proto)) {
    case Type.FLOAT:
      return { type: 'float', value: proto.f };
    case Type.INT: {
      const value = Number(proto.i);
      return { type: 'int', value: castsTo(node, proto.name) && isHalf(value) ? 1 : value };
    }
    case Type.STRING:
      return { type: 'string', value: text(proto.s) };
    case Type.TENSOR:
      if (proto.t === undefined) throw new InputError(`${what} is a tensor without a value; export the model again.`);
      return { type: 'tensor', value: decodeTensor(proto.t, what) };
    case Type.FLOATS:
      return { type: 'floats', value: proto.floats };
    case Type.INTS:
      return { type: 'ints', value: proto.ints.map(Number) };
    case Type.STRINGS:
      return { type: 'strings', value: proto.strings.map(text) };
    default:
      return undefined;
  }
}

/** The attribute's type, inferred from the fields present if an old exporter left it out. */
function attributeType(proto: AttributeProto): number {
  const Type = AttributeProto_AttributeType;
  if (proto.type !== Type.UNDEFINED) return proto.type;
  if (proto.t !== undefined) return Type.TENSOR;
  if (proto.g !== undefined) return Type.GRAPH;
  if (proto.ints.length > 0) return Type.INTS;
  if (proto.floats.length > 0) return Type.FLOATS;
  if (proto.strings.length > 0) return Type.STRINGS;
  if (proto.s.length > 0) return Type.STRING;
  return proto.f === 0 ? Type.INT : Type.FLOAT;
}

function text(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes);
}

/** The value of a Constant node. Messages name it by its output. */
function constantValue(proto: NodeProto, name: string): Tensor {
  const what = `Constant "${proto.output[0] ?? name}"`;
  for (const attribute of proto.attribute) {
    switch (attribute.name) {
      case 'value':
        if (attribute.t !== undefined) return decodeTensor(attribute.t, what);
        break;
      case 'value_float':
        return scalar('float32', attribute.f);
      case 'value_int':
        return int64Tensor([], [attribute.i]);
      case 'value_floats':
        return tensor('float32', [attribute.floats.length], attribute.floats);
      case 'value_ints':
        return int64Tensor([attribute.ints.length], attribute.ints);
      default:
    }
  }
  throw new InputError(`${what} holds no dense numbers (strings and sparse tensors are not supported).`);
}

function int64Tensor(shape: readonly number[], values: readonly bigint[]): Tensor {
  return { type: 'int64', shape, data: BigInt64Array.from(values) };
}

function decodeValueInfo({ name, type }: ValueInfoProto, kind: 'Input' | 'Output'): ValueInfo {
  const what = `${kind} "${name}" of the model`;
  if (type?.value.case !== 'tensorType')
    throw new InputError(`${what} is not a tensor; inputs and outputs must be tensors.`);
  const { elemType, shape } = type.value.value;
  const element = elementTypeOf(elemType);
  if (element === undefined)
    throw new InputError(`${what} has elements of ${dataTypeName(elemType)}, which Asteroid does not support.`);
  if (shape === undefined && kind === 'Input')
    throw new InputError(`${what} has no shape; export it with one (symbolic dimensions are fine).`);
  const dimensions = (shape?.dim ?? []).map(({ value }, axis): Dimension => {
    if (value.case === 'dimParam' && !unknownDimension.test(value.value)) return value.value;
    // Unknown, and another size each time; some exporters write 0 or −1 for it.
    if (value.case !== 'dimValue' || value.value <= 0n) return `${name}.${axis}`;
    if (value.value > BigInt(Number.MAX_SAFE_INTEGER))
      throw new InputError(`${what} has an impossible dimension, ${value.value}.`);
    return Number(value.value);
  });
  return { name, type: element, shape: dimensions };
}
