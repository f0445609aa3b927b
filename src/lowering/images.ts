// Operators between convolutions and normalizations on blocked values: elementwise operators, factors and offsets for
// each image, means over the places, concatenation.

import { product } from '../autodiff/expressions.ts';
import type { Emitter } from '../graph/emitter.ts';
import { intAttribute, type Node } from '../graph/graph.ts';
import { elementCount, sameShape, toNumbers } from '../graph/tensor.ts';
import { channelAffine, imageDots, imageMeans } from './convolutions.ts';
import type { Fusing } from './fusing.ts';
import type { Layouts } from './layouts.ts';

/** Operators of one value that are finite at 0, so they work in any layout. */
const unary = new Set([
  ...[
    'Abs',
    'Cast',
    'Ceil',
    'Celu',
    'Clip',
    'Elu',
    'Erf',
    'Exp',
    'Floor',
    'Gelu',
    'HardSigmoid',
    'HardSwish',
    'Identity',
    'LeakyRelu',
    'Mish',
    'Neg',
    'Not',
  ],
  ...['Relu', 'Round', 'Selu', 'Sigmoid', 'Sign', 'Softplus', 'Softsign', 'Sqrt', 'Tanh', 'ThresholdedRelu'],
]);
/** Operators of several values of one shape, or scalars. */
const elementwise = new Set([
  ...[
    'Add',
    'And',
    'Equal',
    'Greater',
    'GreaterOrEqual',
    'Less',
    'LessOrEqual',
    'Max',
    'Mean',
    'Min',
    'Mul',
    'Or',
    'PRelu',
    'Sub',
    'Sum',
    'Where',
  ],
]);

/** True for float32 [N, C, H, W]. */
export function isFloatImage(layouts: Layouts, value: string): boolean {
  const { type, shape } = layouts.type(value);
  return type === 'float32' && shape.length === 4;
}

/** Writes these operators on blocked values. */
export class ImageLowering {
  readonly #l: Layouts;
  readonly #emitter: Emitter;
  readonly #fusing: Fusing;

  constructor(layouts: Layouts, emitter: Emitter, fusing: Fusing) {
    this.#l = layouts;
    this.#emitter = emitter;
    this.#fusing = fusing;
  }

