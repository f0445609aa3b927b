// Filters of convolutions in the orders in which the engine's kernels read them (lowering/filters.ts): they depend on
// weights alone, which are the same for all micro-batches of a round. A graph of their own makes them when the weights
// are new, and the passes take them as inputs. Of ResNet-50 with micro-batches of five samples that is a fourth of the
// time, for two more copies of the weights.

import { assert, defined } from '../../assert.ts';
import { blockedType } from '../../engine/blocked-types.ts';
import { Emitter } from '../../graph/emitter.ts';
import type { Graph, Node, ValueInfo } from '../../graph/graph.ts';
import { byteLength, type ValueType } from '../../graph/tensor.ts';
import { blockedDomain } from '../../lowering/layouts.ts';

/** Larger filters are kept. To hand a smaller one over takes as long as to order it. */
export const leastFilterBytes: number = 2 ** 18;

/** The graph that makes the filters and the graphs that take them, by the names that these had. */
export interface WithKeptFilters<Name extends string> {
  /** From parameters to filters; undefined if there is nothing to keep. */
  readonly filters: Graph | undefined;
  readonly graphs: Readonly<Partial<Record<Name, Graph>>>;
}

/**
 * Takes what brings large parameters into the kernels' order out of the graphs of a pass. A filter that several of them
 * read is made once.
 */
export function keepFilters<Name extends string>(
  graphs: Readonly<Partial<Record<Name, Graph>>>,
  parameters: ReadonlySet<string>,
  blockSize: number,
): WithKeptFilters<Name> {
  const filters = new FilterGraph(blockSize);
  const without = Object.entries<Graph | undefined>(graphs).flatMap(([name, graph]) =>
    graph === undefined ? [] : [[name, takeFilters(graph, parameters, filters)] as const],
  );
  return { filters: filters.build(), graphs: Object.fromEntries(without) as Readonly<Partial<Record<Name, Graph>>> };
}

/** The graph with filters as inputs; as it was where it has none that are worth it. */
function takeFilters(graph: Graph, parameters: ReadonlySet<string>, filters: FilterGraph): Graph {
  const given = new Map(graph.inputs.map((input) => [input.name, input]));
  const isLarge = (value: string): boolean => {
    const input = given.get(value);
    return input !== undefined && parameters.has(value) && byteLength(input as ValueType) > leastFilterBytes;
  };
  /** What depends on large parameters alone, with whether the kernels' order has been reached. */
  const ordered = new Map<string, boolean>();
  const makers = new Map<string, Node>();
  const others: Node[] = [];
  for (const node of graph.nodes) {
    const read = node.inputs.filter((input) => input !== '' && !graph.initializers.has(input));
    if (read.length === 0 || node.outputs.length > 1 || !read.every((input) => ordered.has(input) || isLarge(input))) {
      others.push(node);
      continue;
    }
    const output = defined(node.outputs[0], 'an output');
    ordered.set(output, node.domain === blockedDomain || read.some((input) => ordered.get(input) === true));
    makers.set(output, node);
  }
  const names = new Map<string, string>();
  const results = new Set(graph.outputs.map(({ name }) => name));
  for (const value of new Set(others.flatMap(({ inputs }) => inputs))) {
    if (ordered.get(value) !== true || results.has(value)) continue; // what the graph gives it has to make
    const name = filters.take(value, { makers, graph });
    if (name !== undefined) names.set(value, name);
  }
  return names.size === 0 ? graph : withInputs(graph, names, filters);
}

/** The graph that takes some of its values instead of computing them, under other names. */
function withInputs(graph: Graph, names: ReadonlyMap<string, string>, filters: FilterGraph): Graph {
  const needed = new Set(graph.outputs.map(({ name }) => name));
  const nodes: Node[] = [];
  for (const node of graph.nodes.toReversed()) {
    if (node.outputs.some((output) => names.has(output)) || !node.outputs.some((output) => needed.has(output)))
      continue;
    nodes.push({ ...node, inputs: node.inputs.map((input) => names.get(input) ?? input) });
    for (const input of node.inputs) needed.add(input);
  }
  const taken = [...names.values()].map((name): ValueInfo => filters.info(name));
  return {
    ...graph,
    inputs: [
      ...graph.inputs.filter(({ name }) => needed.has(name)),
      ...new Map(taken.map((info) => [info.name, info])).values(),
    ],
    initializers: new Map([...graph.initializers].filter(([name]) => needed.has(name))),
    nodes: nodes.reverse(),
  };
}

/** The graph that makes filters, as it grows. */
class FilterGraph {
  readonly #emitter = new Emitter('kept ', { shareNodes: true });
  readonly #blockSize: number;
  readonly #outputs = new Set<string>();

  constructor(blockSize: number) {
    this.#blockSize = blockSize;
  }

  /** Makes a value of another graph here; undefined for one that is too small to be kept. */
  take(value: string, from: { readonly makers: ReadonlyMap<string, Node>; readonly graph: Graph }): string | undefined {
    const name = this.#copy(value, from);
    if (byteLength(this.#emitter.type(name)) <= leastFilterBytes) return undefined;
    this.#outputs.add(name);
    return name;
  }

  #copy(value: string, from: { readonly makers: ReadonlyMap<string, Node>; readonly graph: Graph }): string {
    const { makers, graph } = from;
    const constant = graph.initializers.get(value);
    if (constant !== undefined) return this.#emitter.constant(constant);
    const maker = makers.get(value);
    if (maker === undefined) return this.#parameter(value, graph);
    const { operator, domain, attributes } = maker;
    const inputs = maker.inputs.map((input) => (input === '' ? '' : this.#copy(input, from)));
    if (domain === '') return this.#emitter.emit(operator, inputs, attributes);
    const types = inputs.map((input) => (input === '' ? undefined : this.#emitter.type(input)));
    const type = defined(blockedType(maker, types, this.#blockSize), `the type of ${domain}.${operator}`);
    return this.#emitter.emitTyped(operator, inputs, type, attributes, domain);
  }

  #parameter(name: string, { inputs }: Graph): string {
    if (this.#emitter.has(name)) return name;
    const { type, shape } = defined(
      inputs.find((input) => input.name === name),
      name,
    );
    return this.#emitter.input(name, type, shape as readonly number[]);
  }

  info(name: string): ValueInfo {
    assert(this.#outputs.has(name), `a filter ${name}`);
    return { name, ...this.#emitter.type(name) };
  }

  /** Undefined if nothing was taken. */
  build(): Graph | undefined {
    if (this.#outputs.size === 0) return undefined;
    const built = this.#emitter.build('filters', [...this.#outputs]);
    const read = new Set(built.nodes.flatMap(({ inputs }) => inputs));
    return { ...built, inputs: built.inputs.filter(({ name }) => read.has(name)) };
  }
}
