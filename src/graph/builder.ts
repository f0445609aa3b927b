// Builds models with an open batch ('N') layer by layer, with seeded initial weights: what the zoo and the tests write.
// Shapes are known while building, so layers need not be told their inputs' sizes. Batch normalization and dropout are
// built in training mode (mode.ts switches them).

import { assert, defined } from '../assert.ts';
import { checkGraph } from './check.ts';
import {
  type Attributes,
  batchSymbol,
  type Dimension,
  float,
  type Graph,
  int,
  ints,
  type Node,
  type ValueInfo,
} from './graph.ts';
import { fanInUniform, fans, type Initialization, initialize, normal, ones, zeros } from './initialization.ts';
import { neededNodes, usedValues } from './liveness.ts';
import { TypeWalk } from './static.ts';
import {
  byteLength,
  type ElementType,
  int64s,
  scalar,
  type Tensor,
  type ValueType,
  viewBytes,
  wrap,
} from './tensor.ts';

/** Options of a {@link GraphBuilder}. */
export interface BuilderOptions {
  /** Seeds all initial weights (each also by its own name). Default 0. */
  readonly seed?: number;
  /**
   * False leaves weights zero, in memory that they share: for planning, where only sizes matter and gigabytes need not
   * be drawn. Default true.
   */
  readonly initialize?: boolean;
}

/** A convolution. Its tensors are called `name.weight` and `name.bias`. */
export interface Conv2dOptions {
  readonly name: string;
  readonly outChannels: number;
  /** Kernel height and width. */
  readonly kernel: number | readonly [number, number];
  readonly stride?: number;
  /** Rows and columns of zeros on every side; 'same' gives ⌈size / stride⌉, the odd one at the end. Default 0. */
  readonly padding?: number | 'same';
  readonly dilation?: number;
  readonly groups?: number;
  /** Default true. */
  readonly bias?: boolean;
  /** Default for both: PyTorch's, uniform within 1 / √fanIn. */
  readonly weightInitialization?: Initialization;
  readonly biasInitialization?: Initialization;
}

/** A pool. */
export interface Pool2dOptions {
  readonly kernel: number;
  /** Default: the kernel. */
  readonly stride?: number;
  readonly padding?: number;
}

/** A linear layer. Its tensors are called `name.weight` ([outFeatures, inFeatures]) and `name.bias`. */
export interface LinearOptions {
  readonly name: string;
  readonly outFeatures: number;
  /** Default true. */
  readonly bias?: boolean;
  /** Default for both: PyTorch's, uniform within 1 / √fanIn. */
  readonly weightInitialization?: Initialization;
  readonly biasInitialization?: Initialization;
}

/** The two batch sizes at which shapes are inferred: where they differ is the batch. */
const probeSizes = [2, 3] as const;

/**
 * A model under construction. Values are names; node names are made from `operator` and a number, or from a layer's
 * name.
 */
export class GraphBuilder {
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

  /** A tensor that forward passes replace, such as a running mean. */
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

  /** The shape of a value; 'N' where the batch is, '?' where a dimension depends on the batch in another way. */
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

  /** 2-D convolution of [N, C, H, W]. */
  conv2d(x: string, options: Conv2dOptions): string {
    const { name, outChannels, stride = 1, dilation = 1, groups = 1, padding = 0 } = options;
    const kernel = typeof options.kernel === 'number' ? [options.kernel, options.kernel] : [...options.kernel];
    const shape = [outChannels, this.size(x, 1) / groups, ...kernel];
    const { fanIn } = fans(shape);
    const inputs = [x, this.parameter(`${name}.weight`, shape, options.weightInitialization ?? fanInUniform(fanIn))];
    if (options.bias ?? true)
      inputs.push(this.parameter(`${name}.bias`, [outChannels], options.biasInitialization ?? fanInUniform(fanIn)));
    const pads =
      padding === 'same' ? this.#samePads(x, kernel, stride, dilation) : [padding, padding, padding, padding];
    return this.node('Conv', inputs, {
      kernel_shape: ints(kernel),
      strides: ints([stride, stride]),
      pads: ints(pads),
      dilations: ints([dilation, dilation]),
      group: int(groups),
    });
  }

  /** Batch normalization over axis 1. `momentum` is ONNX's: the share of the old running statistics that is kept. */
  batchNorm(x: string, options: { name: string; epsilon?: number; momentum?: number }): string {
    const { name, epsilon = 1e-5, momentum = 0.9 } = options;
    const shape = [this.size(x, 1)];
    const inputs = [
      x,
      this.parameter(`${name}.weight`, shape, ones),
      this.parameter(`${name}.bias`, shape, zeros),
      this.buffer(`${name}.running_mean`, shape, zeros),
      this.buffer(`${name}.running_var`, shape, ones),
    ];
    const attributes = { epsilon: float(epsilon), momentum: float(momentum), training_mode: int(1) };
    return defined(this.node('BatchNormalization', inputs, attributes, 3)[0], 'the output');
  }

  /** Normalization over the last axis. */
  layerNorm(x: string, options: { name: string; epsilon?: number }): string {
    const shape = [this.size(x, -1)];
    const inputs = [
      x,
      this.parameter(`${options.name}.weight`, shape, ones),
      this.parameter(`${options.name}.bias`, shape, zeros),
    ];
    return this.node('LayerNormalization', inputs, { axis: int(-1), epsilon: float(options.epsilon ?? 1e-5) });
  }

