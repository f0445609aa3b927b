// Exporters that fold constants look tables up ahead: a bias for each relative position becomes one for each pair of
// positions, in which every element stands many times; and a weight that several layers share is stored once a layer.
// Trained so, the copies would drift apart. This module makes them one weight again.

import { create } from '@bufbuild/protobuf';

import { freshName } from '../liveness.ts';
import { int64s, type Tensor, tensor, wrap } from '../tensor.ts';
import { patchGraph, patchNode } from './encode.ts';
import {
  AttributeProto_AttributeType,
  AttributeProtoSchema,
  type GraphProto,
  type NodeProto,
  NodeProtoSchema,
  type TensorProto,
  TensorProto_DataType,
} from './generated/onnx_pb.ts';
import { madeUpName } from './made-up-name.ts';
import { formulaOf, isMask } from './number-tables.ts';
import { type Origins, operationOf, originsOf } from './origins.ts';
import { decodeTensor, encodeTensor } from './tensors.ts';

/** Fewer different rows may be equal by chance, or mean something else. */
const leastRowCount = 4;
/** Nodes that may read a table of positions: the elements have their places there, unlike in a product of matrices. */
const tableReaders: ReadonlySet<string> = new Set([
  'Add',
  'Attention',
  'Expand',
  'Mul',
  'Reshape',
  'Slice',
  'Sub',
  'Transpose',
  'Unsqueeze',
  'Where',
]);

/** The graph with one initializer for tensors that were computed from the same parameters and have the same values. */
export function retieCopies(graph: GraphProto): GraphProto {
  const { computed } = originsOf(graph);
  const outputs = new Set(graph.output.map(({ name }) => name));
  const first = new Map<string, TensorProto>();
  const copies = new Map<string, string>();
  for (const value of graph.initializer) {
    const origin = computed.get(value.name);
    if (origin === undefined || origin.parameters.length === 0 || outputs.has(value.name)) continue;
    const key = JSON.stringify([value.dims.map(String), value.dataType, origin.parameters, origin.others]);
    const one = first.get(key);
    if (one === undefined) first.set(key, value);
    else if (sameBytes(one.rawData, value.rawData)) copies.set(value.name, one.name);
  }
  if (copies.size === 0) return graph;
  return patchGraph(graph, {
    initializer: graph.initializer.filter(({ name }) => !copies.has(name)),
    node: graph.node.map((node) =>
      node.input.some((name) => copies.has(name))
        ? patchNode(node, { input: node.input.map((name) => copies.get(name) ?? name) })
        : node,
    ),
  });
}

function sameBytes(one: Uint8Array, other: Uint8Array): boolean {
  return one.length > 0 && one.length === other.length && one.every((byte, index) => byte === other[index]);
}

/**
 * The graph in which a float table of three axes, at least half of whose rows are copies of others, is looked up in the
 * table of its different rows. A row lies along the first or the last axis (the attention heads). Tables that the
 * exporter declares, or computed from something that is no parameter, stay.
 */
export function retieRows(graph: GraphProto): GraphProto {
  const origins = originsOf(graph);
  const readers = readersOf(graph);
  const names = new Set([
    ...graph.initializer.map(({ name }) => name),
    ...graph.input.map(({ name }) => name),
    ...graph.node.flatMap(({ output }) => output),
  ]);
  const nodes: NodeProto[] = [];
  const initializer = graph.initializer.flatMap((value): readonly TensorProto[] => {
    const rows = mayBeLookedUp(value, origins, readers.get(value.name)) ? distinctRows(value) : undefined;
    if (rows === undefined) return [value];
    const [parameter, ...others] = origins.computed.get(value.name)?.parameters ?? [];
    const isOwn = parameter !== undefined && others.length === 0 && !names.has(parameter);
    const stem = freshName(isOwn ? parameter : `${value.name}.rows`, names);
    const { added, made } = lookUp(value, rows, stem);
    nodes.push(...made);
    return added;
  });
  return nodes.length === 0 ? graph : patchGraph(graph, { initializer, node: [...nodes, ...graph.node] });
}

/**
 * The graph in which a tensor that the exporter computed as the exponential of one parameter (a logit scale) is
 * computed from that parameter again.
 */
