// Builds models with an open batch ('N') layer by layer, with seeded initial weights; used by the zoo and by tests.
// Layers find their inputs' sizes themselves. Batch normalization and dropout are built in training mode (onnx/modes.ts
// switches them).

import { defined } from '../assert.ts';
import { type Attributes, batchSymbol, type Dimension, float, int, ints } from './graph.ts';
import { GraphWriter } from './graph-writer.ts';
import { fanInUniform, fans, type Initialization, normal, ones, zeros } from './initialization.ts';
import { int64s, scalar } from './tensor.ts';

/** A convolution. Its tensors are called `name.weight` and `name.bias`. */
export interface Conv2dOptions {
  readonly name: string;
  readonly outChannels: number;
  /** Kernel height and width. */
  readonly kernel: number | readonly [number, number];
  readonly stride?: number;
  /**
   * Rows and columns of zeros on every side, or at the beginning and the end of both axes; 'same' gives
   * ⌈size / stride⌉, with an odd one at the end. Default 0.
   */
  readonly padding?: number | 'same' | readonly [start: number, end: number];
  readonly dilation?: number;
  readonly groups?: number;
  /** Default true. */
  readonly bias?: boolean;
  /** Default for weights and bias: PyTorch's, uniform within 1 / √fanIn. */
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
  /** Default for weights and bias: PyTorch's, uniform within 1 / √fanIn. */
  readonly weightInitialization?: Initialization;
  readonly biasInitialization?: Initialization;
}

function poolAttributes(kernel: number, stride: number, padding: number): Attributes {
  return {
    kernel_shape: ints([kernel, kernel]),
    strides: ints([stride, stride]),
    pads: ints([padding, padding, padding, padding]),
  };
}

/** A model under construction, with a method for each kind of layer. Values are names. */
export class GraphBuilder extends GraphWriter {
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
      padding === 'same'
        ? this.#samePads(x, kernel, stride, dilation)
        : typeof padding === 'number'
          ? [padding, padding, padding, padding]
          : [padding[0], padding[0], padding[1], padding[1]];
    return this.node('Conv', inputs, {
      kernel_shape: ints(kernel),
      strides: ints([stride, stride]),
      pads: ints(pads),
      dilations: ints([dilation, dilation]),
      group: int(groups),
    });
  }

  /** Batch normalization over axis 1. `momentum` is ONNX's: the fraction of the old running statistics that is kept. */
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

  /** x · weightᵀ + bias over the last axis: one Gemm for [N, features], otherwise Transpose, MatMul and Add. */
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

  /** The mean over each window; padding counts as zeros, as in PyTorch. */
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
    return this.node('Clip', [x, this.scalarLike(x, 0), this.scalarLike(x, 6)]);
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
      seed: int(this.nodeCount),
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

  transpose(x: string, permutation: readonly number[]): string {
    return this.node('Transpose', [x], { perm: ints(permutation) });
  }

  /**
   * Reshapes to `shape`, in which 'N' is the batch and −1 (at most one, and not together with an 'N' after axis 0) the
   * remaining size.
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

  #samePads(x: string, kernel: readonly number[], stride: number, dilation: number): number[] {
    const totals = kernel.map((size, index) => {
      const length = this.size(x, index + 2);
      return Math.max((Math.ceil(length / stride) - 1) * stride + (size - 1) * dilation + 1 - length, 0);
    });
    return [...totals.map((total) => Math.floor(total / 2)), ...totals.map((total) => Math.ceil(total / 2))];
  }
}