  /** Group normalization over axis 1. */
  groupNorm(x: string, options: { name: string; groups: number; epsilon?: number }): string {
    const shape = [this.size(x, 1)];
    const inputs = [
      x,
      this.parameter(`${options.name}.weight`, shape, ones),
      this.parameter(`${options.name}.bias`, shape, zeros),
    ];
    return this.node('GroupNormalization', inputs, {
      num_groups: int(options.groups),
      epsilon: float(options.epsilon ?? 1e-5),
    });
  }

  /** x · weightᵀ + bias over the last axis: one Gemm for [N, features], else Transpose, MatMul and Add. */
  linear(x: string, options: LinearOptions): string {
    const { name, outFeatures } = options;
    const inFeatures = this.size(x, -1);
    const weight = this.parameter(
      `${name}.weight`,
      [outFeatures, inFeatures],
      options.weightInitialization ?? fanInUniform(inFeatures),
    );
    const biasInitialization = options.biasInitialization ?? fanInUniform(inFeatures);
    const bias = (options.bias ?? true) ? this.parameter(`${name}.bias`, [outFeatures], biasInitialization) : undefined;
    if (this.shape(x).length === 2)
      return this.node('Gemm', bias === undefined ? [x, weight] : [x, weight, bias], { transB: int(1) });
    const product = this.node('MatMul', [x, this.transpose(weight, [1, 0])]);
    return bias === undefined ? product : this.add(product, bias);
  }

  /** Rows of a table `name.weight` [count, width] by int64 indices. */
  embedding(
    indices: string,
    options: { name: string; count: number; width: number; initialization?: Initialization },
  ): string {
    const table = this.parameter(
      `${options.name}.weight`,
      [options.count, options.width],
      options.initialization ?? normal(1),
    );
    return this.node('Gather', [table, indices], { axis: int(0) });
  }

  maxPool2d(x: string, { kernel, stride = kernel, padding = 0 }: Pool2dOptions): string {
    return this.node('MaxPool', [x], poolAttributes(kernel, stride, padding));
  }

  /** The mean over each window; padding counts as zeros where there is any, as in PyTorch. */
  averagePool2d(x: string, { kernel, stride = kernel, padding = 0 }: Pool2dOptions): string {
    return this.node('AveragePool', [x], { ...poolAttributes(kernel, stride, padding), count_include_pad: int(1) });
  }

  /** [N, C, H, W] to [N, C, 1, 1]. */
  globalAveragePool(x: string): string {
    return this.node('GlobalAveragePool', [x]);
  }

  relu(x: string): string {
    return this.node('Relu', [x]);
  }

  relu6(x: string): string {
    const { type } = this.#type(x);
    return this.node('Clip', [x, this.constant(scalar(type, 0)), this.constant(scalar(type, 6))]);
  }

  sigmoid(x: string): string {
    return this.node('Sigmoid', [x]);
  }

  tanh(x: string): string {
    return this.node('Tanh', [x]);
  }

  /** x · sigmoid(x). */
  silu(x: string): string {
    return this.mul(x, this.sigmoid(x));
  }

  gelu(x: string): string {
    return this.node('Gelu', [x]);
  }

  hardSwish(x: string): string {
    return this.node('HardSwish', [x]);
  }

  /** max(0, min(1, x/6 + 1/2)). */
  hardSigmoid(x: string): string {
    return this.node('HardSigmoid', [x], { alpha: float(1 / 6), beta: float(0.5) });
  }

  softmax(x: string, axis = -1): string {
    return this.node('Softmax', [x], { axis: int(axis) });
  }

  /** Zeroes elements with probability `ratio` while training. */
  dropout(x: string, ratio: number): string {
    return this.node('Dropout', [x, this.constant(scalar('float32', ratio)), this.constant(scalar('bool', 1))], {
      seed: int(this.#nodes.length),
    });
  }

  add(a: string, b: string): string {
    return this.node('Add', [a, b]);
  }

  mul(a: string, b: string): string {
    return this.node('Mul', [a, b]);
  }

  matMul(a: string, b: string): string {
    return this.node('MatMul', [a, b]);
  }

  /** A scalar constant of x's element type. */
  scalarLike(x: string, value: number): string {
    return this.constant(scalar(this.#type(x).type, value));
  }

  transpose(x: string, permutation: readonly number[]): string {
    return this.node('Transpose', [x], { perm: ints(permutation) });
  }

  /**
   * To `shape`, in which 'N' stands for the batch and −1 (at most one, and not beside an 'N' behind axis 0) for what is
   * left.
   */
  reshape(x: string, shape: readonly Dimension[]): string {
    const first = this.shape(x)[0] === batchSymbol;
    const target = shape.map((dimension, axis) =>
      typeof dimension === 'number' ? dimension : axis === 0 && first ? 0 : -1,
    );
    return this.node('Reshape', [x, this.constant(int64s(target))]);
  }

  /** [N, …] to [N, features]. */
  flatten(x: string): string {
    return this.node('Flatten', [x], { axis: int(1) });
  }

  concat(values: readonly string[], axis: number): string {
    return this.node('Concat', values, { axis: int(axis) });
  }

  /** The finished graph; nodes, parameters and constants that no output needs are left out, inputs are all kept. */
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

  #samePads(x: string, kernel: readonly number[], stride: number, dilation: number): number[] {
    const totals = kernel.map((size, index) => {
      const length = this.size(x, index + 2);
      return Math.max((Math.ceil(length / stride) - 1) * stride + (size - 1) * dilation + 1 - length, 0);
    });
    return [...totals.map((total) => Math.floor(total / 2)), ...totals.map((total) => Math.ceil(total / 2))];
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

function poolAttributes(kernel: number, stride: number, padding: number): Attributes {
  return {
    kernel_shape: ints([kernel, kernel]),
    strides: ints([stride, stride]),
    pads: ints([padding, padding, padding, padding]),
  };
}
