// Lowers a graph to the blocked layout of ONNX Runtime's CPU kernels: convolutions, their gradients, batch normalizations and what stands between them
// stay blocked from layer to layer; values are brought to another layout only where something else reads them. All else is left as it is, and deferred
// gradients that have no blocked form are written out plainly.

import { deferredOperator, slidingOf } from '../autodiff/deferred.ts';
import type { TrainingPass } from '../autodiff/differentiate.ts';
import { product } from '../autodiff/expressions.ts';
import { type ConvolutionForms, plainForms, type Sliding } from '../autodiff/forms.ts';
import { writeOut } from '../autodiff/write-out.ts';
import { Emitter } from '../graph/emitter.ts';
import { floatAttribute, intAttribute, type Node, type ValueInfo } from '../graph/graph.ts';
import { windowOf } from '../graph/operators/windows.ts';
import { elementCount, sameShape, type Tensor, toNumbers, type ValueType } from '../graph/tensor.ts';
import {
  type Activation,
  channelAffine,
  convolution,
  hasInputGradient,
  hasWeightGradient,
  imageDots,
  imageMeans,
  inputGradient,
  isBlockable,
  weightGradient,
} from './convolutions.ts';
import { Layouts } from './layouts.ts';
import { batchNormalization, batchNormalizationGradient } from './normalizations.ts';

export interface BlockedOptions {
  /** Channels of a block: 16 with AVX-512, 8 with AVX2. */
  readonly block: number;
  /** The plain forms. */
  readonly forms?: ConvolutionForms;
}

/** The pass on the blocked layout; what enters and leaves it stays as it is. */
export function lowerPass({ emitter, forwardCount, results, gradients }: TrainingPass, options: BlockedOptions): TrainingPass {
  const { inputs, initializers, nodes } = emitter;
  const source = { inputs, initializers, nodes, type: (name: string) => emitter.type(name) };
  const lowering = new BlockedLowering(source, new Set([...results, ...gradients.values()]), options);
  lowering.lower(nodes.slice(0, forwardCount));
  lowering.finish(results);
  const lowered = lowering.emitter.nodes.length;
  lowering.lower(nodes.slice(forwardCount));
  const plain = new Map([...gradients].map(([name, gradient]) => [name, lowering.plain(gradient)]));
  return { emitter: lowering.emitter, forwardCount: lowered, results, gradients: plain };
}

/** Where the nodes come from. */
interface Source {
  readonly inputs: readonly ValueInfo[];
  readonly initializers: ReadonlyMap<string, Tensor>;
  readonly nodes: readonly Node[];
  type(name: string): ValueType;
}

/** Operators of one value that are 0 or finite for 0: they go with any layout. */
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

/** Normalization by the batch's own statistics, which are outputs 1 and 2; nodes of their own write the running ones (autodiff/forward.ts). */
function isBatchStatistics(node: Node): boolean {
  return intAttribute(node, 'training_mode', 0) !== 0 && floatAttribute(node, 'momentum', 0.9) === 0 && node.outputs.length === 3;
}

class BlockedLowering {
  readonly emitter: Emitter = new Emitter('low.', { shareNodes: true });
  readonly #source: Source;
  readonly #l: Layouts;
  readonly #forms: ConvolutionForms;
  readonly #readers = new Map<string, Node[]>();
  readonly #producers = new Map<string, Node>();
  readonly #results: ReadonlySet<string>;
  /** Convolutions' results that stand lower than they should by a vector, and their mean as they stand. */
  readonly #shifts = new Map<string, { readonly shift: string; mean?: string }>();
  /** Nodes that were fused with an earlier one. */
  readonly #done = new Set<Node>();

