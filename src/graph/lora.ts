// Low-rank adapters (LoRA, Hu et al. 2022) as a rewriting of any graph: beside a product with a weight W stands a
// product with B·A, of rank r, added to it with a factor: y = x·Wᵀ + s·(x·Aᵀ)·Bᵀ. W itself stays as it is. A is drawn,
// B begins as zeros, as in PEFT, so that the model begins as it was. Weights can be merged back: W + s·B·A.

import { assert, defined } from '../assert.ts';
import { type Attributes, type Graph, int, intAttribute, ints, type Node } from './graph.ts';
import { fanInUniform, initialize, zeros } from './initialization.ts';
import { freshName, producers } from './liveness.ts';
import { elementCount, scalar, type Tensor } from './tensor.ts';

/** What is put beside one weight. */
export interface AdapterOptions {
  readonly rank: number;
  /** s = alpha / rank, or what an adapter of PEFT says. */
  readonly scaling: number;
  /** Of the adapter's input, while training. */
  readonly dropout: number;
}

/** An adapter of a graph. */
export interface Adapter extends AdapterOptions {
  /** The weight that it is beside. */
  readonly weight: string;
  /** Names of A, [rank, inputs…], and B, [outputs, rank…]. */
  readonly a: string;
  readonly b: string;
  /** True if the weight is [inputs, outputs], as MatMul reads it and as transformers' Conv1D. */
  readonly isFlipped: boolean;
}

/** A product that an adapter can stand beside. */
interface Product {
  readonly node: Node;
  readonly weight: string;
  readonly isFlipped: boolean;
}

/** The weights of a graph that can have adapters, in the parameters' order. */
export function adaptable(graph: Graph): readonly string[] {
  const found = productsOf(graph);
  return graph.parameters.filter((name) => found.has(name));
}

/** The names of a weight's adapter: those of PEFT, for weights that are called as PyTorch's. */
export function adapterNames(weight: string): { readonly a: string; readonly b: string } {
  const module = weight.replace(/\.weight$/, '');
  return { a: `${module}.lora_A.weight`, b: `${module}.lora_B.weight` };
}

/** Whether a parameter is an adapter's. */
export function isAdapterName(name: string): boolean {
  return /\.lora_[AB]\.weight$/.test(name);
}

/** The values of adapters' weights as products read them. */
export function adapterValues({ parameters, nodes }: Graph): ReadonlySet<string> {
  const values = new Set(parameters.filter(isAdapterName));
  if (values.size > 0)
    for (const { operator, inputs, outputs } of nodes)
      if (operator === 'Transpose' && values.has(inputs[0] ?? '')) values.add(outputs[0] ?? '');
  return values;
}

/** The graph with an adapter beside each of these weights, which must be `adaptable`. A is drawn by the seed. */
export function addAdapters(
  graph: Graph,
  wanted: ReadonlyMap<string, AdapterOptions>,
  seed: number,
): { readonly graph: Graph; readonly adapters: readonly Adapter[] } {
  const products = productsOf(graph);
  const writer = new AdapterWriter(graph, seed);
  const byNode = new Map<string, readonly [Product, AdapterOptions]>();
  for (const [weight, options] of wanted) {
    const product = defined(products.get(weight), `a product of ${weight}`);
    byNode.set(product.node.name, [product, options]);
  }
  const nodes = graph.nodes.flatMap((node) => {
    const found = byNode.get(node.name);
    return found === undefined ? [node] : writer.beside(...found);
  });
  const { adapters, initializers, parameters } = writer;
  return { graph: { ...graph, nodes, initializers, parameters: [...graph.parameters, ...parameters] }, adapters };
}

/** W + s·B·A. */
export function mergedWeight(weight: Tensor, { scaling, isFlipped }: Adapter, a: Tensor, b: Tensor): Tensor {
  const [rank = 0] = a.shape;
  const [outputs, inputs] = [elementCount(b.shape) / rank, elementCount(a.shape) / rank];
  assert(elementCount(weight.shape) === outputs * inputs, 'an adapter of another weight');
  const [from, to] = [weight.data as Float32Array, new Float32Array(outputs * inputs)];
  const [left, right] = [b.data as Float32Array, a.data as Float32Array];
  for (let output = 0; output < outputs; output++)
    for (let input = 0; input < inputs; input++) {
      let sum = 0;
      for (let index = 0; index < rank; index++)
        sum += (left[output * rank + index] as number) * (right[index * inputs + input] as number);
      const place = isFlipped ? input * outputs + output : output * inputs + input;
      to[place] = (from[place] as number) + scaling * sum;
    }
  return { type: 'float32', shape: weight.shape, data: to };
}

