// When each value of a static graph is alive while its nodes run in sequence, and the peak number of bytes that takes:
// exact, given how the engine uses memory (a MemoryModel). Inputs and constants are not counted.

import { defined } from '../assert.ts';
import type { Graph, Node } from './graph.ts';
import { inferTypes } from './infer-types.ts';
import { byteLength, elementBytes, sameShape, type ValueType } from './tensor.ts';

/** How an engine uses memory. */
export interface MemoryModel {
  /** The order in which it runs a graph's nodes, as indices. */
  order(graph: Graph): readonly number[];
  /** The input whose memory output 0 of a node uses, if any. */
  shares(node: Node): Sharing | undefined;
  /**
   * Whether a value may be put into memory of its shape whose values are no longer needed: that memory is then kept in
   * between. A set: whether one of these values may be put into memory that was allocated for another of them.
   */
  readonly reusesDead: boolean | ReadonlySet<string>;
  /**
   * Whether the graph's outputs have memory before the first node runs. Default false: each is allocated when its node
   * runs.
   */
  readonly isOutputGiven?: boolean;
  /** Bytes that a node needs in addition to its inputs and outputs while it runs. */
  workspaceBytes(node: Node, inputs: readonly (ValueType | undefined)[], outputs: readonly ValueType[]): number;
}

/**
 * How an output uses an input's memory: always, as another view of its elements, or in place, if that memory is not
 * needed otherwise.
 */
export interface Sharing {
  readonly how: 'view' | 'in-place';
  /** The place among the node's inputs. */
  readonly input: number;
}

/** Runs nodes in the graph's order and gives every value except views its own memory. */
export const plainMemory: MemoryModel = {
  order: ({ nodes }) => nodes.map((_, index) => index),
  shares: ({ operator, domain }) =>
    domain === '' && viewOperators.has(operator) ? { how: 'view', input: 0 } : undefined,
  reusesDead: false,
  workspaceBytes: () => 0,
};

/** Operators whose result has its input's elements in the same order. */
export const viewOperators: ReadonlySet<string> = new Set(['Reshape', 'Flatten', 'Squeeze', 'Unsqueeze', 'Identity']);

/** The memory that a run of a graph takes. */
export interface MemoryUse {
  /** The peak of bytes of values that nodes computed, including workspace. */
  readonly peakBytes: number;
  /** The node that runs at that moment. */
  readonly peakNode: string;
  /** The buffers alive at the peak, by the first value in each. */
  readonly alive: readonly { readonly name: string; readonly bytes: number }[];
  /** Bytes of the graph's outputs that nodes computed: what remains after the run. */
  readonly outputBytes: number;
}

/** A piece of memory that holds one value after another. */
interface Buffer {
  readonly name: string;
  readonly bytes: number;
  readonly type: ValueType;
  /** The steps of the first node that writes and the last that reads it. Infinity: it stays to the end. */
  readonly first: number;
  last: number;
  /** Number of reads still to come. */
  uses: number;
}

/**
 * The memory that the values of a graph take while it runs. All shapes must be static; `types` gives those of values
 * that no operator's rule can infer.
 */
export function memoryUse(
  graph: Graph,
  model: MemoryModel = plainMemory,
  types: ReadonlyMap<string, ValueType> = inferTypes(graph),
): MemoryUse {
  const order = model.order(graph).map((index) => graph.nodes[index] as Node);
  const typeOf = (name: string): ValueType =>
    name === '' ? { type: 'bool', shape: [0] } : defined(types.get(name), `the type of "${name}"`);
  const buffers = planBuffers(graph, order, model, typeOf);
  const changes = new Float64Array(order.length + 1);
  for (const { bytes, first, last } of buffers) {
    changes[first] = (changes[first] as number) + bytes;
    if (last < order.length) changes[last + 1] = (changes[last + 1] as number) - bytes;
  }
  let [bytes, peakBytes, peakStep] = [0, 0, 0];
  order.forEach((node, step) => {
    bytes += changes[step] as number;
    const inputs = node.inputs.map((name) => (name === '' ? undefined : typeOf(name)));
    const now = bytes + model.workspaceBytes(node, inputs, node.outputs.map(typeOf));
    if (now > peakBytes) [peakBytes, peakStep] = [now, step];
  });
  const alive = buffers.filter(({ first, last }) => first <= peakStep && peakStep <= last);
  return {
    peakBytes,
    peakNode: order[peakStep]?.name ?? '',
    alive: alive.map((buffer) => ({ name: buffer.name, bytes: buffer.bytes })),
    outputBytes: bytes + (changes[order.length] as number),
  };
}

