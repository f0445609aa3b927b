// Finds kernels of a GPU that are wrong or refused before they count. Each kind of node of a graph (operator,
// attributes, types and shapes of what it reads, constants) runs alone on the GPU and on the CPU, on made-up numbers;
// many kinds share a graph. A kind is found out once.

import { defined } from '../assert.ts';
import type { Graph, Node, ValueInfo } from '../graph/graph.ts';
import { inferTypes } from '../graph/infer-types.ts';
import { byteLength, elementCount, isFloat, type Tensor, tensor, toNumbers, type ValueType } from '../graph/tensor.ts';

/** Why a kernel of the GPU is not used. */
export type KernelFault = 'wrong' | 'refused';

/** Runs a graph once, on the GPU or on the CPU; all outputs come down. */
export type RunOnce = (
  where: 'gpu' | 'cpu',
  graph: Graph,
  inputs: ReadonlyMap<string, Tensor>,
) => Promise<ReadonlyMap<string, Tensor>>;

/** The faults of the kinds that are known; undefined for those that are right. */
export type KnownKinds = Map<string, KernelFault | undefined>;

/** A node whose kernel is not to be used, and what to call it. */
export interface Detour {
  readonly node: string;
  /** Such as "Conv 4x6x10x10 8x6x3x3". */
  readonly kernel: string;
  readonly fault: KernelFault;
}

/** Of a value's largest element. */
const tolerance = 1e-3;
/** What the kinds of one graph read and write, at most, but for a single one. */
const groupBytes = 2 ** 26;

interface Kind {
  readonly key: string;
  readonly node: Node;
  readonly inputs: readonly (ValueType | undefined)[];
  readonly constants: readonly (Tensor | undefined)[];
  readonly outputs: readonly ValueType[];
}

/** The nodes of a graph with static shapes that the GPU cannot be trusted with. Adds to `known`. */
export async function probeKernels(graph: Graph, known: KnownKinds, run: RunOnce): Promise<readonly Detour[]> {
  const types = inferTypes(graph);
  const kinds = graph.nodes.map((node) => kindOf(graph, node, types));
  const fresh = new Map(kinds.filter(({ key }) => !known.has(key)).map((kind) => [kind.key, kind]));
  for (const group of grouped([...fresh.values()])) await probe(group, known, run);
  return kinds.flatMap(({ key, node, inputs }) => {
    const fault = known.get(key);
    if (fault === undefined) return [];
    const shapes = inputs.flatMap((type) => (type === undefined ? [] : [type.shape.join('x') || 'scalar']));
    return [{ node: node.name, kernel: [node.operator, ...shapes].join(' '), fault }];
  });
}

function kindOf(graph: Graph, node: Node, types: ReadonlyMap<string, ValueType>): Kind {
  const inputs = node.inputs.map((name) => types.get(name));
  // Constants of floats are numbers like others; whole numbers are shapes and axes.
  const constants = node.inputs.map((name) => {
    const constant = graph.initializers.get(name);
    return constant === undefined || isFloat(constant.type) ? undefined : constant;
  });
  const outputs = node.outputs.map((name) => types.get(name) ?? { type: 'float32' as const, shape: [] });
  const attributes = Object.entries(node.attributes).sort(([a], [b]) => (a < b ? -1 : 1));
  const key = JSON.stringify([
    ...[node.domain, node.operator, attributes.map(([name, value]) => [name, value.type, plain(value.value)])],
    ...[inputs.map((type) => type && [type.type, type.shape]), constants.map((value) => value && toNumbers(value))],
    node.outputs.map((name) => name !== ''),
  ]);
  return { key, node, inputs, constants, outputs };
}

function plain(value: unknown): unknown {
  return typeof value === 'object' && value !== null && 'data' in value ? toNumbers(value as Tensor) : value;
}

/** Groups of kinds that fit into memory together. */
function grouped(kinds: readonly Kind[]): Kind[][] {
  const groups: Kind[][] = [];
  let bytes = Number.POSITIVE_INFINITY;
  for (const kind of kinds) {
    const own = [...kind.inputs, ...kind.outputs].reduce((sum, type) => sum + (type ? byteLength(type) : 0), 0);
    if (bytes + own > groupBytes) {
      groups.push([]);
      bytes = 0;
    }
    groups.at(-1)?.push(kind);
    bytes += own;
  }
  return groups;
}

