// Builds a model with an open batch ('N') node by node, with seeded initial weights. Shapes are known while building:
// they are inferred at two batch sizes. builder.ts adds the layers.

import { assert, defined } from '../assert.ts';
import { checkGraph } from './check.ts';
import { type Attributes, batchSymbol, type Dimension, type Graph, type Node, type ValueInfo } from './graph.ts';
import { type Initialization, initialize } from './initialization.ts';
import { neededNodes, usedValues } from './liveness.ts';
import { TypeWalk } from './static.ts';
import { byteLength, type ElementType, scalar, type Tensor, type ValueType, viewBytes, wrap } from './tensor.ts';

/** Options of a {@link GraphWriter}. */
export interface BuilderOptions {
  /** Seeds all initial weights (each also by its own name). Default 0. */
  readonly seed?: number;
  /** False leaves weights zero, in memory that they share: for planning, which needs only sizes. Default true. */
  readonly initialize?: boolean;
}

/** The two batch sizes at which shapes are inferred; dimensions that differ contain the batch. */
const probeSizes = [2, 3] as const;

/** A model under construction. Values are names; node names consist of `operator` and a number. */
export class GraphWriter {
  readonly #name: string;
  readonly #options: Required<BuilderOptions>;
  readonly #inputs: ValueInfo[] = [];
  readonly #initializers = new Map<string, Tensor>();
  readonly #parameters: string[] = [];
  readonly #buffers: string[] = [];
  readonly #nodes: Node[] = [];
  readonly #walks = probeSizes.map(() => new TypeWalk());
  readonly #counts = new Map<string, number>();
  /** The largest array of zeros so far, of which smaller ones are views. */
  #zeros = new ArrayBuffer(0);

  constructor(name: string, options: BuilderOptions = {}) {
    this.#name = name;
    this.#options = { seed: options.seed ?? 0, initialize: options.initialize ?? true };
  }

  /** A graph input; 'N' is the batch. */
  input(name: string, type: ElementType, shape: readonly Dimension[]): string {
    this.#inputs.push({ name: this.#free(name), type, shape });
    probeSizes.forEach((size, index) => {
      const numbers = shape.map((dimension) => {
        assert(typeof dimension === 'number' || dimension === batchSymbol, `input "${name}" has symbol ${dimension}`);
        return dimension === batchSymbol ? size : dimension;
      });
      this.#walks[index]?.setType(name, { type, shape: numbers });
    });
    return name;
  }

  /** A trained tensor. */
  parameter(
    name: string,
    shape: readonly number[],
    initialization: Initialization,
    type: ElementType = 'float32',
  ): string {
    this.#parameters.push(name);
    return this.#changing(name, this.#initial(name, shape, initialization, type));
  }

  /** A tensor that the forward pass replaces, such as a running mean. */
  buffer(
    name: string,
    shape: readonly number[],
    initialization: Initialization,
    type: ElementType = 'float32',
  ): string {
    this.#buffers.push(name);
    return this.#changing(name, this.#initial(name, shape, initialization, type));
  }

  /** A tensor that never changes. */
  constant(value: Tensor, name: string = this.#fresh('constant')): string {
    this.#free(name);
    for (const walk of this.#walks) walk.setConstant(name, value);
    this.#initializers.set(name, value);
    return name;
  }

  /** Writes a node with one output; returns the output's name. */
  node(operator: string, inputs: readonly string[], attributes?: Attributes): string;
  /** Writes a node with `outputCount` outputs; returns their names. */
  node(operator: string, inputs: readonly string[], attributes: Attributes, outputCount: number): readonly string[];
  node(
    operator: string,
    inputs: readonly string[],
    attributes: Attributes = {},
    outputCount?: number,
  ): string | readonly string[] {
    const outputs = this.#append(operator, inputs, attributes, outputCount ?? 1);
    return outputCount === undefined ? defined(outputs[0], 'the output') : outputs;
  }

  /** The shape of a value: 'N' for the batch, '?' for a dimension that depends on the batch in another way. */
  shape(name: string): readonly Dimension[] {
    const [small, large] = this.#walks.map((walk) => walk.type(name).shape);
    return (small ?? []).map((dimension, axis) => {
      if (dimension === large?.[axis]) return dimension;
      return dimension === probeSizes[0] && large?.[axis] === probeSizes[1] ? batchSymbol : '?';
    });
  }

  /** A dimension that is a number; negative axes count from the end. */
  size(name: string, axis: number): number {
    const dimension = this.shape(name).at(axis);
    assert(typeof dimension === 'number', `axis ${axis} of "${name}" is ${dimension}`);
    return dimension;
  }

  /** A scalar constant of x's element type. */
  scalarLike(x: string, value: number): string {
    return this.constant(scalar(this.#type(x).type, value));
  }

  /** The number of nodes written so far. */
  get nodeCount(): number {
    return this.#nodes.length;
  }

  /** The finished graph, without nodes, parameters and constants that no output needs; all inputs are kept. */
  build(outputs: readonly string[]): Graph {
    const nodes = neededNodes(this.#nodes, outputs);
    const used = usedValues(nodes, outputs);
    const graph: Graph = {
      name: this.#name,
      inputs: [...this.#inputs],
      outputs: outputs.map((name) => ({ name, type: this.#type(name).type, shape: this.shape(name) })),
      initializers: new Map([...this.#initializers].filter(([name]) => used.has(name))),
      parameters: this.#parameters.filter((name) => used.has(name)),
      buffers: this.#buffers.filter((name) => used.has(name)),
      nodes,
    };
    checkGraph(graph);
    return graph;
  }

  #append(operator: string, inputs: readonly string[], attributes: Attributes, outputCount: number): readonly string[] {
    const name = this.#fresh(operator);
    const outputs = Array.from({ length: outputCount }, (_, index) =>
      this.#free(index === 0 ? name : `${name}:${index}`),
    );
    const node: Node = { operator, domain: '', name, inputs, outputs, attributes };
    for (const walk of this.#walks) walk.visit(node);
    this.#nodes.push(node);
    return outputs;
  }

  #changing(name: string, value: Tensor): string {
    this.#free(name);
    for (const walk of this.#walks) walk.setType(name, { type: value.type, shape: value.shape });
    this.#initializers.set(name, value);
    return name;
  }

  #initial(name: string, shape: readonly number[], rule: Initialization, type: ElementType): Tensor {
    if (this.#options.initialize) return initialize(name, shape, rule, { seed: this.#options.seed, type });
    const bytes = byteLength({ type, shape });
    if (this.#zeros.byteLength < bytes) this.#zeros = new ArrayBuffer(bytes);
    return wrap(type, shape, viewBytes(type, new Uint8Array(this.#zeros, 0, bytes)));
  }

  #type(name: string): ValueType {
    return defined(this.#walks[0], 'a walk').type(name);
  }

  #fresh(stem: string): string {
    let name: string;
    do {
      const count = (this.#counts.get(stem) ?? 0) + 1;
      this.#counts.set(stem, count);
      name = `${stem}_${count}`;
    } while (this.#walks[0]?.has(name));
    return name;
  }

  #free(name: string): string {
    assert(name !== '' && !this.#walks[0]?.has(name), `value name "${name}" is taken`);
    return name;
  }
}
