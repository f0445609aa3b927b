// What nodes do with each part of a vector, one node does with the vector: a stage's small tensors come and go packed
// (runtime/device/packs.ts), so that the moving statistics of 69 batch normalizations are six nodes each between a
// `Split` and a `Concat`, and three nodes in all after this. Bit by bit the same numbers; fewer kernels to create and
// to start.

import type { Graph, Node } from '../graph/graph.ts';
import { intAttribute } from '../graph/graph.ts';
import { freshName, neededNodes, producers } from '../graph/liveness.ts';
import { sameShape, type Tensor, tensorBytes, type ValueType } from '../graph/tensor.ts';

/** Element by element, the same for an element whatever stands beside it. */
const elementwise = new Set(['Add', 'Sub', 'Mul', 'Div', 'Neg', 'Relu', 'Sqrt', 'Reciprocal', 'Abs', 'Exp', 'Log']);

/** Fewer parts are left as they are. */
const leastParts = 4;

/** The same computation; `typesOf` tells the types of its values, as far as they are known. */
export function wholeVectors(graph: Graph, typesOf: () => ReadonlyMap<string, ValueType>): Graph {
  return graph.nodes.some(isWide) ? new Widening(graph, typesOf()).graph() : graph;
}

/** True for a node that puts many parts together or takes them apart. */
const isWide = (node: Node): boolean =>
  node.domain === '' &&
  (node.operator === 'Concat' ? node.inputs : node.operator === 'Split' ? node.outputs : []).length >= leastParts &&
  intAttribute(node, 'axis', 0) === 0;

class Widening {
  readonly #graph: Graph;
  readonly #types: ReadonlyMap<string, ValueType>;
  readonly #makers: ReadonlyMap<string, Node>;
  readonly #readers = new Map<string, Node[]>();
  readonly #outputs: ReadonlySet<string>;
  readonly #taken: Set<string>;
  /** What stands in place of a node, or behind it. */
  readonly #instead = new Map<Node, readonly Node[]>();
  readonly #behind = new Map<Node, Node[]>();

  constructor(graph: Graph, types: ReadonlyMap<string, ValueType>) {
    this.#graph = graph;
    this.#types = types;
    this.#makers = producers(graph.nodes);
    for (const node of graph.nodes) {
      for (const name of new Set(node.inputs)) {
        const readers = this.#readers.get(name);
        if (readers === undefined) this.#readers.set(name, [node]);
        else readers.push(node);
      }
    }
    this.#outputs = new Set(graph.outputs.map(({ name }) => name));
    this.#taken = new Set([...types.keys(), ...graph.nodes.flatMap(({ name, outputs }) => [name, ...outputs])]);
  }