  /** Writes the node on blocked values; false if that is impossible or does not pay. */
  lower(node: Node): boolean {
    switch (node.operator) {
      case 'GlobalAveragePool':
        return this.#globalAverage(node, 1);
      case 'ReduceMean':
      case 'ReduceSum':
        return this.#imageReduction(node);
      case 'Expand':
        return this.#expand(node);
      case 'Concat':
        return this.#concat(node);
      default:
        if (unary.has(node.operator)) return this.#unary(node);
        return (
          elementwise.has(node.operator) && (this.#elementwise(node) || this.#perImage(node) || this.#points(node))
        );
    }
  }

  /** For one blocked operand; the others must be scalars. */
  #unary(node: Node): boolean {
    const [x, ...others] = node.inputs as [string, ...string[]];
    if (
      !this.#l.isBlocked(x) ||
      this.#isPoint(x) ||
      others.some((other) => other !== '' && elementCount(this.#l.shape(other)) !== 1)
    )
      return false;
    this.#write(node, [this.#l.blocked(x), ...others.map((other) => (other === '' ? '' : this.#l.plain(other)))]);
    return true;
  }

  /** True for [N, C, 1, 1], for which row-major order is just as good. */
  #isPoint(value: string): boolean {
    const [, , ...image] = this.#l.shape(value);
    return (
      product(image) === 1 && this.#l.isBlocked(value) && (this.#l.shape(value)[1] as number) % this.#l.block === 0
    );
  }

  /** For operands of the result's shape or scalars, at least one of which is blocked already. */
  #elementwise(node: Node): boolean {
    const output = node.outputs[0] as string;
    const { shape } = this.#l.type(output);
    if (
      shape.length !== 4 ||
      node.outputs.length !== 1 ||
      !node.inputs.some((input) => this.#l.isBlocked(input) && !this.#isPoint(input))
    )
      return false;
    const isScalar = (input: string): boolean => elementCount(this.#l.shape(input)) === 1;
    if (!node.inputs.every((input) => sameShape(this.#l.shape(input), shape) || isScalar(input))) return false;
    if (node.operator === 'Add' && node.inputs.length === 2 && this.#addSpread(node)) return true;
    this.#write(
      node,
      node.inputs.map((input) =>
        sameShape(this.#l.shape(input), shape) ? this.#l.blocked(input) : this.#l.plain(input),
      ),
    );
    return true;
  }

  /**
   * Points [N, C, 1, 1] with a scalar, written as a matrix: over axes of length 1 the runtime reads the scalar for
   * every element, which is fifty times slower.
   */
  #points(node: Node): boolean {
    const output = node.outputs[0] as string;
    const { type, shape } = this.#l.type(output);
    const [samples = 1, channels = 1, ...image] = shape;
    if (shape.length !== 4 || product(image) !== 1 || samples * channels === 1 || node.outputs.length !== 1)
      return false;
    const isScalar = (input: string): boolean => elementCount(this.#l.shape(input)) === 1;
    if (
      !node.inputs.some(isScalar) ||
      !node.inputs.every((input) => isScalar(input) || sameShape(this.#l.shape(input), shape))
    )
      return false;
    const inputs = node.inputs.map((input) =>
      this.#l.reshape(this.#l.plain(input), isScalar(input) ? [] : [samples, channels]),
    );
    const matrix = this.#emitter.emitTyped(
      node.operator,
      inputs,
      { type, shape: [samples, channels] },
      node.attributes,
    );
    this.#l.setPlain(output, this.#l.reshape(matrix, shape));
    return true;
  }

  /** Writes an elementwise node on the given names; its result is blocked. */
  #write(node: Node, inputs: readonly string[]): void {
    const output = node.outputs[0] as string;
    const { type, shape } = this.#l.type(output);
    const blocked = { type, shape: this.#l.paddedShape(shape) };
    const name = this.#emitter.emitTyped(node.operator, inputs, blocked, node.attributes);
    this.#l.setBlocked(output, name);
  }

  /** x + a value that repeats [N, C, 1, 1]: an offset for every sample's channel. */
  #addSpread(node: Node): boolean {
    const [a, b] = node.inputs as [string, string];
    const [x, spread] = this.#l.spreadSource(b) !== undefined ? [a, b] : [b, a];
    const source = this.#l.spreadSource(spread);
    if (source === undefined || this.#l.spreadSource(x) !== undefined) return false;
    const factor = this.#factorOf(x);
    const image = factor === undefined ? x : (factor.image as string);
    this.#l.setBlocked(node.outputs[0] as string, this.#imageAffine(image, factor?.source, source));
    return true;
  }

  /** The factors of x = image · [N, C, 1, 1], if only this node reads it. */
  #factorOf(x: string): { readonly image: string; readonly source: string } | undefined {
    const producer = this.#fusing.producer(x);
    if (producer?.operator !== 'Mul' || this.#fusing.onlyReader(x) === undefined) return undefined;
    return this.#imageAndPoint(producer);
  }

  /**
   * The operands of a product or sum of a blocked image [N, C, H, W] with a float for each sample's channel [N, C, 1,
   * 1].
   */
  #imageAndPoint(node: Node): { readonly image: string; readonly source: string } | undefined {
    const [a, b] = node.inputs as [string, string];
    const { shape } = this.#l.type(node.outputs[0] as string);
    const isPoint = (value: string): boolean =>
      sameShape(this.#l.shape(value), [shape[0] as number, shape[1] as number, 1, 1]);
    for (const [image, source] of [
      [a, b],
      [b, a],
    ] as const) {
      if (
        sameShape(this.#l.shape(image), shape) &&
        isPoint(source) &&
        isFloatImage(this.#l, image) &&
        this.#l.isBlocked(image)
      )
        return { image, source };
    }
    return undefined;
  }

  /** An image times or plus one number for each sample's channel. */
  #perImage(node: Node): boolean {
    if (node.operator !== 'Mul' && node.operator !== 'Add') return false;
    if (this.#l.shape(node.outputs[0] as string).length !== 4) return false;
    const parts = this.#imageAndPoint(node);
    if (parts === undefined) return false;
    const { image, source } = parts;
    this.#l.setBlocked(
      node.outputs[0] as string,
      node.operator === 'Mul' ? this.#imageAffine(image, source) : this.#imageAffine(image, undefined, source),
    );
    return true;
  }

  /**
   * image · factor + offset, the latter two of shape [N, C, 1, 1] (default 1 and 0): every sample's channel is treated
   * as a channel.
   */
  #imageAffine(image: string, factor: string | undefined, offset?: string): string {
    const l = this.#l;
    const x = l.blocked(image);
    const [samples = 1, channels = 1, ...places] = this.#emitter.shape(x);
    const images = samples * channels;
    const vector = (value: string): string => l.reshape(l.blocked(value), [images]);
    const name = channelAffine(l, {
      x: l.reshape(x, [1, images, ...places]),
      factor: factor === undefined ? l.ones(images) : vector(factor),
      ...(offset === undefined ? {} : { offset: vector(offset) }),
    });
    return l.reshape(name, [samples, channels, ...places]);
  }

  /** factor · the mean of each image: [N, C, 1, 1] or [N, C]. */
  #globalAverage(node: Node, factor: number): boolean {
    const x = node.inputs[0] as string;
    if (!isFloatImage(this.#l, x) || !this.#l.isBlocked(x) || this.#isPoint(x)) return false;
    const producer = this.#fusing.producer(x);
    const dots = factor !== 1 ? this.#dotsOf(producer) : undefined;
    const sums = dots ?? this.#matrix(imageMeans(this.#l, this.#l.blocked(x)));
    const size = product(this.#l.shape(x).slice(2));
    const scaled = dots === undefined ? this.#scaled(sums, factor) : this.#scaled(sums, factor / size);
    this.#setPoints(node.outputs[0] as string, scaled);
    return true;
  }

  #matrix(points: string): string {
    return this.#l.reshape(points, this.#emitter.shape(points).slice(0, 2));
  }

  #scaled(name: string, factor: number): string {
    return factor === 1 ? name : this.#emitter.emit('Mul', [name, this.#emitter.scalarLike(name, factor)]);
  }

  /** Σ a·b over the places if x is a product of two blocked images. */
  #dotsOf(producer: Node | undefined): string | undefined {
    if (producer?.operator !== 'Mul' || producer.domain !== '') return undefined;
    const [a, b] = producer.inputs as [string, string];
    const { shape } = this.#l.type(producer.outputs[0] as string);
    if (![a, b].every((value) => sameShape(this.#l.shape(value), shape) && this.#l.isBlocked(value))) return undefined;
    return imageDots(this.#l, this.#l.blocked(a), this.#l.blocked(b));
  }

  /** Uses [N, C rounded up] as the node's output. */
  #setPoints(output: string, name: string): void {
    const { shape } = this.#l.type(output);
    const [samples = 1, channels = 1] = shape;
    const padded = this.#emitter.shape(name)[1] as number;
    if (shape.length === 4) this.#l.setBlocked(output, this.#l.reshape(name, [samples, padded, 1, 1]));
    if (padded !== channels && shape.length === 4) return;
    const kept =
      padded === channels
        ? name
        : this.#emitter.emit('Slice', [
            name,
            this.#emitter.int64s([0]),
            this.#emitter.int64s([channels]),
            this.#emitter.int64s([1]),
          ]);
    this.#l.setPlain(output, this.#l.reshape(kept, shape));
  }

  /** Mean or sum over exactly the spatial axes. */
  #imageReduction(node: Node): boolean {
    const x = node.inputs[0] as string;
    const axes = this.#fusing.constant(node.inputs[1] ?? '');
    if (!isFloatImage(this.#l, x) || axes === undefined) return false;
    const wanted = toNumbers(axes).map((axis) => (axis < 0 ? axis + 4 : axis));
    if (!sameShape([...wanted].sort(), [2, 3])) return false;
    return this.#globalAverage(node, node.operator === 'ReduceMean' ? 1 : product(this.#l.shape(x).slice(2)));
  }

  /** [N, C, 1, 1] expanded to an image: written only if it is read. */
  #expand(node: Node): boolean {
    const [source] = node.inputs as [string];
    const output = node.outputs[0] as string;
    const { shape } = this.#l.type(output);
    if (
      shape.length !== 4 ||
      !isFloatImage(this.#l, source) ||
      !sameShape(this.#l.shape(source), [shape[0] as number, shape[1] as number, 1, 1])
    )
      return false;
    this.#l.setSpread(output, source);
    return true;
  }

  /** Concatenates parts of whole blocks. */
  #concat(node: Node): boolean {
    const output = node.outputs[0] as string;
    const { shape } = this.#l.type(output);
    if (shape.length !== 4 || intAttribute(node, 'axis', 0) !== 1 || !isFloatImage(this.#l, output)) return false;
    const isWhole = (input: string): boolean => (this.#l.shape(input)[1] as number) % this.#l.block === 0;
    if (!node.inputs.every(isWhole) || !node.inputs.some((input) => this.#l.isBlocked(input) && !this.#isPoint(input)))
      return false;
    this.#write(
      node,
      node.inputs.map((input) => this.#l.blocked(input)),
    );
    return true;
  }
}