  /** `results`: values that somebody reads besides the nodes. */
  constructor(source: Source, results: ReadonlySet<string>, { block, forms = plainForms }: BlockedOptions) {
    this.#source = source;
    this.#l = new Layouts(this.emitter, source.type, block);
    this.#forms = forms;
    this.#results = results;
    for (const input of source.inputs) this.#l.setPlain(this.emitter.input(input.name, input.type, input.shape as readonly number[]));
    for (const [key, value] of source.initializers) this.#l.setPlain(this.emitter.initializer(key, value));
    for (const node of source.nodes) {
      for (const input of new Set(node.inputs)) {
        const list = this.#readers.get(input);
        if (list === undefined) this.#readers.set(input, [node]);
        else list.push(node);
      }
      for (const output of node.outputs) this.#producers.set(output, node);
    }
  }

  /** Writes some of the nodes, in their order. */
  lower(nodes: readonly Node[]): void {
    for (const node of nodes) if (!this.#done.has(node)) this.#lower(node);
  }

  /** The value's name in row-major order. */
  plain(value: string): string {
    return this.#l.plain(value);
  }

  /** Gives values their own names. */
  finish(values: readonly string[]): void {
    for (const value of values) {
      const name = this.#l.plain(value);
      if (name === value) continue;
      const node = {
        operator: 'Identity',
        domain: '',
        name: this.emitter.fresh('Identity'),
        inputs: [name],
        outputs: [value],
        attributes: {},
      };
      this.emitter.append(node);
    }
  }

  #lower(node: Node): void {
    if (!this.#lowerBlocked(node)) this.#keep(node);
  }

  /** The node as it is, on plain values. */
  #keep(node: Node): void {
    const inputs = node.inputs.map((input) => (input === '' ? '' : this.#l.plain(input)));
    if (deferredOperator(node) !== undefined) {
      writeOut(this.emitter, { ...node, inputs }, this.#forms).forEach((name, index) => {
        if (name !== undefined && node.outputs[index] !== '') this.#l.setPlain(node.outputs[index] as string, name);
      });
      return;
    }
    this.emitter.appendTyped(
      { ...node, inputs },
      node.outputs.map((output) => (output === '' ? { type: 'float32', shape: [] } : this.#l.type(output))),
    );
    for (const output of node.outputs) if (output !== '') this.#l.setPlain(output);
  }

  /** Writes the node on blocked values; false where that is impossible or not worth it. */
  #lowerBlocked(node: Node): boolean {
    switch (deferredOperator(node)) {
      case 'ConvInputGradient':
        return this.#convInputGradient(node);
      case 'ConvWeightGradient':
        return this.#convWeightGradient(node);
      case 'BatchNormalizationGradient':
        return this.#batchNormalizationGradient(node);
      default:
    }
    if (node.domain !== '') return false;
    switch (node.operator) {
      case 'Conv':
        return this.#conv(node);
      case 'BatchNormalization':
        return this.#batchNormalization(node);
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
        return elementwise.has(node.operator) && (this.#elementwise(node) || this.#perImage(node) || this.#points(node));
    }
  }

  #set(output: string, { name, layout }: { readonly name: string; readonly layout: 'plain' | 'blocked' }): true {
    if (layout === 'plain') this.#l.setPlain(output, name);
    else this.#l.setBlocked(output, name);
    return true;
  }

  #isFloatImage(value: string): boolean {
    const { type, shape } = this.#l.type(value);
    return type === 'float32' && shape.length === 4;
  }

  #conv(node: Node): boolean {
    const [x, w, b = ''] = node.inputs as [string, string, string?];
    if (!this.#isFloatImage(x)) return false;
    const shape = this.#l.shape(w);
    const sliding: Sliding = { ...windowOf(node, this.#l.shape(x).slice(2), shape.slice(2)), group: intAttribute(node, 'group', 1) };
    if (!isBlockable(this.#l, sliding, this.#l.shape(x)[1] as number, shape[0] as number)) return false;
    const y = node.outputs[0] as string;
    const bias = b === '' ? undefined : this.#l.plain(b);
    return this.#set(y, convolution(this.#l, { x, w, bias: this.#shifted(y, bias), sliding }));
  }

  /**
   * The bias of a convolution that gives y. Where only a batch normalization reads y, it is lowered by the running mean, for nothing: normalized values
   * are the same, and the batch's variance, a difference of squares, keeps its digits however far the mean is from zero.
   */
  #shifted(y: string, bias: string | undefined): string | undefined {
    const readers = this.#readers.get(y) ?? [];
    const normalization = readers.find((reader) => reader.operator === 'BatchNormalization' && reader.domain === '');
    const isNormalizing = (reader: Node): boolean => reader === normalization || deferredOperator(reader) === 'BatchNormalizationGradient';
    if (normalization === undefined || this.#results.has(y) || !readers.every(isNormalizing)) return bias;
    if (!isBatchStatistics(normalization)) return bias;
    const shift = this.#l.plain(normalization.inputs[3] as string);
    this.#shifts.set(y, { shift });
    return bias === undefined ? this.emitter.emit('Neg', [shift]) : this.emitter.emit('Sub', [bias, shift]);
  }

  #convInputGradient(node: Node): boolean {
    const [g, w] = node.inputs as [string, string];
    const sliding = slidingOf(node);
    const [outputChannels = 1, perGroup = 1] = this.#l.shape(w);
    const channels = perGroup * sliding.group;
    if (!this.#isFloatImage(g) || !isBlockable(this.#l, sliding, channels, outputChannels) || !hasInputGradient(sliding)) return false;
    if (sliding.group === 1 && channels < this.#l.block / 2) return false;
    return this.#set(node.outputs[0] as string, inputGradient(this.#l, { g, w, channels, sliding }));
  }

  #convWeightGradient(node: Node): boolean {
    const [x, g] = node.inputs as [string, string];
    const sliding = slidingOf(node);
    const [channels, outputChannels] = [this.#l.shape(x)[1] as number, this.#l.shape(g)[1] as number];
    if (!this.#isFloatImage(x) || !isBlockable(this.#l, sliding, channels, outputChannels) || !hasWeightGradient(sliding)) return false;
    if (sliding.group === 1 && channels < this.#l.block / 2) return false;
    this.#l.setPlain(node.outputs[0] as string, weightGradient(this.#l, { x, g, sliding }));
    return true;
  }

  #batchNormalization(node: Node): boolean {
    const [x, gamma, bias] = node.inputs as [string, string, string];
    if (!this.#isFloatImage(x) || !isBatchStatistics(node)) return false;
    const shifted = this.#shifts.get(x);
    if (!this.#l.isBlocked(x) && shifted === undefined) return false;
    const [y, mean, variance] = node.outputs as [string, string, string];
    const { last, sum, activation } = this.#following(y);
    const written = batchNormalization(this.#l, {
      x: this.#l.blocked(x),
      channels: this.#l.shape(x)[1] as number,
      scale: this.#l.plain(gamma),
      bias: this.#l.plain(bias),
      epsilon: floatAttribute(node, 'epsilon', 1e-5),
      sum,
      activation,
    });
    this.#l.setBlocked(last, written.y);
    if (shifted !== undefined) shifted.mean = written.mean;
    this.#l.setPlain(mean, shifted === undefined ? written.mean : this.emitter.emit('Add', [written.mean, shifted.shift]));
    this.#l.setPlain(variance, written.variance);
    return true;
  }

  /** What can be computed together with y: the sum with a blocked value that is there, and the activation behind it, where nobody reads what is between. */
  #following(y: string): { readonly last: string; readonly sum: string | undefined; readonly activation: Activation | undefined } {
    let last = y;
    let sum: string | undefined;
    const only = (value: string): Node | undefined => {
      const readers = this.#readers.get(value) ?? [];
      return readers.length === 1 && !this.#results.has(value) ? readers[0] : undefined;
    };
    const next = only(y);
    if (next?.operator === 'Add' && next.domain === '') {
      const other = next.inputs[0] === y ? (next.inputs[1] as string) : (next.inputs[0] as string);
      if (other !== y && sameShape(this.#l.shape(other), this.#l.shape(y)) && this.#l.isBlocked(other)) {
        sum = this.#l.blocked(other);
        last = next.outputs[0] as string;
        this.#done.add(next);
      }
    }
    const behind = only(last);
    const activation = behind === undefined ? undefined : this.#activationOf(behind);
    if (behind !== undefined && activation !== undefined) {
      last = behind.outputs[0] as string;
      this.#done.add(behind);
    }
    return { last, sum, activation };
  }

  #activationOf(node: Node): Activation | undefined {
    if (node.domain !== '') return undefined;
    if (node.operator === 'Relu') return { name: 'Relu' };
    if (node.operator !== 'Clip') return undefined;
    const bound = (index: number, fallback: number): number | undefined => {
      const name = node.inputs[index] ?? '';
      if (name === '') return fallback;
      const value: Tensor | undefined = this.#source.initializers.get(name);
      return value === undefined ? undefined : toNumbers(value)[0];
    };
    const [low, high] = [bound(1, -3.4028234663852886e38), bound(2, 3.4028234663852886e38)];
    return low === undefined || high === undefined ? undefined : { name: 'Clip', parameters: [low, high] };
  }

  #batchNormalizationGradient(node: Node): boolean {
    const [g, x, gamma, mean, variance] = node.inputs as [string, string, string, string, string];
    const shifted = this.#shifts.get(x);
    if (!this.#l.isBlocked(x) && shifted === undefined) return false;
    const [dx, dscale, dbias] = batchNormalizationGradient(this.#l, {
      g: this.#l.blocked(g),
      x: this.#l.blocked(x),
      channels: this.#l.shape(x)[1] as number,
      scale: this.#l.plain(gamma),
      mean: shifted?.mean ?? this.#l.plain(mean),
      variance: this.#l.plain(variance),
      epsilon: floatAttribute(node, 'epsilon', 1e-5),
    });
    if (node.outputs[0] !== '') this.#l.setBlocked(node.outputs[0] as string, dx);
    if (node.outputs[1] !== '') this.#l.setPlain(node.outputs[1] as string, dscale);
    if (node.outputs[2] !== '') this.#l.setPlain(node.outputs[2] as string, dbias);
    return true;
  }

  /** One operand is blocked; others are scalars. */
  #unary(node: Node): boolean {
    const [x, ...others] = node.inputs as [string, ...string[]];
    if (!this.#l.isBlocked(x) || this.#isPoint(x) || others.some((other) => other !== '' && elementCount(this.#l.shape(other)) !== 1))
      return false;
    this.#write(node, [this.#l.blocked(x), ...others.map((other) => (other === '' ? '' : this.#l.plain(other)))]);
    return true;
  }

  /** True for [N, C, 1, 1], which is as well off in row-major order. */
  #isPoint(value: string): boolean {
    const [, , ...image] = this.#l.shape(value);
    return product(image) === 1 && this.#l.isBlocked(value) && (this.#l.shape(value)[1] as number) % this.#l.block === 0;
  }

  /** All operands have the result's shape or are scalars, and one is blocked already. */
  #elementwise(node: Node): boolean {
    const output = node.outputs[0] as string;
    const { shape } = this.#l.type(output);
    if (shape.length !== 4 || node.outputs.length !== 1 || !node.inputs.some((input) => this.#l.isBlocked(input) && !this.#isPoint(input)))
      return false;
    const isScalar = (input: string): boolean => elementCount(this.#l.shape(input)) === 1;
    if (!node.inputs.every((input) => sameShape(this.#l.shape(input), shape) || isScalar(input))) return false;
    if (node.operator === 'Add' && node.inputs.length === 2 && this.#addSpread(node)) return true;
    this.#write(
      node,
      node.inputs.map((input) => (sameShape(this.#l.shape(input), shape) ? this.#l.blocked(input) : this.#l.plain(input))),
    );
    return true;
  }

  /**
   * Points [N, C, 1, 1] with a scalar, written as a matrix: over the axes of length 1 the runtime takes the scalar element by element, which is fifty
   * times slower.
   */
  #points(node: Node): boolean {
    const output = node.outputs[0] as string;
    const { type, shape } = this.#l.type(output);
    const [samples = 1, channels = 1, ...image] = shape;
    if (shape.length !== 4 || product(image) !== 1 || samples * channels === 1 || node.outputs.length !== 1) return false;
    const isScalar = (input: string): boolean => elementCount(this.#l.shape(input)) === 1;
    if (!node.inputs.some(isScalar) || !node.inputs.every((input) => isScalar(input) || sameShape(this.#l.shape(input), shape)))
      return false;
    const inputs = node.inputs.map((input) => this.#l.reshape(this.#l.plain(input), isScalar(input) ? [] : [samples, channels]));
    const matrix = this.emitter.emitTyped(node.operator, inputs, { type, shape: [samples, channels] }, node.attributes);
    this.#l.setPlain(output, this.#l.reshape(matrix, shape));
    return true;
  }

  /** Writes an elementwise node on the given names; its result is blocked. */
  #write(node: Node, inputs: readonly string[]): void {
    const output = node.outputs[0] as string;
    const { type, shape } = this.#l.type(output);
    const blocked = { type, shape: this.#l.paddedShape(shape) };
    const name = this.emitter.emitTyped(node.operator, inputs, blocked, node.attributes);
    this.#l.setBlocked(output, name);
  }

  /** x + a value that repeats [N, C, 1, 1]: every sample's channel has an offset of its own. */
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

  /** If x = image · [N, C, 1, 1] and only this node reads it: its parts. */
  #factorOf(x: string): { readonly image: string; readonly source: string } | undefined {
    const producer = this.#producers.get(x);
    if (producer?.operator !== 'Mul' || (this.#readers.get(x)?.length ?? 0) !== 1 || this.#results.has(x)) return undefined;
    return this.#imageAndPoint(producer);
  }

  /** The operands of a product or sum of an image [N, C, H, W] that is blocked with a float for each sample's channel [N, C, 1, 1]. */
  #imageAndPoint(node: Node): { readonly image: string; readonly source: string } | undefined {
    const [a, b] = node.inputs as [string, string];
    const { shape } = this.#l.type(node.outputs[0] as string);
    const isPoint = (value: string): boolean => sameShape(this.#l.shape(value), [shape[0] as number, shape[1] as number, 1, 1]);
    for (const [image, source] of [
      [a, b],
      [b, a],
    ] as const) {
      if (sameShape(this.#l.shape(image), shape) && isPoint(source) && this.#isFloatImage(image) && this.#l.isBlocked(image))
        return { image, source };
    }
    return undefined;
  }

  /** An image times or plus one element for each sample's channel. */
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

  /** image · factor + offset, the latter two of shape [N, C, 1, 1] (default 1 and 0): every sample's channel as a channel. */
  #imageAffine(image: string, factor: string | undefined, offset?: string): string {
    const l = this.#l;
    const x = l.blocked(image);
    const [samples = 1, channels = 1, ...places] = this.emitter.shape(x);
    const images = samples * channels;
    const ones = (): string =>
      this.emitter.initializer(this.emitter.fresh('ones'), { type: 'float32', shape: [images], data: new Float32Array(images).fill(1) });
    const vector = (value: string): string => l.reshape(l.blocked(value), [images]);
    const name = channelAffine(l, {
      x: l.reshape(x, [1, images, ...places]),
      factor: factor === undefined ? ones() : vector(factor),
      ...(offset === undefined ? {} : { offset: vector(offset) }),
    });
    return l.reshape(name, [samples, channels, ...places]);
  }

  /** factor · the mean of each image: [N, C, 1, 1] or [N, C]. */
  #globalAverage(node: Node, factor: number): boolean {
    const x = node.inputs[0] as string;
    if (!this.#isFloatImage(x) || !this.#l.isBlocked(x) || this.#isPoint(x)) return false;
    const producer = this.#producers.get(x);
    const dots = factor !== 1 ? this.#dotsOf(producer) : undefined;
    const sums = dots ?? this.#matrix(imageMeans(this.#l, this.#l.blocked(x)));
    const size = product(this.#l.shape(x).slice(2));
    const scaled = dots === undefined ? this.#scaled(sums, factor) : this.#scaled(sums, factor / size);
    this.#setPoints(node.outputs[0] as string, scaled);
    return true;
  }

  #matrix(points: string): string {
    return this.#l.reshape(points, this.emitter.shape(points).slice(0, 2));
  }

  #scaled(name: string, factor: number): string {
    return factor === 1 ? name : this.emitter.emit('Mul', [name, this.emitter.scalarLike(name, factor)]);
  }

  /** Σ a·b over the places, if x is a product of two blocked images. */
  #dotsOf(producer: Node | undefined): string | undefined {
    if (producer?.operator !== 'Mul' || producer.domain !== '') return undefined;
    const [a, b] = producer.inputs as [string, string];
    const { shape } = this.#l.type(producer.outputs[0] as string);
    if (![a, b].every((value) => sameShape(this.#l.shape(value), shape) && this.#l.isBlocked(value))) return undefined;
    return imageDots(this.#l, this.#l.blocked(a), this.#l.blocked(b));
  }

  /** [N, C rounded up] as the node's output. */
  #setPoints(output: string, name: string): void {
    const { shape } = this.#l.type(output);
    const [samples = 1, channels = 1] = shape;
    const padded = this.emitter.shape(name)[1] as number;
    if (shape.length === 4) this.#l.setBlocked(output, this.#l.reshape(name, [samples, padded, 1, 1]));
    if (padded !== channels && shape.length === 4) return;
    const kept =
      padded === channels
        ? name
        : this.emitter.emit('Slice', [name, this.emitter.int64s([0]), this.emitter.int64s([channels]), this.emitter.int64s([1])]);
    this.#l.setPlain(output, this.#l.reshape(kept, shape));
  }

  /** Mean or sum over exactly the places. */
  #imageReduction(node: Node): boolean {
    const x = node.inputs[0] as string;
    const axes = this.#source.initializers.get(node.inputs[1] ?? '');
    if (!this.#isFloatImage(x) || axes === undefined) return false;
    const wanted = toNumbers(axes).map((axis) => (axis < 0 ? axis + 4 : axis));
    if (!sameShape([...wanted].sort(), [2, 3])) return false;
    return this.#globalAverage(node, node.operator === 'ReduceMean' ? 1 : product(this.#l.shape(x).slice(2)));
  }

  /** [N, C, 1, 1] to an image: written where somebody needs it. */
  #expand(node: Node): boolean {
    const [source] = node.inputs as [string];
    const output = node.outputs[0] as string;
    const { shape } = this.#l.type(output);
    if (
      shape.length !== 4 ||
      !this.#isFloatImage(source) ||
      !sameShape(this.#l.shape(source), [shape[0] as number, shape[1] as number, 1, 1])
    )
      return false;
    this.#l.setSpread(output, source);
    return true;
  }

  /** Parts of whole blocks beside each other. */
  #concat(node: Node): boolean {
    const output = node.outputs[0] as string;
    const { shape } = this.#l.type(output);
    if (shape.length !== 4 || intAttribute(node, 'axis', 0) !== 1 || !this.#isFloatImage(output)) return false;
    const isWhole = (input: string): boolean => (this.#l.shape(input)[1] as number) % this.#l.block === 0;
    if (!node.inputs.every(isWhole) || !node.inputs.some((input) => this.#l.isBlocked(input) && !this.#isPoint(input))) return false;
    this.#write(
      node,
      node.inputs.map((input) => this.#l.blocked(input)),
    );
    return true;
  }
}