/** Finds the faults of some kinds; in halves, where the GPU refuses them together. */
async function probe(kinds: readonly Kind[], known: KnownKinds, run: RunOnce): Promise<void> {
  const { graph, inputs } = probeGraph(kinds);
  let expected: ReadonlyMap<string, Tensor>;
  let found: ReadonlyMap<string, Tensor>;
  try {
    expected = await run('cpu', graph, inputs);
    found = await run('gpu', graph, inputs);
  } catch {
    const [only, ...others] = kinds;
    if (only !== undefined && others.length === 0) known.set(only.key, 'refused');
    const half = Math.ceil(kinds.length / 2);
    if (others.length > 0) for (const part of [kinds.slice(0, half), kinds.slice(half)]) await probe(part, known, run);
    return;
  }
  kinds.forEach(({ key, node }, index) => {
    const names = node.outputs.flatMap((name, place) => (name === '' ? [] : [outputName(index, place)]));
    const isRight = names.every((name) => isNear(defined(found.get(name), name), defined(expected.get(name), name)));
    known.set(key, isRight ? undefined : 'wrong');
  });
}

const outputName = (kind: number, place: number): string => `kind${kind}.${place}`;

/** One node of each kind, which read made-up numbers. Nodes of the same inputs' types read the same. */
function probeGraph(kinds: readonly Kind[]): { readonly graph: Graph; readonly inputs: Map<string, Tensor> } {
  const inputs = new Map<string, Tensor>();
  const initializers = new Map<string, Tensor>();
  const outputs: ValueInfo[] = [];
  const nodes = kinds.map((kind, index): Node => {
    const names = kind.inputs.map((type, place) => {
      if (type === undefined) return '';
      const constant = kind.constants[place];
      const name = constant ? `kind${index}.constant${place}` : inputName(kind, type, place);
      if (constant !== undefined) initializers.set(name, constant);
      else if (!inputs.has(name)) inputs.set(name, madeUp(kind, type, place));
      return name;
    });
    const made = kind.node.outputs.map((name, place) => {
      if (name === '') return '';
      outputs.push({ name: outputName(index, place), ...defined(kind.outputs[place], name) });
      return outputName(index, place);
    });
    return { ...kind.node, name: `kind${index}`, inputs: names, outputs: made };
  });
  const given = [...inputs].map(([name, { type, shape }]) => ({ name, type, shape }));
  const border = { inputs: given, outputs, initializers, parameters: [], buffers: [] };
  return { graph: { name: 'kernels', ...border, nodes }, inputs };
}

/** Operators that are not defined for all numbers. */
const positiveOnly = new Set(['Log', 'Sqrt', 'Pow', 'Div', 'Reciprocal', 'BatchNormalization']);

function inputName({ node, inputs }: Kind, { type, shape }: ValueType, place: number): string {
  const domain = positiveOnly.has(node.operator) ? 'positive' : isFloat(type) ? 'any' : `below ${limitOf(inputs)}`;
  return `${type} ${shape.join('x')} ${domain} ${place}`;
}

/** Whole numbers are taken for places along an axis of what is read: below its shortest. */
function limitOf(inputs: Kind['inputs']): number {
  const floats = inputs.flatMap((type) => (type !== undefined && isFloat(type.type) ? type.shape : []));
  return Math.max(1, Math.min(...floats, 2 ** 15));
}

/** Numbers from -1 to 1 (or 0.5 to 1.5), no two neighbours alike; whole ones from 0. */
function madeUp({ node, inputs }: Kind, { type, shape }: ValueType, place: number): Tensor {
  const limit = type === 'bool' ? 2 : limitOf(inputs);
  const offset = positiveOnly.has(node.operator) ? 1 : 0;
  const half = offset === 0 ? 2 : 1;
  const values = Float64Array.from({ length: elementCount(shape) }, (_, index) => {
    if (!isFloat(type)) return (index * 7 + place) % limit;
    const part = ((index + 1) * 0.6180339887 + place * 0.37) % 1;
    return offset + (part - 0.5) * half;
  });
  // Bits of half precision: 1 and a little.
  return tensor(type, shape, type === 'float16' ? values.map((_, index) => 0x3c00 + (index % 512)) : values);
}

function isNear(found: Tensor, expected: Tensor): boolean {
  const [a, b] = [toNumbers(found), toNumbers(expected)];
  if (a.length !== b.length) return false;
  const largest = b.reduce((most, value) => (Number.isFinite(value) ? Math.max(most, Math.abs(value)) : most), 0);
  const allowed = isFloat(expected.type) ? tolerance * largest + 1e-7 : 0;
  return b.every((value, index) => {
    const other = a[index] as number;
    return Object.is(value, other) || Math.abs(value - other) <= allowed;
  });
}
