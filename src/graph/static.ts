// Instantiates a model with a symbolic batch: every dimension a number, every value's type inferred, constants folded
// (exporters write Shape → Gather → Concat → Reshape chains, which fold away), no-op nodes removed. Parameters and
// buffers are never folded, because they change.

import { assert, defined } from '../assert.ts';
import { InputError } from '../errors.ts';
import { expandComposite, isComposite, qualifiedName } from './composites/expand.ts';
import { nodeFlops } from './flops.ts';
import { batchSymbol, type Dimension, type Graph, intAttribute, type Node, type ValueInfo } from './graph.ts';
import { neededNodes, usedValues } from './liveness.ts';
import { isOperator, operators } from './operators/index.ts';
import { isQuantizing, quantizedHint } from './quantized.ts';
import { Simplifier } from './simplify.ts';
import { elementCount, int64s, scalar, type Tensor, type ValueType } from './tensor.ts';

/** A graph whose inputs and outputs have numeric dimensions, with the type of every value in it. */
export interface StaticGraph {
  readonly graph: Graph;
  readonly types: ReadonlyMap<string, ValueType>;
}

/** Options of {@link instantiate}. */
export interface InstantiateOptions {
  /** Sizes of symbolic dimensions other than the batch, by their name in the model. */
  readonly dimensions?: Readonly<Record<string, number>>;
  /** Values that keep their names through simplification, as the graph's outputs always do. */
  readonly keep?: Iterable<string>;
  /** False infers and folds but keeps no-op nodes. Default true. */
  readonly simplify?: boolean;
}

/** The list of supported operators. */
const operatorList = 'docs/operators.md';
/** Advice for some unsupported operators. */
const hints: Readonly<Record<string, string>> = {
  If: 'its condition depends on data; export the model without control flow, for shapes that are known',
  Loop: 'export the model without control flow, for shapes that are known',
  Scan: 'export the model without control flow, for shapes that are known',
};
/** Operators with random results. */
const randomOperators: ReadonlySet<string> = new Set([
  'Bernoulli',
  'Dropout',
  'RandomNormal',
  'RandomNormalLike',
  'RandomUniform',
  'RandomUniformLike',
]);
/** Limit of folded elements in a model: small constants must not grow to gigabytes in a file. */
const foldedElementLimit = 2 ** 22;
/** Limit of floating point operations of folded nodes together: the oracle that folds is slow. */
const foldedFlopLimit = 2 ** 26;
/**
 * Additions to both limits for each element of the model's own constants: values derived from weights are in proportion
 * to them.
 */
const foldedPerElement = { elements: 8, flops: 64 } as const;
/** Shapes and scalars are folded regardless of the limits: sizes depend on them. */
const freeFolding = { elements: 1024, flops: 65_536 } as const;
/**
 * Values with more elements than this are refused: no machine can hold them, and their sizes in bytes are no longer
 * exact.
 */
const elementLimit = 2 ** 44;

/**
 * Replaces the batch symbol by `batchSize`, infers all types, folds constants, simplifies, and removes what no output
 * needs. Inputs, outputs and remaining nodes keep their names and order. A graph without symbols is accepted. Throws
 * InputError for unsupported operators, for symbols other than the batch that `dimensions` does not give, for shapes
 * that do not fit, and for a batch size other than a model's fixed one.
 */
export function instantiate(graph: Graph, batchSize: number, options: InstantiateOptions = {}): StaticGraph {
  assert(Number.isSafeInteger(batchSize) && batchSize > 0, `a batch of ${batchSize} samples`);
  if (graph.fixedBatch !== undefined && graph.fixedBatch !== batchSize) {
    throw new InputError(
      `Model "${graph.name}" was exported for a batch of exactly ${graph.fixedBatch} and cannot run with ` +
        `${batchSize}; export it with a dynamic batch dimension.`,
    );
  }
  const sizes = { ...options.dimensions, [batchSymbol]: batchSize };
  const inputs = graph.inputs.map((input) => ({
    ...input,
    shape: input.shape.map((dimension) => dimensionSize(input, dimension, sizes)),
  }));
  const outputNames = graph.outputs.map((output) => output.name);
  const nodes = neededNodes(graph.nodes, outputNames);
  refuseUnsupported(nodes);
  const walk = TypeWalk.from(graph, inputs);
  const keep = new Set([...outputNames, ...(options.keep ?? [])]);
  const simplifier = options.simplify === false ? undefined : new Simplifier(walk, keep, nodes);
  const kept: Node[] = [];
  const add = (original: Node): void => {
    const node = simplifier?.resolve(original) ?? original;
    if (isComposite(node)) {
      const written = walk.writeOut(node);
      simplifier?.replace(node, written);
      written.forEach(add);
      return;
    }
    if (walk.visit(node)) return;
    const simplified = simplifier === undefined ? node : simplifier.simplify(node);
    if (simplified !== undefined) kept.push(simplified);
  };
  nodes.forEach(add);
  return finish(graph, inputs, neededNodes(kept, outputNames), walk);
}