/** The buffers of a run, with the steps between which each exists. */
function planBuffers(
  graph: Graph,
  order: readonly Node[],
  model: MemoryModel,
  typeOf: (name: string) => ValueType,
): readonly Buffer[] {
  const outputs = new Set(graph.outputs.map(({ name }) => name));
  const reads = new Map<string, number>();
  for (const { inputs } of graph.nodes) for (const name of inputs) reads.set(name, (reads.get(name) ?? 0) + 1);
  const holders = new Map<string, Buffer>();
  const all: Buffer[] = [];
  /** The most recently died first. */
  const dead: Buffer[] = [];
  const { reusesDead } = model;
  const isReused = (name: string): boolean => (typeof reusesDead === 'boolean' ? reusesDead : reusesDead.has(name));
  const place = (node: Node, name: string, index: number, step: number): Buffer | undefined => {
    const type = typeOf(name);
    const shared = index === 0 && !outputs.has(name) ? sharedBuffer(node, type, holders, model) : undefined;
    if (shared === 'given') return undefined;
    const found = shared ?? (isReused(name) && !outputs.has(name) ? takeDead(dead, type) : undefined);
    if (found !== undefined) return found;
    const first = model.isOutputGiven === true && outputs.has(name) ? 0 : step;
    const buffer = { name, bytes: byteLength(type), type, first, last: Number.POSITIVE_INFINITY, uses: 0 };
    all.push(buffer);
    return buffer;
  };
  order.forEach((node, step) => {
    node.outputs.forEach((name, index) => {
      const buffer = name === '' ? undefined : place(node, name, index, step);
      if (buffer === undefined) return;
      buffer.uses += outputs.has(name) ? Number.POSITIVE_INFINITY : (reads.get(name) ?? 0);
      holders.set(name, buffer);
    });
    for (const name of node.inputs) {
      const buffer = holders.get(name);
      if (buffer !== undefined) buffer.uses--;
    }
    for (const buffer of new Set([...node.inputs, ...node.outputs].map((name) => holders.get(name)))) {
      if (buffer === undefined || buffer.uses > 0 || dead.includes(buffer)) continue;
      buffer.last = step;
      if (isReused(buffer.name)) dead.unshift(buffer);
    }
  });
  return all;
}

/** Takes a buffer of the same shape and element size out of the list; not for scalars. */
function takeDead(dead: Buffer[], type: ValueType): Buffer | undefined {
  if (type.shape.length === 0) return undefined;
  const fits = (buffer: Buffer): boolean =>
    sameShape(buffer.type.shape, type.shape) && elementBytes(buffer.type.type) === elementBytes(type.type);
  const index = dead.findIndex(fits);
  return index < 0 ? undefined : dead.splice(index, 1)[0];
}

/** The buffer that a node's first output takes over or is a view of; 'given' if that is an input's or a constant's. */
function sharedBuffer(
  node: Node,
  type: ValueType,
  holders: ReadonlyMap<string, Buffer>,
  model: MemoryModel,
): Buffer | 'given' | undefined {
  const sharing = model.shares(node);
  if (sharing === undefined) return undefined;
  const buffer = holders.get(node.inputs[sharing.input] ?? '');
  if (sharing.how === 'view') return buffer ?? 'given';
  return buffer !== undefined && buffer.uses === 1 && buffer.bytes === byteLength(type) ? buffer : undefined;
}
