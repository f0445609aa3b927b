// The losses as graphs: value, correct predictions and the gradient in one run, for a device's share of a round's
// samples. The sums over shares, micro-batches and replicas are those of the whole batch; per sample they are PyTorch's
// CrossEntropyLoss and MSELoss with reduction='mean'. Labels are checked against the number of classes when data is
// read, not here; there is no ignore_index.

import { assert } from '../assert.ts';
import { InputError } from '../errors.ts';
import { Emitter } from '../graph/emitter.ts';
import { type Attributes, type Graph, int, ints, string } from '../graph/graph.ts';
import { dataTypeCode } from '../graph/operators/data-types.ts';
import { type ElementType, elementCount, isFloat, sameShape, type ValueType } from '../graph/tensor.ts';

export type LossKind = 'cross-entropy' | 'mse';

export interface LossOptions {
  /** Cross-entropy: the fraction, in [0, 1), of each label that is spread evenly over all classes. Default 0. */
  readonly labelSmoothing?: number;
}

/**
 * The loss of n samples, n being the first dimension of both types.
 *
 * Inputs: `logits`, `labels`, and `scale`, a float32 scalar: 1 / the batch size of the round. Outputs:
 * - `loss`: scalar, the sum of the samples' losses; a sample with several label positions counts with their mean.
 * float32, or float64 for float64 logits.
 * - `correct`: cross-entropy only, scalar of the same type: the number of correct predictions; a sample with several
 * positions counts by its correct fraction.
 * - `gradient`: of loss · scale, with the type and shape of the logits.
 *
 * Cross-entropy takes class numbers (any integer type) for logits [n, C, d…] or, if that does not fit, [n, d…, C]; or a
 * distribution of the logits' own shape, classes on axis 1. Trailing dimensions of 1 may be missing on either side.
 * Throws InputError if the shapes do not fit, and for an output that is not float.
 */
export function lossGraph(kind: LossKind, logits: ValueType, labels: ValueType, options: LossOptions = {}): Graph {
  const { labelSmoothing = 0 } = options;
  assert(labelSmoothing >= 0 && labelSmoothing < 1, `label smoothing of ${labelSmoothing}`);
  if (!isFloat(logits.type))
    throw new InputError(
      `The model's output is ${logits.type}, and a loss compares floats; export the model with its logits or ` +
        'values as the first output.',
    );
  const emitter = new Emitter();
  const writer = new LossWriter(emitter, logits, labels);
  return kind === 'mse' ? writer.meanSquaredError() : writer.crossEntropy(labelSmoothing);
}

/** Logits as a matrix [rows, C], one row for each label position, and the way back. */
interface Layout {
  /** Dimensions between batch and classes, in the order of the labels. */
  readonly positions: readonly number[];
  readonly classCount: number;
  /** True if the class axis is 1, before the positions. */
  readonly isClassFirst: boolean;
}

class LossWriter {
  readonly #emitter: Emitter;
  readonly #logits: ValueType;
  readonly #labels: ValueType;
  /** The type that the loss is computed in: half precision is too coarse for sums. */
  readonly #type: ElementType;

  constructor(emitter: Emitter, logits: ValueType, labels: ValueType) {
    this.#emitter = emitter;
    this.#logits = logits;
    this.#labels = labels;
    this.#type = logits.type === 'float64' ? 'float64' : 'float32';
    emitter.input('logits', logits.type, logits.shape);
    emitter.input('labels', labels.type, labels.shape);
    emitter.input('scale', 'float32', []);
  }

