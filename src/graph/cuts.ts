// Where a model can be cut in two: nodes in an order close to the exporter's, and for every place between two of them,
// which tensors are alive across it and whether all of them can be split by samples and sent.

import { defined } from '../assert.ts';
import { batchAxis, type Probe } from './batch-axis.ts';
import type { Graph, Node } from './graph.ts';
import { byteLength } from './tensor.ts';

/** A model's cuts. Cut `p` is before node `p`; cut `nodes.length` is the end. */
export interface Cuts {
  readonly nodes: readonly Node[];
  /** Whether each cut is legal, for cuts 0 … nodes.length. The first and the last always are. */
  readonly legal: readonly boolean[];
  /** Bytes alive across each cut, per sample. */
  readonly bytes: readonly number[];
  /** The values alive across a cut, in the order in which they are computed. */
  alive(cut: number): readonly string[];
}

interface Lifetime {
  readonly name: string;
  /** Alive across cuts first … last. */
  readonly first: number;
  readonly last: number;
}

/**
 * All cuts of a model. A cut is legal if every value computed before it and read after it (including graph inputs, and
 * the graph's first output until the end; excluding parameters, buffers and constants) has the batch on exactly one
 * axis, no parameter or buffer is read on both sides, and no state is read on one side and made on the other.
 */
export function findCuts(probe: Probe): Cuts {
  const { graph, types } = probe.static;
  const nodes = orderForCutting(graph);
  const lifetimes = valueLifetimes(graph, nodes);
  const ofBatch = dependants(
    graph.nodes,
    graph.inputs.map((input) => input.name),
  );
  const illegal = new Int32Array(nodes.length + 2);
  const bytes = new Float64Array(nodes.length + 2);
  const addRange = (counts: Int32Array | Float64Array, first: number, last: number, amount: number): void => {
    if (last < first) return;
    counts[first] = (counts[first] as number) + amount;
    counts[last + 1] = (counts[last + 1] as number) - amount;
  };
  for (const { name, first, last } of lifetimes) {
    addRange(bytes, first, last, byteLength(defined(types.get(name), `the type of "${name}"`)) / probe.batchSize);
    const hasBatch = batchAxis(name, probe) !== undefined && (probe.other !== undefined || ofBatch.has(name));
    if (!hasBatch) addRange(illegal, first, last, 1);
  }
  for (const { first, last } of [...initializerSpans(graph, nodes), ...stateSpans(graph, nodes)])
    addRange(illegal, first + 1, last, 1);
  accumulate(illegal);
  accumulate(bytes);
  return {
    nodes,
    legal: Array.from(
      { length: nodes.length + 1 },
      (_, cut) => cut === 0 || cut === nodes.length || illegal[cut] === 0,
    ),
    bytes: Array.from(bytes.subarray(0, nodes.length + 1)),
    alive: (cut) => lifetimes.filter(({ first, last }) => first <= cut && cut <= last).map(({ name }) => name),
  };
}

function accumulate(counts: Int32Array | Float64Array): void {
  for (let index = 1; index < counts.length; index++)
    counts[index] = (counts[index] as number) + (counts[index - 1] as number);
}

/** All values that depend on `roots`, including the roots. */
function dependants(nodes: readonly Node[], roots: Iterable<string>): Set<string> {
  const result = new Set(roots);
  for (const node of nodes)
    if (node.inputs.some((input) => result.has(input))) for (const output of node.outputs) result.add(output);
  return result;
}

/**
 * The nodes in their order, except that those that depend on parameters only (a transposed weight, an embedding of
 * fixed positions) come directly before the first node that reads them: computed early, their results would be alive
 * across cuts and make them illegal. Nodes that depend only on constants are left out: each stage has its own copy
 * (stage.ts).
 */
function orderForCutting(graph: Graph): readonly Node[] {
  const ofInputs = dependants(
    graph.nodes,
    graph.inputs.map((input) => input.name),
  );
  const ofParameters = dependants(graph.nodes, [...graph.parameters, ...graph.buffers]);
  const waiting = new Map<string, Node>();
  const ordered: Node[] = [];
  const place = (node: Node): void => {
    for (const input of node.inputs) {
      const source = waiting.get(input);
      if (source !== undefined) place(source);
    }
    for (const output of node.outputs) waiting.delete(output);
    ordered.push(node);
  };
  for (const node of graph.nodes) {
    if (node.outputs.some((output) => ofInputs.has(output))) place(node);
    else if (node.outputs.some((output) => ofParameters.has(output)))
      for (const output of node.outputs) waiting.set(output, node);
  }
  const last = waiting.get(graph.outputs[0]?.name ?? '');
  if (last !== undefined) place(last);
  return ordered;
}

function valueLifetimes(graph: Graph, nodes: readonly Node[]): readonly Lifetime[] {
  const firstCut = new Map<string, number>();
  const lastCut = new Map<string, number>();
  const states = new Set(graph.states?.map(({ input }) => input));
  for (const { name } of graph.inputs) if (!states.has(name)) firstCut.set(name, 0);
  nodes.forEach((node, index) => {
    for (const input of node.inputs) lastCut.set(input, index);
    for (const output of node.outputs) if (output !== '') firstCut.set(output, index + 1);
  });
  const carried = new Set(graph.states?.map(({ output }) => output));
  for (const [index, { name }] of graph.outputs.entries())
    if (index === 0 || !carried.has(name)) lastCut.set(name, nodes.length);
  return [...firstCut].flatMap(([name, first]) => {
    const last = lastCut.get(name);
    return last === undefined ? [] : [{ name, first, last }];
  });
}

/** From the first to the last node that read each carried state or make its next value. */
function stateSpans({ states = [] }: Graph, nodes: readonly Node[]): readonly { first: number; last: number }[] {
  return states.map(({ input, output }) => {
    const places = nodes.flatMap(({ inputs, outputs }, index) =>
      inputs.includes(input) || outputs.includes(output) ? [index] : [],
    );
    return { first: places[0] ?? 0, last: places.at(-1) ?? 0 };
  });
}

/** The first and the last node that read each parameter or buffer. */
function initializerSpans(graph: Graph, nodes: readonly Node[]): Iterable<{ first: number; last: number }> {
  const spans = new Map<string, { first: number; last: number }>();
  const changing = new Set([...graph.parameters, ...graph.buffers]);
  nodes.forEach((node, index) => {
    for (const input of node.inputs) {
      if (changing.has(input)) spans.set(input, { first: spans.get(input)?.first ?? index, last: index });
    }
  });
  return spans.values();
}