/** Replaces named symbolic dimensions by numbers; others are kept. */
export function bindDimensions(graph: Graph, dimensions: Readonly<Record<string, number>>): Graph {
  const bind = (value: ValueInfo): ValueInfo => ({
    ...value,
    shape: value.shape.map((dimension) =>
      typeof dimension === 'string' && Object.hasOwn(dimensions, dimension)
        ? (dimensions[dimension] as number)
        : dimension,
    ),
  });
  return { ...graph, inputs: graph.inputs.map(bind), outputs: graph.outputs.map(bind) };
}

/** Throws InputError naming the unsupported operators, if there are any. */
export function refuseUnsupported(nodes: readonly Node[]): void {
  const unknown = nodes.filter((node) => !isComposite(node) && (node.domain !== '' || !isOperator(node.operator)));
  const first = unknown[0];
  if (first === undefined) return;
  const hint = isQuantizing(first.operator) ? quantizedHint : first.domain === '' ? hints[first.operator] : undefined;
  const others = [...new Set(unknown.map(qualifiedName))].filter((other) => other !== qualifiedName(first));
  const nor = others.length > 0 ? `, nor ${others.join(', ')}` : '';
  throw new InputError(
    `Operator ${qualifiedName(first)} (node "${first.name}") is not supported${nor}; ` +
      `${hint === undefined ? '' : `${hint}; `}${operatorList} lists the operators that are.`,
  );
}

function dimensionSize(input: ValueInfo, dimension: Dimension, sizes: Readonly<Record<string, number>>): number {
  if (typeof dimension === 'number') return dimension;
  const size = Object.hasOwn(sizes, dimension) ? sizes[dimension] : undefined;
  if (size === undefined) {
    throw new InputError(
      `Input "${input.name}" has the symbolic dimension "${dimension}", whose size must be given (only the ` +
        `batch may stay open): with --input-shape ${input.name}=${input.shape.join(',')}, ` +
        'a number for each, or --data.',
    );
  }
  if (!Number.isSafeInteger(size) || size < 1)
    throw new InputError(`Dimension "${dimension}" of input "${input.name}" must be a positive integer, not ${size}.`);
  return size;
}

function finish(
  graph: Graph,
  inputs: readonly (ValueInfo & ValueType)[],
  nodes: readonly Node[],
  walk: TypeWalk,
): StaticGraph {
  const outputNames = graph.outputs.map((output) => output.name);
  const used = usedValues(nodes, outputNames);
  const initializers = new Map<string, Tensor>();
  for (const [name, value] of graph.initializers) if (used.has(name)) initializers.set(name, value);
  for (const [name, value] of walk.constants) if (used.has(name)) initializers.set(name, value);
  const types = new Map<string, ValueType>();
  const record = (name: string): void => {
    if (name !== '') types.set(name, walk.type(name));
  };
  inputs.forEach((input) => record(input.name));
  for (const name of initializers.keys()) record(name);
  for (const node of nodes) node.outputs.forEach(record);
  const result: Graph = {
    ...graph,
    inputs,
    outputs: outputNames.map((name) => ({ name, ...walk.type(name) })),
    initializers,
    parameters: graph.parameters.filter((name) => used.has(name)),
    buffers: graph.buffers.filter((name) => used.has(name)),
    nodes,
  };
  return { graph: result, types };
}

/** Walks nodes in order, inferring the types of their outputs and, if they follow from constants, their values. */
export class TypeWalk {
  readonly #types = new Map<string, ValueType>();
  /** Constants by name: untrained initializers, and values computed from them. */
  readonly constants: Map<string, Tensor> = new Map<string, Tensor>();
  /** What may still be folded. */
  readonly #left = { elements: foldedElementLimit, flops: foldedFlopLimit };

