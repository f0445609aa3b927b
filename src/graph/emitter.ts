// Writes graphs node by node; every value's static type is known as soon as it is written. Used by autodiff, losses,
// optimizers and lowering. To build models with a symbolic batch see builder.ts.

import { assert, defined } from '../assert.ts';
import type { Attributes, Graph, Node, ValueInfo } from './graph.ts';
import { isOperator, operators } from './operators/index.ts';
import { type ElementType, int64s, scalar, type Tensor, type ValueType } from './tensor.ts';

/** A graph under construction with static shapes. Generated names are unique within it. */
export class Emitter {
  readonly #types = new Map<string, ValueType>();
  readonly #inputs: ValueInfo[] = [];
  readonly #initializers = new Map<string, Tensor>();
  readonly #nodes: Node[] = [];
  readonly #shared = new Map<string, string>();
  #counter = 0;
  readonly #prefix: string;
  /** Results of the nodes that `emit` wrote, by what they compute; undefined if equal nodes are not shared. */
  readonly #written: Map<string, string> | undefined;

  /**
   * `prefix` starts all generated names. `shareNodes`: `emit` returns the result of an equal node that it wrote before,
   * if any.
   */
  constructor(prefix = '', { shareNodes = false }: { readonly shareNodes?: boolean } = {}) {
    this.#prefix = prefix;
    this.#written = shareNodes ? new Map() : undefined;
  }

  /** Declares a graph input. */
  input(name: string, type: ElementType, shape: readonly number[]): string {
    this.#claim(name, { type, shape });
    this.#inputs.push({ name, type, shape });
    return name;
  }

  /** Adds a named constant. */
  initializer(name: string, value: Tensor): string {
    this.#claim(name, value);
    this.#initializers.set(name, value);
    return name;
  }

  /** A small constant under a generated name; equal constants of up to 16 elements are shared. */
  constant(value: Tensor): string {
    if (value.data.length > 16) return this.initializer(this.fresh('constant'), value);
    const elements = Array.from(value.data as ArrayLike<number | bigint>, (x) => (Object.is(x, -0) ? '-0' : String(x)));
    const key = `${value.type}[${value.shape.join(',')}]${elements.join(',')}`;
    const known = this.#shared.get(key);
    if (known !== undefined) return known;
    const name = this.initializer(this.fresh('constant'), value);
    this.#shared.set(key, name);
    return name;
  }

  /** A scalar constant of the same element type as `like`. */
  scalarLike(like: string, value: number): string {
    return this.constant(scalar(this.type(like).type, value));
  }

  /** An int64 vector constant, the form of shapes and axes. */
  int64s(values: readonly number[]): string {
    return this.constant(int64s(values));
  }

  /** Writes a node with one output and returns that output's name. */
  emit(operator: string, inputs: readonly string[], attributes: Attributes = {}, domain = ''): string {
    const write = (): string => defined(this.emitAll(operator, inputs, 1, attributes, domain)[0], 'the output');
    return this.#sharing(operator, inputs, attributes, domain, write);
  }

  /** `emit` for a node of any domain whose result's type the caller knows. */
  emitTyped(
    operator: string,
    inputs: readonly string[],
    type: ValueType,
    attributes: Attributes = {},
    domain = '',
  ): string {
    return this.#sharing(operator, inputs, attributes, domain, () => {
      const name = this.fresh(operator);
      this.appendTyped({ operator, domain, name, inputs, outputs: [name], attributes }, [type]);
      return name;
    });
  }

  #sharing(
    operator: string,
    inputs: readonly string[],
    attributes: Attributes,
    domain: string,
    write: () => string,
  ): string {
    if (this.#written === undefined) return write();
    const key = JSON.stringify([
      domain,
      operator,
      inputs,
      Object.entries(attributes).sort(([a], [b]) => (a < b ? -1 : 1)),
    ]);
    const known = this.#written.get(key) ?? write();
    this.#written.set(key, known);
    return known;
  }

  /** Writes a node with `outputCount` outputs. */
  emitAll(
    operator: string,
    inputs: readonly string[],
    outputCount: number,
    attributes: Attributes = {},
    domain = '',
  ): readonly string[] {
    const name = this.fresh(operator);
    const outputs = Array.from({ length: outputCount }, (_, index) => (outputCount === 1 ? name : `${name}:${index}`));
    this.append({ operator, domain, name, inputs, outputs, attributes });
    return outputs;
  }

  /** Appends a node unchanged (its names must be free), inferring its outputs' types. */
  append(node: Node): void {
    const types = node.inputs.map((input) => (input === '' ? undefined : this.type(input)));
    const constants = node.inputs.map((input) => this.#initializers.get(input));
    assert(
      node.domain === '' && isOperator(node.operator),
      `no type rule for ${node.domain}.${node.operator}; use appendTyped`,
    );
    const inferred = operators[node.operator].infer(node, types, constants);
    this.appendTyped(node, inferred);
  }

  /** Appends a node of any domain whose outputs' types the caller knows. */
  appendTyped(node: Node, outputTypes: readonly ValueType[]): void {
    node.outputs.forEach((output, index) => {
      if (output !== '') this.#claim(output, defined(outputTypes[index], `the type of ${output}`));
    });
    this.#nodes.push(node);
  }

  /** The static type of a value. */
  type(name: string): ValueType {
    return defined(this.#types.get(name), `value ${name}`);
  }

  /** The static shape of a value. */
  shape(name: string): readonly number[] {
    return this.type(name).shape;
  }

  /** True if the value exists. */
  has(name: string): boolean {
    return this.#types.has(name);
  }

  /** The constant behind a name, if it is one. */
  constantValue(name: string): Tensor | undefined {
    return this.#initializers.get(name);
  }

  /** A name that is not used yet. */
  fresh(stem: string): string {
    let name: string;
    do name = `${this.#prefix}${stem}_${this.#counter++}`;
    while (this.#types.has(name));
    return name;
  }

  /** The inputs declared so far. */
  get inputs(): readonly ValueInfo[] {
    return this.#inputs;
  }

  /** The constants added so far. */
  get initializers(): ReadonlyMap<string, Tensor> {
    return this.#initializers;
  }

  /** The nodes written so far. */
  get nodes(): readonly Node[] {
    return this.#nodes;
  }

  /**
   * The finished graph with these outputs, without nodes and initializers that no output needs; all inputs are kept.
   */
  build(name: string, outputs: readonly string[]): Graph {
    const needed = new Set(outputs);
    const nodes: Node[] = [];
    for (let index = this.#nodes.length - 1; index >= 0; index--) {
      const node = defined(this.#nodes[index], 'node');
      if (!node.outputs.some((output) => needed.has(output))) continue;
      nodes.push(node);
      for (const input of node.inputs) needed.add(input);
    }
    nodes.reverse();
    const initializers = new Map([...this.#initializers].filter(([key]) => needed.has(key)));
    return {
      name,
      inputs: [...this.#inputs],
      outputs: outputs.map((output) => ({ name: output, ...this.type(output) })),
      initializers,
      parameters: [],
      buffers: [],
      nodes,
    };
  }

  #claim(name: string, type: ValueType): void {
    assert(name !== '' && !this.#types.has(name), `value name "${name}" is taken`);
    this.#types.set(name, { type: type.type, shape: type.shape });
  }
}
