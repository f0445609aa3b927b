// Frees a model that was exported for one batch size from it. Such models contain the batch size in the targets of
// Reshape and Expand and in constants. Walks the graph at two batch sizes at once to find the batch in every value, and
// adapts such nodes.

import { assert } from '../assert.ts';
import { InputError } from '../errors.ts';
import {
  type Attributes,
  batchSymbol,
  type Dimension,
  type Graph,
  int,
  intAttribute,
  type Node,
  type ValueInfo,
} from './graph.ts';
import { freshName, neededNodes, usedValues } from './liveness.ts';
import {
  axisAt,
  FixedBatch,
  firstSample,
  freedDifference,
  gathering,
  indexComponent,
  joining,
  oneElement,
  recurrent,
  reshaping,
  sameValues,
  statePositions,
} from './rebatch-parts.ts';
import { instantiate, refuseUnsupported, TypeWalk } from './static.ts';
import { elementCount, int64s, sameShape, scalar, type Tensor, toNumbers, type ValueType } from './tensor.ts';

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

class Rebatcher {
  readonly #graph: Graph;
  readonly #firstInput: string;
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
    this.#firstInput = graph.inputs[0]?.name ?? '';
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

  #stride(name: string): number {
    const place = this.#place(name);
    if (place === undefined) throw new FixedBatch(name);
    return place.inner * elementCount(this.#here.type(name).shape.slice(place.axis + 1));
  }

  #adapted(node: Node): Node {
    const target = node.inputs[1] ?? '';
    const constantTarget = sameValues(this.#here.constants.get(target), this.#there.constants.get(target));
    const input = node.inputs[0] ?? '';
    if (node.operator === 'Reshape' && constantTarget && this.#place(input) !== undefined)
      return this.#adaptReshape(node);
    if (node.operator === 'Expand' && constantTarget) return this.#adaptExpand(node);
    if (recurrent.has(node.operator)) return this.#adaptStates(node);
    const gathered = gathering.has(node.operator) ? this.#adaptGathering(node) : node;
    if (gathered !== node) return gathered;
    try {
      this.#there.visit(node);
      return node;
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      return this.#adaptConstants(node);
    }
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
    const from = { shape: this.#here.type(input).shape, axis: this.#place(input)?.axis ?? 0 };
    const axis = axisAt(shape, stride, { batchSize: this.#batchSize, from });
    if (axis === undefined) throw new FixedBatch('reshape');
    const target = shape.map((dimension, index) => (index === axis ? -1 : dimension));
    return { ...node, inputs: [input, this.#constant(int64s(target), `${node.name}.target`)], attributes: {} };
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
      if (!statePositions.includes(position) || name === '') return name;
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
      if (name !== '' && this.#batchSize === 1) return this.#repeated(name, this.#here.type(name), node);
      const value = this.#there.constants.get(name);
      if (value === undefined) return name;
      const first = firstSample(value, this.#batchSize);
      return first === undefined ? name : this.#constant(first, `${name}.sample`);
    });
    const adapted = { ...node, inputs: joining.has(node.operator) ? this.#repeatForConcat(node, inputs) : inputs };
    this.#there.visit(adapted);
    return adapted;
  }

  /**
   * A node that selects along the batch's axis, as `x[arange(N), best]` does. Exported for one sample, its indices
   * count within it, and their first axis is the batch: the sample's place is added. Others would mix samples.
   */
  #adaptGathering(node: Node): Node {
    const [data = '', indices = '', ...rest] = node.inputs;
    const place = this.#place(data);
    if (place === undefined) return node;
    const { type, shape } = this.#here.type(indices);
    const components = shape.at(-1) ?? 0;
    const rank = this.#here.type(data).shape.length;
    const component = indexComponent(node, place.axis, { rank, components });
    if (component === undefined) return node;
    const isFirst = (this.#place(indices)?.axis ?? (shape[0] === 1 ? 0 : -1)) === 0;
    if (this.#batchSize !== 1 || !isFirst || type !== 'int64' || node.operator === 'GatherElements')
      throw new FixedBatch(node.name);
    const made = (operator: string, inputs: readonly string[], stem: string, attributes: Attributes = {}): string => {
      const output = freshName(`${node.name}.${stem}`, this.#names);
      this.#add({ operator, domain: '', name: output, inputs, outputs: [output], attributes });
      return output;
    };
    const number = (value: number): string => this.#constant(scalar('int64', value), `${node.name}.number`);
    const size = made('Shape', [this.#firstInput], 'size', { start: int(0), end: int(1) });
    const count = made('Squeeze', [size], 'count');
    const samples = made('Range', [number(0), count, number(1)], 'samples');
    const column = this.#constant(int64s([-1, ...shape.slice(1).map(() => 1)]), `${node.name}.column`);
    const step = Array.from({ length: components }, (_, index) => (index === component ? place.inner : 0));
    const stride = node.operator === 'Gather' ? number(place.inner) : this.#constant(int64s(step), `${node.name}.step`);
    const places = made('Mul', [made('Reshape', [samples, column], 'column'), stride], 'places');
    return { ...node, inputs: [data, made('Add', [indices, places], 'indices'), ...rest] };
  }

  /**
   * A constant or weight of a model exported for one sample with one sample's entries (of each attention head) on an
   * axis in which another input has those of all samples: repeated for each sample, as equal elements to expand are.
   */
  #repeated(name: string, { shape }: ValueType, node: Node): string {
    if (this.#place(name) !== undefined) return name;
    const same = node.operator === 'Expand' ? oneElement(this.#here.constants.get(name)) : undefined;
    if (same !== undefined) return this.#constant(same, `${name}.element`);
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

  /** Inputs (of Concat) that have one entry for all samples, repeated to the size of the one with the batch. */
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

  #inserted(operator: 'Expand' | 'Tile', name: string, sizes: string): string {
    const result = freshName(`${name}.repeated`, this.#names);
    this.#add({ operator, domain: '', name: result, inputs: [name, sizes], outputs: [result], attributes: {} });
    return result;
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
