// Frees a model that was exported for one batch size from it. Such models contain the batch size in the targets of
// Reshape and Expand and in constants. Walks the graph at two batch sizes at once to find the batch in every value, and
// adapts such nodes.

import { assert } from '../assert.ts';
import { InputError } from '../errors.ts';
import { batchSymbol, type Dimension, type Graph, int, intAttribute, type Node, type ValueInfo } from './graph.ts';
import { freshName, neededNodes, usedValues } from './liveness.ts';
import { freedDifference } from './rebatch-check.ts';
import { instantiate, refuseUnsupported, TypeWalk } from './static.ts';
import { allocate, elementCount, int64s, sameShape, type Tensor, toNumbers, wrap } from './tensor.ts';

/** Thrown within this file if a model cannot be freed. */
class FixedBatch extends Error {}

/**
 * The graph with 'N' as the first dimension of its inputs (of those whose first dimension equals the first input's) and
 * with its nodes adapted. If that is not possible, or would mix samples, returns the graph itself with `fixedBatch`.
 * Takes graphs whose dimensions are all numbers. Throws InputError as `instantiate` does, for graphs that are invalid
 * at their own batch size.
 */
export function rebatch(graph: Graph): Graph {
  const batchSize = graph.inputs[0]?.shape[0];
  assert(
    graph.inputs.every(({ shape }) => shape.every((dimension) => typeof dimension === 'number')),
    `graph "${graph.name}" has symbols`,
  );
  if (typeof batchSize !== 'number') return graph;
  instantiate(graph, batchSize);
  try {
    return new Rebatcher(graph, batchSize).run();
  } catch (error) {
    if (error instanceof FixedBatch || error instanceof InputError) return { ...graph, fixedBatch: batchSize };
    throw error;
  }
}

/**
 * The batch in a shape: its axis, how often it is contained in that dimension, and how many elements of that dimension
 * one sample's entry spans.
 */
interface Place {
  readonly axis: number;
  readonly inner: number;
}

const reshaping: ReadonlySet<string> = new Set(['Reshape', 'Flatten', 'Squeeze', 'Unsqueeze']);
const recurrent: ReadonlySet<string> = new Set(['GRU', 'LSTM', 'RNN']);
/** The positions of a recurrent node's initial states. */
const statePositions = [5, 6] as const;

class Rebatcher {
  readonly #graph: Graph;
  readonly #batchSize: number;
  /** Another batch size that is unlikely to occur in a model. */
  readonly #otherSize: number;
  readonly #here: TypeWalk;
  readonly #there: TypeWalk;
  readonly #names: Set<string>;
  readonly #initializers: Map<string, Tensor>;
  readonly #nodes: Node[] = [];
  /**
   * By value in which the batch is merged with another dimension: how many elements of it one step in the batch spans.
   */
  readonly #inner = new Map<string, number>();