  /** loss = Σ_n mean_i (x − y)², gradient = (x − y) · 2 · scale / elements of a sample. */
  meanSquaredError(): Graph {
    const e = this.#emitter;
    const { shape } = this.#logits;
    if (!sameShape(squeezed(shape), squeezed(this.#labels.shape)))
      this.#refuse('mse', 'it needs one target for each output');
    const labels = e.emit('Reshape', [this.#cast('labels', this.#type), e.int64s(shape)]);
    const difference = e.emit('Sub', [this.#cast('logits', this.#type), labels]);
    const perSample = Math.max(1, elementCount(shape.slice(1)));
    this.#scalar('loss', e.emit('ReduceSumSquare', [difference], { keepdims: int(0) }), 1 / perSample);
    this.#gradient(e.emit('Mul', [difference, this.#factor(2 / perSample)]));
    return e.build('mse', ['loss', 'gradient']);
  }

  /** Cross-entropy with q, the label's distribution: loss = Σ_n mean_positions −Σ_c q_c log p_c with p = softmax(x). */
  crossEntropy(labelSmoothing: number): Graph {
    const e = this.#emitter;
    const isSoft = isFloat(this.#labels.type);
    const layout = isSoft
      ? softLayout(this.#logits.shape, this.#labels.shape)
      : classLayout(this.#logits.shape, this.#labels.shape);
    if (layout === undefined) {
      return this.#refuse(
        'cross-entropy',
        'it needs one class for each position that is not the class axis, or a distribution for each',
      );
    }
    const matrix = this.#toMatrix('logits', layout);
    const logSoftmax = e.emit('LogSoftmax', [matrix], { axis: int(-1) });
    const labels = isSoft
      ? this.#toMatrix('labels', layout)
      : e.emit('Reshape', [this.#cast('labels', 'int64'), e.int64s([e.shape(matrix)[0] as number, 1])]);
    const perSample = Math.max(1, elementCount(layout.positions));
    const gradient = isSoft
      ? this.#distributions(logSoftmax, labels, labelSmoothing, perSample)
      : this.#classes(logSoftmax, labels, labelSmoothing, perSample);
    this.#correct(matrix, isSoft ? e.emit('ArgMax', [labels], bestClass) : labels, perSample);
    this.#gradient(this.#fromMatrix(gradient, layout));
    return e.build('cross-entropy', ['loss', 'correct', 'gradient']);
  }

  /**
   * Labels y as class numbers, smoothed by s: loss = −(1 − s) log p_y − s/C Σ_c log p_c; gradient = p − s/C, less 1 − s
   * at y. Returns the gradient.
   */
  #classes(logSoftmax: string, labels: string, smoothing: number, perSample: number): string {
    const e = this.#emitter;
    const share = smoothing / (e.shape(logSoftmax)[1] as number);
    const picked = e.emit('ReduceSum', [e.emit('GatherElements', [logSoftmax, labels], { axis: int(1) })], {
      keepdims: int(0),
    });
    const kept = e.emit('Mul', [picked, e.scalarLike(picked, 1 - smoothing)]);
    const spread = (): string =>
      e.emit('Mul', [e.emit('ReduceSum', [logSoftmax], { keepdims: int(0) }), e.scalarLike(logSoftmax, share)]);
    this.#scalar('loss', smoothing === 0 ? picked : e.emit('Add', [kept, spread()]), -1 / perSample);
    const softmax = e.emit('Exp', [logSoftmax]);
    const p = smoothing === 0 ? softmax : e.emit('Sub', [softmax, e.scalarLike(softmax, share)]);
    const scaled = e.emit('Mul', [p, this.#factor(1 / perSample)]);
    const atLabel = e.emit('Expand', [this.#factor(-(1 - smoothing) / perSample), e.int64s(e.shape(labels))]);
    return e.emit('ScatterElements', [scaled, labels, atLabel], { axis: int(1), reduction: string('add') });
  }

  /**
   * Labels as distributions: q = (1 − s) labels + s/C; loss = −Σ_c q_c log p_c; gradient = p Σ_c q_c − q. Returns the
   * gradient.
   */
  #distributions(logSoftmax: string, labels: string, smoothing: number, perSample: number): string {
    const e = this.#emitter;
    const q = smoothing === 0 ? labels : this.#smooth(labels, smoothing, e.shape(labels)[1] as number);
    this.#scalar('loss', e.emit('ReduceSum', [e.emit('Mul', [q, logSoftmax])], { keepdims: int(0) }), -1 / perSample);
    const weight = e.emit('ReduceSum', [q, e.int64s([1])], { keepdims: int(1) });
    const difference = e.emit('Sub', [e.emit('Mul', [e.emit('Exp', [logSoftmax]), weight]), q]);
    return e.emit('Mul', [difference, this.#factor(1 / perSample)]);
  }

  #refuse(kind: LossKind, need: string): never {
    const [logits, labels] = [this.#logits.shape.join(', '), this.#labels.shape.join(', ')];
    throw new InputError(
      `The loss ${kind} cannot compare an output of shape [${logits}] with labels of shape [${labels}]: ${need}.`,
    );
  }

  #toMatrix(name: string, { positions, classCount, isClassFirst }: Layout): string {
    const e = this.#emitter;
    const value = this.#cast(name, this.#type);
    const count = this.#logits.shape[0] as number;
    const shape = e.int64s([count * elementCount(positions), classCount]);
    if (!isClassFirst || positions.length === 0) return e.emit('Reshape', [value, shape]);
    const flat = e.emit('Reshape', [value, e.int64s([count, classCount, elementCount(positions)])]);
    return e.emit('Reshape', [e.emit('Transpose', [flat], { perm: ints([0, 2, 1]) }), shape]);
  }

  #fromMatrix(matrix: string, { positions, classCount, isClassFirst }: Layout): string {
    const e = this.#emitter;
    if (!isClassFirst || positions.length === 0) return matrix;
    const flat = e.emit('Reshape', [
      matrix,
      e.int64s([this.#logits.shape[0] as number, elementCount(positions), classCount]),
    ]);
    return e.emit('Transpose', [flat], { perm: ints([0, 2, 1]) });
  }

  #smooth(target: string, labelSmoothing: number, classCount: number): string {
    const e = this.#emitter;
    const kept = e.emit('Mul', [target, e.scalarLike(target, 1 - labelSmoothing)]);
    return e.emit('Add', [kept, e.scalarLike(target, labelSmoothing / classCount)]);
  }

  #correct(matrix: string, classes: string, perSample: number): void {
    const e = this.#emitter;
    const right = e.emit('Equal', [e.emit('ArgMax', [matrix], bestClass), classes]);
    const count = e.emit('ReduceSum', [this.#cast(right, this.#type)], { keepdims: int(0) });
    this.#scalar('correct', count, 1 / perSample);
  }

  /** `scale` times a number, in the type of the computation. */
  #factor(number: number): string {
    const scale = this.#cast('scale', this.#type);
    return number === 1 ? scale : this.#emitter.emit('Mul', [scale, this.#emitter.scalarLike(scale, number)]);
  }

  #scalar(name: string, value: string, factor: number): void {
    const e = this.#emitter;
    this.#output(name, 'Mul', [value, e.scalarLike(value, factor)]);
  }

  #gradient(value: string): void {
    const { type, shape } = this.#logits;
    this.#output('gradient', 'Reshape', [this.#cast(value, type), this.#emitter.int64s(shape)]);
  }

  #cast(value: string, type: ElementType): string {
    if (this.#emitter.type(value).type === type) return value;
    return this.#emitter.emit('Cast', [value], { to: int(dataTypeCode(type)) });
  }

  #output(name: string, operator: string, inputs: readonly string[], attributes: Attributes = {}): void {
    this.#emitter.append({ operator, domain: '', name, inputs, outputs: [name], attributes });
  }
}

const bestClass: Attributes = { axis: int(1), keepdims: int(1) };

/**
 * The layout for labels that are class numbers: classes on axis 1 if that fits, as in PyTorch, otherwise on the last
 * axis.
 */
function classLayout(logits: readonly number[], labels: readonly number[]): Layout | undefined {
  if (logits.length < 2) return undefined;
  const [count, ...own] = logits as [number, ...number[]];
  const fits = (positions: readonly number[]): boolean => sameShape(squeezed([count, ...positions]), squeezed(labels));
  const first = { positions: own.slice(1), classCount: own[0] as number, isClassFirst: true };
  const last = { positions: own.slice(0, -1), classCount: own.at(-1) as number, isClassFirst: false };
  return [first, last].find(({ positions }) => fits(positions));
}

/** The layout for labels that are distributions: classes on axis 1. */
function softLayout(logits: readonly number[], labels: readonly number[]): Layout | undefined {
  if (logits.length < 2 || !sameShape(squeezed(logits), squeezed(labels))) return undefined;
  return { positions: logits.slice(2), classCount: logits[1] as number, isClassFirst: true };
}

/** A shape without trailing dimensions of 1; the batch dimension stays. */
function squeezed(shape: readonly number[]): readonly number[] {
  let end = shape.length;
  while (end > 1 && shape[end - 1] === 1) end--;
  return shape.slice(0, end);
}