  graph(): Graph {
    const { nodes } = this.#graph;
    for (const node of nodes) {
      if (!isWide(node)) continue;
      if (node.operator === 'Concat') this.#join(node);
      else this.#part(node);
    }
    const replaced = nodes.flatMap((node) => [
      ...(this.#instead.get(node) ?? [node]),
      ...(this.#behind.get(node) ?? []),
    ]);
    return { ...this.#graph, nodes: neededNodes(replaced, this.#outputs) };
  }

  /** Concat(f(a₁, b₁), f(a₂, b₂), …) = f(Concat(a₁, a₂, …), Concat(b₁, b₂, …)). */
  #join(concat: Node): void {
    const first = this.#sameWork(concat.inputs);
    if (first === undefined) return;
    const written: Node[] = [];
    this.#writeJoined(concat.inputs, first, concat.outputs[0] as string, written);
    this.#instead.set(concat, written);
  }

  /**
   * The node that makes the first of these values, if all are made by nodes that do the same, for vectors of one length
   * and for nobody else.
   */
  #sameWork(values: readonly string[]): Node | undefined {
    const first = this.#makers.get(values[0] as string);
    if (values.length < leastParts || first === undefined || first.domain !== '' || !elementwise.has(first.operator))
      return undefined;
    const isSame = values.every((value) => {
      const node = this.#makers.get(value);
      const type = this.#types.get(value);
      return (
        node?.operator === first.operator &&
        node.domain === '' &&
        type?.shape.length === 1 &&
        this.#readers.get(value)?.length === 1 &&
        !this.#outputs.has(value) &&
        node.inputs.every((input, place) => this.#isPart(input, type) || this.#isSameScalar(input, first.inputs[place]))
      );
    });
    // Each operand is a vector everywhere, or the same number everywhere.
    const operands = first.inputs.map((_, place) =>
      values.map((value) => this.#makers.get(value)?.inputs[place] as string),
    );
    const isEven = operands.every((names, place) => {
      const scalars = names.filter((name) => this.#isSameScalar(name, first.inputs[place])).length;
      return scalars === 0 || scalars === names.length;
    });
    return isSame && isEven ? first : undefined;
  }

  #isPart(name: string, { type, shape }: ValueType): boolean {
    const known = this.#types.get(name);
    return (
      known !== undefined && known.type === type && sameShape(known.shape, shape) && this.#scalar(name) === undefined
    );
  }

  /** The constant of one element of that name. */
  #scalar(name: string | undefined): Tensor | undefined {
    const value = this.#graph.initializers.get(name ?? '');
    return value !== undefined && value.data.length === 1 && value.shape.length <= 1 ? value : undefined;
  }

  #isSameScalar(a: string, b: string | undefined): boolean {
    const [value, other] = [this.#scalar(a), this.#scalar(b)];
    if (value === undefined || other === undefined) return false;
    return a === b || (value.type === other.type && sameBytes(tensorBytes(value), tensorBytes(other)));
  }

  #writeJoined(values: readonly string[], first: Node, output: string, written: Node[]): void {
    const inputs = first.inputs.map((input, place) => {
      if (this.#scalar(input) !== undefined) return input;
      return this.#joined(
        values.map((value) => this.#makers.get(value)?.inputs[place] as string),
        written,
      );
    });
    written.push({ ...first, name: this.#fresh(`${first.operator} of all`), inputs, outputs: [output] });
  }

  /** The name of these vectors one behind the other. */
  #joined(values: readonly string[], written: Node[]): string {
    const source = this.#makers.get(values[0] as string);
    if (
      source !== undefined &&
      isWide(source) &&
      source.operator === 'Split' &&
      source.outputs.join('\0') === values.join('\0')
    )
      return source.inputs[0] as string;
    const output = this.#fresh('joined');
    const first = this.#sameWork(values);
    if (first === undefined) {
      const node = { operator: 'Concat', domain: '', name: output, inputs: values, outputs: [output] };
      written.push({ ...node, attributes: { axis: { type: 'int', value: 0 } } });
    } else this.#writeJoined(values, first, output, written);
    return output;
  }

  /** f(a₁), f(a₂), … of parts of a vector are parts of f of the vector. */
  #part(split: Node): void {
    const readers = split.outputs.map((part) =>
      this.#readers.get(part)?.find(({ operator, domain }) => operator === 'Neg' && domain === ''),
    );
    if (readers.filter((node) => node !== undefined).length < leastParts) return;
    const whole = this.#fresh('Neg of all');
    const outputs = readers.map((node, index) => node?.outputs[0] ?? this.#fresh(`unread ${index}`));
    const negation = {
      operator: 'Neg',
      domain: '',
      name: whole,
      inputs: split.inputs.slice(0, 1),
      outputs: [whole],
      attributes: {},
    };
    const parts = { ...split, name: this.#fresh('Split of all'), inputs: [whole, ...split.inputs.slice(1)], outputs };
    for (const node of readers) if (node !== undefined) this.#instead.set(node, []);
    this.#behind.set(split, [negation, parts]);
  }

  #fresh(stem: string): string {
    return freshName(stem, this.#taken);
  }
}

function sameBytes(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((byte, index) => byte === b[index]);
}