export function restoreExponents(graph: GraphProto): GraphProto {
  const { computed } = originsOf(graph);
  const names = new Set([...graph.initializer.map(({ name }) => name), ...graph.node.flatMap(({ output }) => output)]);
  const nodes: NodeProto[] = [];
  const initializer = graph.initializer.map((value) => {
    const { parameters = [], others = [], steps = [] } = computed.get(value.name) ?? {};
    const [parameter = ''] = parameters;
    const isExponential = operationOf(value.name) === 'exp' && parameters.length === 1 && others.length === 0;
    if (!isExponential || steps.length > 0 || names.has(parameter) || value.dataType !== TensorProto_DataType.FLOAT)
      return value;
    const { shape, data } = decodeTensor(value, `Initializer "${value.name}"`);
    const exponents = Float32Array.from(data as Float32Array, Math.log);
    if (!exponents.every(Number.isFinite)) return value;
    nodes.push(create(NodeProtoSchema, { opType: 'Exp', name: value.name, input: [parameter], output: [value.name] }));
    return encodeTensor(wrap('float32', shape, exponents), parameter);
  });
  return nodes.length === 0 ? graph : patchGraph(graph, { initializer, node: [...nodes, ...graph.node] });
}

/** By value: the operators that read it; the graph's outputs are read by ''. */
function readersOf({ node, output }: GraphProto): ReadonlyMap<string, ReadonlySet<string>> {
  const readers = new Map<string, Set<string>>();
  const add = (name: string, reader: string): void => {
    readers.set(name, (readers.get(name) ?? new Set()).add(reader));
  };
  for (const { input, opType } of node) for (const name of input) add(name, opType);
  for (const { name } of output) add(name, '');
  return readers;
}

function mayBeLookedUp(
  { name, dims, dataType, rawData }: TensorProto,
  { declared, computed, isComplete }: Origins,
  readers: ReadonlySet<string> = new Set(),
): boolean {
  if (dataType !== TensorProto_DataType.FLOAT || rawData.length === 0 || declared.has(name)) return false;
  if (dims.filter((size) => size !== 1n).length !== 3 || ![...readers].every((reader) => tableReaders.has(reader)))
    return false;
  const origin = computed.get(name);
  return origin === undefined ? !isComplete && madeUpName.test(name) : origin.parameters.length > 0;
}

/** The different rows of a table, and which of them is where. */
interface Rows {
  /** [rows, elements of a row] */
  readonly table: Tensor;
  readonly places: readonly number[];
  readonly isFirstAxis: boolean;
}

function distinctRows(value: TensorProto): Rows | undefined {
  const whole = decodeTensor(value, `Initializer "${value.name}"`);
  if (isMask(whole) || formulaOf(whole) !== undefined) return undefined;
  const data = whole.data as Float32Array;
  const sizes = whole.shape.filter((size) => size !== 1);
  for (const isFirstAxis of [true, false]) {
    const length = sizes[isFirstAxis ? 0 : 2] as number;
    const count = data.length / length;
    const element = (place: number, index: number): number =>
      data[isFirstAxis ? index * count + place : place * length + index] as number;
    const known = new Map<string, number>();
    const elements: number[] = [];
    const places: number[] = [];
    for (let place = 0; place < count; place++) {
      const row = Array.from({ length }, (_, index) => element(place, index));
      const key = row.join(' ');
      if (!known.has(key)) {
        known.set(key, known.size);
        elements.push(...row);
      }
      places.push(known.get(key) as number);
    }
    if (known.size >= leastRowCount && known.size * 2 <= count)
      return { table: tensor('float32', [known.size, length], elements), places, isFirstAxis };
  }
  return undefined;
}

/** The initializers and nodes that compute `value` under its name from its rows, which are called `stem`. */
function lookUp(
  { name, dims }: TensorProto,
  { table, places, isFirstAxis }: Rows,
  stem: string,
): { readonly added: readonly TensorProto[]; readonly made: readonly NodeProto[] } {
  const [index, shape, gathered, turned] = ['places', 'shape', 'looked_up', 'turned'].map((part) => `${name}.${part}`);
  const node = (opType: string, input: readonly (string | undefined)[], output: string | undefined): NodeProto =>
    create(NodeProtoSchema, { opType, name: `${output}`, input: input.map(String), output: [`${output}`] });
  const perm = create(AttributeProtoSchema, { name: 'perm', type: AttributeProto_AttributeType.INTS, ints: [1n, 0n] });
  return {
    added: [
      encodeTensor(table, stem),
      encodeTensor(int64s(places), `${index}`),
      encodeTensor(int64s(dims.map(Number)), `${shape}`),
    ],
    made: [
      node('Gather', [stem, index], gathered),
      ...(isFirstAxis ? [patchNode(node('Transpose', [gathered], turned), { attribute: [perm] })] : []),
      node('Reshape', [isFirstAxis ? turned : gathered, shape], name),
    ],
  };
}