  constructor(graph: Graph, batchSize: number) {
    this.#graph = graph;
    this.#batchSize = batchSize;
    this.#otherSize = 2 * batchSize + 1;
    const [here, there] = [batchSize, this.#otherSize].map((size) =>
      TypeWalk.from(
        graph,
        graph.inputs.map((input) => this.#atSize(input, size)),
      ),
    );
    this.#here = here as TypeWalk;
    this.#there = there as TypeWalk;
    this.#initializers = new Map(graph.initializers);
    this.#names = new Set([
      ...graph.inputs.map(({ name }) => name),
      ...graph.initializers.keys(),
      ...graph.nodes.flatMap(({ name, outputs }) => [name, ...outputs]),
    ]);
  }

  run(): Graph {
    const outputNames = this.#graph.outputs.map(({ name }) => name);
    const nodes = neededNodes(this.#graph.nodes, outputNames);
    refuseUnsupported(nodes);
    for (const node of nodes) this.#add(this.#adapted(node));
    const first = outputNames[0] ?? '';
    const place = this.#place(first);
    if (place === undefined || this.#here.type(first).shape[place.axis] !== this.#batchSize)
      throw new FixedBatch(`output ${first}`);
    const used = usedValues(this.#nodes, outputNames);
    const result: Graph = {
      ...this.#graph,
      inputs: this.#graph.inputs.map((input) =>
        this.#hasBatch(input) ? { ...input, shape: [batchSymbol, ...input.shape.slice(1)] } : input,
      ),
      outputs: this.#graph.outputs.map((output) => ({ ...output, shape: this.#openShape(output.name) })),
      initializers: new Map([...this.#initializers].filter(([name]) => used.has(name))),
      nodes: this.#nodes,
    };
    const problem = freedDifference(this.#graph, result, this.#batchSize);
    if (problem !== undefined) throw new FixedBatch(problem);
    return result;
  }

  #hasBatch(input: ValueInfo): boolean {
    return input.shape[0] === this.#batchSize;
  }

  #atSize(input: ValueInfo, size: number): ValueInfo & { shape: readonly number[] } {
    const shape = input.shape.map((dimension, axis) =>
      axis === 0 && this.#hasBatch(input) ? size : (dimension as number),
    );
    return { ...input, shape };
  }

  #openShape(name: string): readonly Dimension[] {
    const place = this.#place(name);
    return this.#here
      .type(name)
      .shape.map((dimension, axis) =>
        axis === place?.axis ? (dimension === this.#batchSize ? batchSymbol : `${name}.${axis}`) : dimension,
      );
  }

  /**
   * The batch's place in a value, if its size depends on it. Throws if it is in two dimensions or in none that grows
   * with it.
   */
  #place(name: string): Place | undefined {
    const [here, there] = [this.#here.type(name).shape, this.#there.type(name).shape];
    if (sameShape(here, there)) return undefined;
    const axes = here.flatMap((dimension, axis) => (dimension === there[axis] ? [] : [axis]));
    const axis = axes[0];
    if (here.length !== there.length || axes.length !== 1 || axis === undefined) throw new FixedBatch(name);
    const count = (here[axis] as number) / this.#batchSize;
    if (!Number.isInteger(count) || count * this.#otherSize !== there[axis]) throw new FixedBatch(name);
    return { axis, inner: count === 1 ? 1 : (this.#inner.get(name) ?? (axis === 0 ? count : 1)) };
  }

  #add(node: Node): void {
    this.#here.visit(node);
    this.#there.visit(node);
    this.#nodes.push(node);
    for (const output of node.outputs) if (output !== '') this.#learnInner(node, output);
  }

  /** Records the batch's place in a result in which it is merged with other dimensions. */
  #learnInner(node: Node, output: string): void {
    const place = this.#place(output);
    const shape = this.#here.type(output).shape;
    if (place === undefined || shape[place.axis] === this.#batchSize) return;
    if (reshaping.has(node.operator)) {
      this.#inner.set(output, this.#stride(node.inputs[0] as string) / elementCount(shape.slice(place.axis + 1)));
      return;
    }
    const count = (name: string): number =>
      (this.#here.type(name).shape[this.#place(name)?.axis ?? -1] ?? 0) / this.#batchSize;
    const source = node.inputs.find(
      (name) => name !== '' && count(name) === (shape[place.axis] as number) / this.#batchSize,
    );
    if (source !== undefined) this.#inner.set(output, (this.#place(source) as Place).inner);
  }

  /** The distance in memory, in elements, between neighbouring samples. */
  #stride(name: string): number {
    const place = this.#place(name);
    if (place === undefined) throw new FixedBatch(name);
    return place.inner * elementCount(this.#here.type(name).shape.slice(place.axis + 1));
  }

  #adapted(node: Node): Node {
    const constantTarget =
      this.#there.constants.has(node.inputs[1] ?? '') && this.#isSameConstant(node.inputs[1] as string);
    const input = node.inputs[0] ?? '';
    if (node.operator === 'Reshape' && constantTarget && this.#place(input) !== undefined)
      return this.#adaptReshape(node);
    if (node.operator === 'Expand' && constantTarget) return this.#adaptExpand(node);
    if (recurrent.has(node.operator)) return this.#adaptStates(node);
    try {
      this.#there.visit(node);
      return node;
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      return this.#adaptConstants(node);
    }
  }

  #isSameConstant(name: string): boolean {
    const [here, there] = [this.#here.constants.get(name), this.#there.constants.get(name)];
    return (
      here !== undefined &&
      there !== undefined &&
      sameShape(here.shape, there.shape) &&
      String(here.data) === String(there.data)
    );
  }

  /**
   * A Reshape to numbers: puts −1 in the result's dimension that contains the batch, found by following it through
   * memory.
   */
  #adaptReshape(node: Node): Node {
    const input = node.inputs[0] as string;
    this.#here.visit(node);
    const shape = this.#here.type(node.outputs[0] as string).shape;
    const stride = this.#stride(input);
    const axis = this.#axisAt(shape, stride, this.#place(input)?.axis ?? 0, this.#here.type(input).shape.length);
    const target = shape.map((dimension, index) => (index === axis ? -1 : dimension));
    return { ...node, inputs: [input, this.#constant(int64s(target), `${node.name}.target`)], attributes: {} };
  }

  /**
   * The dimension of `shape` that contains the batch if neighbouring samples are `stride` elements apart. For a batch
   * of one several may; then prefers a dimension of its own to a merged one, the input's axis if the ranks agree, and
   * the foremost.
   */
  #axisAt(shape: readonly number[], stride: number, inputAxis: number, inputRank: number): number {
    const candidates = shape.flatMap((dimension, axis) => {
      const behind = elementCount(shape.slice(axis + 1));
      return stride % behind === 0 && (behind * dimension) % (stride * this.#batchSize) === 0 ? [axis] : [];
    });
    const own = candidates.filter((axis) => shape[axis] === this.#batchSize);
    const choices = own.length > 0 ? own : candidates;
    const best = choices.includes(inputAxis) && (own.length > 0 || shape.length === inputRank) ? inputAxis : choices[0];
    if (best === undefined) throw new FixedBatch('reshape');
    return best;
  }

  /**
   * An Expand to numbers: 1 (which keeps a dimension) if the batch is there already, the input's batch size if the
   * Expand adds it.
   */
  #adaptExpand(node: Node): Node {
    const [input, target] = node.inputs as readonly [string, string];
    const sizes = toNumbers(this.#here.constants.get(target) as Tensor);
    const shape = this.#here.type(input).shape;
    const place = this.#place(input);
    const offset = sizes.length - shape.length;
    if (place !== undefined) {
      if (place.axis + offset < 0 || sizes[place.axis + offset] === 1) return node;
      const kept = sizes.map((size, axis) => (axis === place.axis + offset ? 1 : size));
      return { ...node, inputs: [input, this.#constant(int64s(kept), `${node.name}.target`)] };
    }
    if (this.#batchSize === 1 || sizes[0] !== this.#batchSize || (offset <= 0 && shape[-offset] !== 1)) return node;
    return { ...node, inputs: [input, this.#withBatch(sizes, { axis: 0, from: this.#firstInput, fromAxis: 0, node })] };
  }

  /**
   * A recurrent node whose initial states are the same for every sample: zeros, which are the default, are left out;
   * others, of a model exported for one sample, are expanded to the batch.
   */
  #adaptStates(node: Node): Node {
    const [x = ''] = node.inputs;
    const axis = intAttribute(node, 'layout', 0) === 0 ? 1 : 0;
    const inputs = node.inputs.map((name, position) => {
      if (!statePositions.some((one) => one === position) || name === '') return name;
      if (this.#place(x)?.axis !== axis || this.#place(name) !== undefined) return name;
      const value = this.#here.constants.get(name);
      if (value?.data.every((element: number | bigint) => Number(element) === 0) === true) return '';
      const { shape } = this.#here.type(name);
      if (this.#batchSize !== 1 || shape[axis] !== 1) return name;
      return this.#inserted(
        'Expand',
        name,
        this.#withBatch(
          shape.map(() => 1),
          { axis, from: x, fromAxis: axis, node },
        ),
      );
    });
    return { ...node, inputs };
  }

  /**
   * A node that does not fit at another batch size: constants repeat one sample for every sample of the batch, or
   * Concat requires it.
   */
  #adaptConstants(node: Node): Node {
    const inputs = node.inputs.map((name) => {
      const value = this.#there.constants.get(name);
      if (value === undefined) return name;
      return this.#batchSize === 1 ? this.#repeated(name, value, node) : this.#oneSample(name, value);
    });
    const adapted = { ...node, inputs: node.operator === 'Concat' ? this.#repeatForConcat(node, inputs) : inputs };
    this.#there.visit(adapted);
    return adapted;
  }

  /** The constant with one entry in place of equal entries for every sample, or the constant unchanged. */
  #oneSample(name: string, { type, shape, data }: Tensor): string {
    if (shape[0] !== this.#batchSize) return name;
    const size = elementCount(shape.slice(1));
    for (let index = size; index < data.length; index++) if (data[index] !== data[index - size]) return name;
    const first = allocate(type, size);
    for (let index = 0; index < size; index++)
      (first as (number | bigint)[] & typeof first)[index] = data[index] as number & bigint;
    return this.#constant(wrap(type, [1, ...shape.slice(1)], first), `${name}.sample`);
  }

  /**
   * A constant of a model exported for one sample with the entries of one sample (of each attention head) on an axis in
   * which another input has those of all samples: repeated for each sample.
   */
  #repeated(name: string, { shape }: Tensor, node: Node): string {
    for (const other of node.inputs) {
      const place = other === '' || other === name ? undefined : this.#place(other);
      if (place === undefined) continue;
      const sizes = this.#here.type(other).shape;
      const axis = place.axis - sizes.length + shape.length;
      const count = sizes[place.axis] as number;
      if (count === 1 || shape[axis] !== count || place.inner !== count) continue;
      const repeats = this.#withBatch(
        shape.map(() => 1),
        { axis, from: this.#firstInput, fromAxis: 0, node },
      );
      return this.#inserted('Tile', name, repeats);
    }
    return name;
  }

  /** Inputs of Concat that have one entry for all samples, repeated to the size of the one with the batch. */
  #repeatForConcat(node: Node, inputs: readonly string[]): readonly string[] {
    const model = inputs.find((name) => this.#place(name) !== undefined);
    if (model === undefined) throw new FixedBatch(node.name);
    const { axis } = this.#place(model) as Place;
    const ones = this.#here.type(model).shape.map(() => 1);
    return inputs.map((name) => {
      if (this.#place(name) !== undefined || this.#there.type(name).shape[axis] !== 1) return name;
      return this.#inserted('Expand', name, this.#withBatch(ones, { axis, from: model, fromAxis: axis, node }));
    });
  }

  /** A new node's result. */
  #inserted(operator: 'Expand' | 'Tile', name: string, sizes: string): string {
    const result = freshName(`${name}.repeated`, this.#names);
    this.#add({ operator, domain: '', name: result, inputs: [name, sizes], outputs: [result], attributes: {} });
    return result;
  }

  get #firstInput(): string {
    return this.#graph.inputs[0]?.name ?? '';
  }

  /** `sizes`, with the size of `from` on `fromAxis` at position `axis`, computed in the graph. */
  #withBatch(
    sizes: readonly number[],
    { axis, from, fromAxis, node }: { axis: number; from: string; fromAxis: number; node: Node },
  ): string {
    const size = freshName(`${node.name}.batch`, this.#names);
    this.#add({
      operator: 'Shape',
      domain: '',
      name: size,
      inputs: [from],
      outputs: [size],
      attributes: { start: int(fromAxis), end: int(fromAxis + 1) },
    });
    const parts = [sizes.slice(0, axis), sizes.slice(axis + 1)].map((part) =>
      part.length === 0 ? [] : [this.#constant(int64s(part), `${node.name}.sizes`)],
    );
    const target = freshName(`${node.name}.target`, this.#names);
    const inputs = [...(parts[0] ?? []), size, ...(parts[1] ?? [])];
    this.#add({
      operator: 'Concat',
      domain: '',
      name: target,
      inputs,
      outputs: [target],
      attributes: { axis: int(0) },
    });
    return target;
  }

  #constant(value: Tensor, stem: string): string {
    const name = freshName(stem, this.#names);
    this.#initializers.set(name, value);
    this.#here.setConstant(name, value);
    this.#there.setConstant(name, value);
    return name;
  }
}
