// When each value of a static graph is alive while its nodes run one after the other, and how many bytes that takes at most: exact, given
// what the engine that runs it does (a MemoryModel). Inputs and constants are there before and after; they are not counted.

import { assert, defined } from '../assert.ts';
import type { Graph, Node } from './graph.ts';
import { isOperator, operators } from './operators/index.ts';
import { byteLength, type ValueType } from './tensor.ts';

/** What an engine does with memory. */
export interface MemoryModel {
  /** The order in which it runs a graph's nodes, as indices. */
  order(graph: Graph): readonly number[];
  /**
   * Whether output 0 of a node may live in the memory of its input 0: always, as another view of the same elements; in place, where that memory is not
   * needed otherwise; or never.
   */
  shares(node: Node): 'view' | 'in-place' | 'never';
  /** What a node needs besides its inputs and outputs while it runs. */
  workspaceBytes(node: Node, inputs: readonly (ValueType | undefined)[], outputs: readonly ValueType[]): number;
}

/** Runs nodes in the graph's order, gives every value memory of its own but for views. */
export const plainMemory: MemoryModel = {
  order: ({ nodes }) => nodes.map((_, index) => index),
  shares: ({ operator }) => (viewOperators.has(operator) ? 'view' : 'never'),
  workspaceBytes: () => 0,
};

/** Operators whose result has its input's elements in their order. */
export const viewOperators: ReadonlySet<string> = new Set(['Reshape', 'Flatten', 'Squeeze', 'Unsqueeze', 'Identity']);

/** What a run of a graph takes. */
export interface MemoryUse {
  /** The most bytes of values that nodes made, workspace included, at any moment. */
  readonly peakBytes: number;
  /** The node that runs at that moment. */
  readonly peakNode: string;
  /** The buffers alive then, by the first value in each. */
  readonly alive: readonly { readonly name: string; readonly bytes: number }[];
  /** Bytes of the graph's outputs that nodes made: what is left at the end. */
  readonly outputBytes: number;
}

/** A piece of memory that holds one value after the other. */
interface Buffer {
  readonly name: string;
  readonly bytes: number;
  /** Reads that are still to come. Infinity: it stays to the end. */
  uses: number;
}

/** The memory that the values of a graph take while it runs. All shapes must be static; `types` has those of values that no operator's rule tells. */
export function memoryUse(
  graph: Graph,
  model: MemoryModel = plainMemory,
  types: ReadonlyMap<string, ValueType> = inferTypes(graph),
): MemoryUse {
  const outputs = new Set(graph.outputs.map(({ name }) => name));
  const reads = new Map<string, number>();
  for (const { inputs } of graph.nodes) for (const name of inputs) reads.set(name, (reads.get(name) ?? 0) + 1);
  const typeOf = (name: string): ValueType => defined(types.get(name), `the type of "${name}"`);
  const buffers = new Map<string, Buffer>();
  const alive = new Set<Buffer>();
  let bytes = 0;
  let peak = { peakBytes: 0, peakNode: '', alive: [] as readonly Buffer[] };
  for (const index of model.order(graph)) {
    const node = graph.nodes[index] as Node;
    node.outputs.forEach((name, place) => {
      if (name === '') return;
      const shared = place === 0 && !outputs.has(name) ? sharedBuffer(node, typeOf(name), buffers, model) : undefined;
      const uses = outputs.has(name) ? Number.POSITIVE_INFINITY : (reads.get(name) ?? 0);
      if (shared === 'given') return;
      const buffer = shared ?? { name, bytes: byteLength(typeOf(name)), uses: 0 };
      buffer.uses += uses;
      buffers.set(name, buffer);
      if (shared !== undefined) return;
      alive.add(buffer);
      bytes += buffer.bytes;
    });
    const inputTypes = node.inputs.map((name) => (name === '' ? undefined : typeOf(name)));
    const outputTypes = node.outputs.map((name): ValueType => (name === '' ? { type: 'bool', shape: [0] } : typeOf(name)));
    const now = bytes + model.workspaceBytes(node, inputTypes, outputTypes);
    if (now > peak.peakBytes) peak = { peakBytes: now, peakNode: node.name, alive: [...alive] };
    for (const name of node.inputs) {
      const buffer = buffers.get(name);
      if (buffer !== undefined) buffer.uses--;
    }
    for (const name of [...node.inputs, ...node.outputs]) {
      const buffer = buffers.get(name);
      if (buffer !== undefined && buffer.uses <= 0 && alive.delete(buffer)) bytes -= buffer.bytes;
    }
  }
  return { ...peak, alive: peak.alive.map(({ name, bytes }) => ({ name, bytes })), outputBytes: bytes };
}

/** The buffer that a node's first output takes over or looks at; 'given' where that is an input's or a constant's. */
function sharedBuffer(node: Node, type: ValueType, buffers: ReadonlyMap<string, Buffer>, model: MemoryModel): Buffer | 'given' | undefined {
  const how = model.shares(node);
  if (how === 'never') return undefined;
  const buffer = buffers.get(node.inputs[0] as string);
  if (how === 'view') return buffer ?? 'given';
  return buffer !== undefined && buffer.uses === 1 && buffer.bytes === byteLength(type) ? buffer : undefined;
}

/** The types of all values of a static graph. Values that other domains' operators make, and what follows from them, are left out. */
export function inferTypes(graph: Graph): Map<string, ValueType> {
  const types = new Map<string, ValueType>(graph.initializers);
  for (const { name, type, shape } of [...graph.inputs, ...graph.outputs]) types.set(name, { type, shape: shape as readonly number[] });
  for (const node of graph.nodes) {
    if (node.domain !== '' || node.inputs.some((name) => name !== '' && !types.has(name))) continue;
    assert(isOperator(node.operator), `operator ${node.operator} was not refused`);
    const results = operators[node.operator].infer(
      node,
      node.inputs.map((name) => types.get(name)),
      node.inputs.map((name) => graph.initializers.get(name)),
    );
    node.outputs.forEach((name, index) => {
      const type = results[index];
      if (name !== '' && type !== undefined) types.set(name, type);
    });
  }
  return types;
}
