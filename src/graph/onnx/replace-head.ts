// Replaces the classifier in the user's own file: new weights for another number of classes. Names, opset and
// everything else are kept.

import { create } from '@bufbuild/protobuf';
import { assert, defined } from '../../assert.ts';
import { findHead, type Head, type HeadTensor } from '../head.ts';
import { fanInUniform, initialize } from '../initialization.ts';
import { int64s, type Tensor, toNumbers } from '../tensor.ts';
import { encodeModel, patchGraph, patchModel, patchNode } from './encode.ts';
import {
  AttributeProtoSchema,
  type GraphProto,
  type NodeProto,
  type TensorProto,
  TensorProtoSchema,
  TensorShapeProto_DimensionSchema,
  type ValueInfoProto,
  ValueInfoProtoSchema,
} from './generated/onnx_pb.ts';
import { type ImportedModel, importModel } from './import.ts';
import { replaceTensor } from './tensors.ts';

/** A model with a new head, and its former number of classes. */
export interface ReplacedHead {
  readonly model: ImportedModel;
  readonly head: Head;
}

/**
 * The model with a classifier of `classCount` classes in place of its own. Weights and bias are drawn by the seed and
 * their names, uniform within 1 / √fanIn. Throws InputError if the model has no such head.
 */
export function replaceHead(imported: ImportedModel, classCount: number, seed: number): ReplacedHead {
  const head = findHead(imported.graph);
  const values = new Map<string, Tensor>();
  const draw = ({ name, shape, classAxis }: HeadTensor): void => {
    const newShape = shape.map((dimension, axis) => (axis === classAxis ? classCount : dimension));
    values.set(name, initialize(name, newShape, fanInUniform(head.fanIn), { seed }));
  };
  draw(head.weight);
  if (head.bias !== undefined) draw(head.bias);
  for (const name of head.reshapes) {
    const shape = imported.graph.initializers.get(name);
    if (shape !== undefined && imported.places.has(name))
      values.set(name, int64s(newDimensions(toNumbers(shape), head, classCount)));
  }
  const graph = patched(imported, values, head, classCount);
  const again = importModel(encodeModel(patchModel(imported.proto, { graph })));
  return { model: { ...again, notes: imported.notes }, head };
}

/**
 * The dimensions with the classes replaced: the dimension equal to their number, or that of channels or features if
 * several are.
 */
function newDimensions(dimensions: readonly number[], { node, classCount: old }: Head, classCount: number): number[] {
  const places = dimensions.flatMap((dimension, axis) => (axis > 0 && dimension === old ? [axis] : []));
  const place = places.length > 1 && node.operator === 'Conv' ? places[0] : places.at(-1);
  return dimensions.map((dimension, axis) => (axis === place ? classCount : dimension));
}

function patched(
  { proto, places }: ImportedModel,
  values: ReadonlyMap<string, Tensor>,
  head: Head,
  classCount: number,
): GraphProto {
  const graph = defined(proto.graph, 'the graph of an imported model');
  const initializer = [...graph.initializer];
  const node = [...graph.node];
  for (const [name, value] of values) {
    const place = defined(places.get(name), `the place of "${name}" in the file`);
    if (place.kind === 'initializer') initializer[place.index] = resized(initializer[place.index], value);
    else node[place.nodeIndex] = resizedConstant(defined(node[place.nodeIndex], `the node of "${name}"`), value);
  }
  const output = graph.output.map((info) =>
    head.values.has(info.name) ? resizedInfo(info, (old) => newDimensions(old, head, classCount)) : info,
  );
  // Initializers may also be listed as inputs; shapes of inner values are hints, which readers infer themselves.
  const input = graph.input.map((info) => {
    const value = values.get(info.name);
    return value === undefined ? info : resizedInfo(info, () => [...value.shape]);
  });
  const valueInfo = graph.valueInfo.filter(({ name }) => !head.values.has(name) && !values.has(name));
  return patchGraph(graph, { initializer, node, output, input, valueInfo });
}

function resized(proto: TensorProto | undefined, value: Tensor): TensorProto {
  const old = Object.assign(create(TensorProtoSchema), defined(proto, 'a tensor'), {
    dims: value.shape.map(BigInt),
    int64Data: [],
  });
  return replaceTensor(old, value);
}

function resizedConstant(node: NodeProto, value: Tensor): NodeProto {
  const attribute = node.attribute.map((entry) => {
    const numbers = toNumbers(value);
    switch (entry.name) {
      case 'value':
        return Object.assign(create(AttributeProtoSchema), entry, { t: resized(entry.t, value) });
      case 'value_floats':
        return Object.assign(create(AttributeProtoSchema), entry, { floats: numbers });
      case 'value_ints':
        return Object.assign(create(AttributeProtoSchema), entry, { ints: numbers.map(BigInt) });
      default:
        return entry;
    }
  });
  return patchNode(node, { attribute });
}

/** A value's description with other dimensions; symbols and unknown shapes are kept. */
function resizedInfo(
  info: ValueInfoProto,
  change: (dimensions: readonly number[]) => readonly number[],
): ValueInfoProto {
  const { type } = info;
  if (type?.value.case !== 'tensorType' || type.value.value.shape === undefined) return info;
  const tensorType = type.value.value;
  const old = (tensorType.shape?.dim ?? []).map(({ value }) => (value.case === 'dimValue' ? Number(value.value) : -1));
  const sizes = change(old);
  assert(sizes.length === old.length, `the rank of "${info.name}" stays`);
  const dim = (tensorType.shape?.dim ?? []).map((dimension, axis) =>
    sizes[axis] === old[axis]
      ? dimension
      : create(TensorShapeProto_DimensionSchema, { value: { case: 'dimValue', value: BigInt(sizes[axis] as number) } }),
  );
  const shape = Object.assign({}, tensorType.shape, { dim });
  const value = { case: 'tensorType' as const, value: Object.assign({}, tensorType, { shape }) };
  return Object.assign(create(ValueInfoProtoSchema), info, { type: Object.assign({}, type, { value }) });
}