  /** A walk that knows a graph's inputs (with static shapes) and its initializers. */
  static from(graph: Graph, inputs: readonly (ValueType & { readonly name: string })[]): TypeWalk {
    const walk = new TypeWalk();
    for (const input of inputs) walk.setType(input.name, input);
    const changing = new Set([...graph.parameters, ...graph.buffers]);
    for (const [name, value] of graph.initializers) {
      if (changing.has(name)) walk.setType(name, value);
      else walk.setConstant(name, value);
    }
    return walk;
  }

  /** The type of a known value. */
  type(name: string): ValueType {
    return defined(this.#types.get(name), `the type of value "${name}"`);
  }

  /** True for a known value. */
  has(name: string): boolean {
    return this.#types.has(name);
  }

  /** Adds a value whose elements are unknown. */
  setType(name: string, { type, shape }: ValueType): void {
    this.#types.set(name, { type, shape });
  }

  /** Adds a value whose elements are known. */
  setConstant(name: string, value: Tensor): void {
    this.#left.elements += foldedPerElement.elements * value.data.length;
    this.#left.flops += foldedPerElement.flops * value.data.length;
    this.#keep(name, value);
  }

  #keep(name: string, value: Tensor): void {
    this.#types.set(name, { type: value.type, shape: value.shape });
    this.constants.set(name, value);
  }

  /** The nodes that a composite expands to, with their constants added to the walk. */
  writeOut(node: Node): readonly Node[] {
    const types = node.inputs.map((input) => (input === '' ? undefined : this.type(input)));
    const { initializers, nodes } = expandComposite(
      node,
      types,
      node.inputs.map((input) => this.constants.get(input)),
    );
    for (const [name, value] of initializers) this.#keep(name, value);
    return nodes;
  }

  /** Infers a node's outputs and computes them if possible; returns true if it did. The operator must be supported. */
  visit(node: Node): boolean {
    if (isComposite(node))
      return this.writeOut(node)
        .map((inner) => this.visit(inner))
        .every((known) => known);
    const types = node.inputs.map((input) => (input === '' ? undefined : this.type(input)));
    const inputs = node.inputs.map((input) => this.constants.get(input));
    assert(isOperator(node.operator), `operator ${node.operator} was not refused`);
    const definition = operators[node.operator];
    const outputs = definition.infer(node, types, inputs);
    if (node.operator === 'Shape' || node.operator === 'Size')
      return this.#foldShape(node, defined(types[0], `the input of node "${node.name}"`).shape);
    node.outputs.forEach((output, index) => {
      if (output !== '')
        this.#types.set(output, checkSize(node, output, defined(outputs[index], `the type of "${output}"`)));
    });
    if (
      !node.inputs.every((input) => input === '' || this.constants.has(input)) ||
      !this.#mayFold(node, types, outputs)
    )
      return false;
    const values = definition.evaluate(node, inputs);
    node.outputs.forEach((output, index) => {
      if (output !== '') this.#keep(output, defined(values[index], `the value of "${output}"`));
    });
    return true;
  }

  /** Shape and Size need only the input's type: foldable even if the input is not constant. */
  #foldShape(node: Node, shape: readonly number[]): true {
    const clamp = (index: number): number =>
      Math.min(Math.max(index < 0 ? index + shape.length : index, 0), shape.length);
    const value =
      node.operator === 'Size'
        ? scalar('int64', elementCount(shape))
        : int64s(shape.slice(clamp(intAttribute(node, 'start', 0)), clamp(intAttribute(node, 'end', shape.length))));
    this.#keep(defined(node.outputs[0], `the output of node "${node.name}"`), value);
    return true;
  }

  /** Whether a node with known inputs may be computed here; if so, counts it against the limits. */
  #mayFold(node: Node, inputs: readonly (ValueType | undefined)[], outputs: readonly ValueType[]): boolean {
    if (randomOperators.has(node.operator)) return false;
    const elements = outputs.reduce((sum, output) => sum + elementCount(output.shape), 0);
    const flops = nodeFlops(node, inputs, outputs);
    if (elements <= freeFolding.elements && flops <= freeFolding.flops) return true;
    if (
      elements > foldedElementLimit ||
      elements > this.#left.elements ||
      flops > foldedFlopLimit ||
      flops > this.#left.flops
    )
      return false;
    this.#left.elements -= elements;
    this.#left.flops -= flops;
    return true;
  }
}

function checkSize(node: Node, output: string, type: ValueType): ValueType {
  if (elementCount(type.shape) > elementLimit) {
    throw new InputError(
      `Node "${node.name}" (${node.operator}) makes "${output}" of shape [${type.shape.join(', ')}], which no ` +
        'memory holds.',
    );
  }
  return type;
}