/** By weight: the product that reads it, of weights that nothing else reads and that have two sides. */
function productsOf(graph: Graph): ReadonlyMap<string, Product> {
  const made = producers(graph.nodes);
  const parameters = new Set(graph.parameters);
  const readerCount = new Map<string, number>();
  for (const { inputs } of graph.nodes)
    for (const name of inputs) readerCount.set(name, (readerCount.get(name) ?? 0) + 1);
  const found = new Map<string, Product>();
  for (const node of graph.nodes) {
    const read = node.inputs[1] ?? '';
    const turned = made.get(read);
    const isTurned = turned?.domain === '' && turned.operator === 'Transpose' && !parameters.has(read);
    const weight = isTurned ? (turned.inputs[0] ?? '') : read;
    const isOnly = readerCount.get(read) === 1 && readerCount.get(weight) === 1;
    if (node.domain !== '' || !parameters.has(weight) || !isOnly) continue;
    const isFlipped = flippedIn(node, graph.initializers.get(weight)?.shape ?? [], isTurned);
    if (isFlipped !== undefined) found.set(weight, { node, weight, isFlipped });
  }
  return found;
}

/** Whether the product reads its weight as [inputs, outputs]; undefined for what is no product of two sides. */
function flippedIn(node: Node, shape: readonly number[], isTurned: boolean): boolean | undefined {
  if (node.operator === 'Conv') return !isTurned && intAttribute(node, 'group', 1) === 1 ? false : undefined;
  if (shape.length !== 2) return undefined;
  if (node.operator === 'MatMul') return !isTurned;
  if (node.operator !== 'Gemm' || intAttribute(node, 'transA', 0) !== 0) return undefined;
  return (intAttribute(node, 'transB', 0) === 0) !== isTurned;
}

class AdapterWriter {
  readonly adapters: Adapter[] = [];
  readonly parameters: string[] = [];
  readonly initializers: Map<string, Tensor>;
  readonly #seed: number;
  readonly #taken: Set<string>;

  constructor(graph: Graph, seed: number) {
    this.#seed = seed;
    this.initializers = new Map(graph.initializers);
    this.#taken = new Set([
      ...graph.inputs.map(({ name }) => name),
      ...graph.initializers.keys(),
      ...graph.nodes.flatMap(({ name, outputs }) => [name, ...outputs]),
    ]);
  }

  /** The nodes in place of a product: first the adapter, which keeps to the cut that the product begins. */
  beside({ node, weight, isFlipped }: Product, options: AdapterOptions): readonly Node[] {
    const { rank, scaling, dropout } = options;
    const names = adapterNames(weight);
    const { shape } = defined(this.initializers.get(weight), weight);
    const isConvolution = node.operator === 'Conv';
    const [outputs = 0, inputs = 0] = isFlipped ? [...shape].reverse() : shape;
    const a = this.#parameter(names.a, [rank, inputs, ...shape.slice(2)], false);
    const b = this.#parameter(names.b, [outputs, rank, ...shape.slice(2).map(() => 1)], true);
    this.adapters.push({ weight, a, b, isFlipped, ...options });
    const nodes: Node[] = [];
    const emit = (operator: string, given: readonly string[], attributes: Attributes = {}): string => {
      const name = freshName(`${weight}/${operator}`, this.#taken);
      nodes.push({ operator, domain: '', name, inputs: given, outputs: [name], attributes });
      return name;
    };
    let x = node.inputs[0] ?? '';
    if (dropout > 0) {
      const settings = [this.#constant(scalar('float32', dropout)), this.#constant(scalar('bool', 1))];
      x = emit('Dropout', [x, ...settings], { seed: int(this.adapters.length) });
    }
    const narrow = isConvolution
      ? emit('Conv', [x, a], node.attributes)
      : emit('MatMul', [x, emit('Transpose', [a], { perm: ints([1, 0]) })]);
    const factor = this.#constant(scalar('float32', scaling));
    const scaled = scaling === 1 ? narrow : emit('Mul', [narrow, factor]);
    const wide = isConvolution
      ? emit('Conv', [scaled, b], { kernel_shape: ints(shape.slice(2).map(() => 1)) })
      : emit('MatMul', [scaled, emit('Transpose', [b], { perm: ints([1, 0]) })]);
    const [output = ''] = node.outputs;
    const plain = freshName(`${output}/frozen`, this.#taken);
    const sum = freshName(`${weight}/Add`, this.#taken);
    return [
      ...nodes,
      { ...node, outputs: [plain] },
      { operator: 'Add', domain: '', name: sum, inputs: [plain, wide], outputs: [output], attributes: {} },
    ];
  }

  #parameter(wished: string, shape: readonly number[], isZero: boolean): string {
    const name = freshName(wished, this.#taken);
    const rule = isZero ? zeros : fanInUniform(elementCount(shape.slice(1)));
    this.initializers.set(name, initialize(name, shape, rule, { seed: this.#seed }));
    this.parameters.push(name);
    return name;
  }

  #constant(value: Tensor): string {
    const name = freshName('adapter/constant', this.#taken);
    this.initializers.set(name, value);
    return name;
  }
}
