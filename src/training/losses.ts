// The losses as graphs: value, correct predictions and the gradient in one run, for a device's share of a round's
// samples. The sums over shares, micro-batches and replicas are those of the whole batch; per sample they are PyTorch's
// CrossEntropyLoss, MSELoss, L1Loss, HuberLoss and BCEWithLogitsLoss with reduction='mean', and the focal loss. Labels
// are checked when data is read (data/labels.ts), not here.

import { assert } from '../assert.ts';
import { InputError } from '../errors.ts';
import { Emitter } from '../graph/emitter.ts';
import { type Attributes, type Graph, int, ints, string } from '../graph/graph.ts';
import { dataTypeCode } from '../graph/operators/data-types.ts';
import { type ElementType, elementCount, isFloat, sameShape, type ValueType } from '../graph/tensor.ts';

/** The losses by name. */
export const lossKinds = ['cross-entropy', 'focal', 'binary-cross-entropy', 'mse', 'l1', 'huber'] as const;

export type LossKind = (typeof lossKinds)[number];

/** The losses of numbers, which take a target for each output. */
export type NumberLoss = 'mse' | 'l1' | 'huber';

/** Whether a loss compares numbers, of which none is right or wrong. */
export function isNumberLoss(kind: LossKind): kind is NumberLoss {
  return kind === 'mse' || kind === 'l1' || kind === 'huber';
}

/** Whether a loss knows right predictions. */
export function countsCorrect(kind: LossKind): boolean {
  return !isNumberLoss(kind);
}

/** The label that is left out, of data in which some are. */
export const ignoredLabel = -1;

export interface LossOptions {
  /** Cross-entropy: the fraction, in [0, 1), of each label that is spread evenly over all classes. Default 0. */
  readonly labelSmoothing?: number;
  /**
   * Of classes and of binary labels: those below 0 (`ignoredLabel`) count for nothing, in loss, right predictions and
   * gradient. Sums are still divided by all positions of a sample: to have the mean over those that count, multiply by
   * positions over counted positions of the whole batch. Default false: there are none.
   */
  readonly ignoresNegative?: boolean;
}

/**
 * The loss of n samples, n being the first dimension of both types.
 *
 * Inputs: `logits`, `labels`, and `scale`, a float32 scalar: 1 / the batch size of the round. Outputs:
 * - `loss`: scalar, the sum of the samples' losses; a sample with several label positions counts with their mean.
 * float32, or float64 for float64 logits.
 * - `correct`: not of losses of numbers, scalar of the same type: the number of correct predictions; a sample with
 * several positions counts by its correct fraction.
 * - `gradient`: of loss · scale, with the type and shape of the logits.
 *
 * Cross-entropy takes class numbers (any integer type) for logits [n, C, d…] or, if that does not fit, [n, d…, C]; or a
 * distribution of the logits' own shape, classes on axis 1. Focal takes class numbers alike. Binary cross-entropy takes
 * a label in [0, 1] for each logit, losses of numbers a target for each output. Dimensions of 1 after the batch count
 * for nothing on either side. Throws InputError if the shapes do not fit, and for an output that is not float.
 */
export function lossGraph(kind: LossKind, logits: ValueType, labels: ValueType, options: LossOptions = {}): Graph {
  const { labelSmoothing = 0, ignoresNegative = false } = options;
  assert(labelSmoothing >= 0 && labelSmoothing < 1, `label smoothing of ${labelSmoothing}`);
  if (!isFloat(logits.type))
    throw new InputError(
      `The model's output is ${logits.type}, and a loss compares floats; choose another with --output, or export the ` +
        'model with its logits or values as the first output.',
    );
  const emitter = new Emitter();
  const writer = new LossWriter(emitter, logits, labels, ignoresNegative);
  switch (kind) {
    case 'mse':
      return writer.meanSquaredError();
    case 'l1':
      return writer.absoluteError();
    case 'huber':
      return writer.huber();
    case 'focal':
      return writer.focal();
    case 'binary-cross-entropy':
      return writer.binaryCrossEntropy();
    case 'cross-entropy':
      return writer.crossEntropy(labelSmoothing);
  }
}

/** Logits as a matrix [rows, C], one row for each label position, and the way back. */
export interface Layout {
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
  readonly #ignoresNegative: boolean;

  constructor(emitter: Emitter, logits: ValueType, labels: ValueType, ignoresNegative: boolean) {
    this.#emitter = emitter;
    this.#ignoresNegative = ignoresNegative;
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
    const labels = this.#perOutput('mse', 'it needs one target for each output');
    const difference = e.emit('Sub', [this.#cast('logits', this.#type), labels]);
    const perSample = Math.max(1, elementCount(shape.slice(1)));
    this.#scalar('loss', e.emit('ReduceSumSquare', [difference], { keepdims: int(0) }), 1 / perSample);
    this.#gradient(e.emit('Mul', [difference, this.#factor(2 / perSample)]));
    return e.build('mse', ['loss', 'gradient']);
  }

  /** loss = Σ_n mean_i |x − y|, gradient = sign(x − y) · scale / elements of a sample. */
  absoluteError(): Graph {
    const e = this.#emitter;
    const difference = this.#difference('l1');
    return this.#ofNumbers('l1', e.emit('Abs', [difference]), e.emit('Sign', [difference]));
  }

  /** With d = x − y and c = d clipped to [−1, 1] (Huber 1964, δ = 1): loss = Σ_n mean_i c (d − c / 2), gradient = c. */
  huber(): Graph {
    const e = this.#emitter;
    const difference = this.#difference('huber');
    const clipped = e.emit('Clip', [difference, e.scalarLike(difference, -1), e.scalarLike(difference, 1)]);
    const half = e.emit('Mul', [clipped, e.scalarLike(clipped, 0.5)]);
    return this.#ofNumbers('huber', e.emit('Mul', [clipped, e.emit('Sub', [difference, half])]), clipped);
  }

  #difference(kind: NumberLoss): string {
    const labels = this.#perOutput(kind, 'it needs one target for each output');
    return this.#emitter.emit('Sub', [this.#cast('logits', this.#type), labels]);
  }

  /** The mean over a sample's outputs of losses that are given with their derivatives. */
  #ofNumbers(kind: NumberLoss, losses: string, derivatives: string): Graph {
    const e = this.#emitter;
    const perSample = Math.max(1, elementCount(this.#logits.shape.slice(1)));
    this.#scalar('loss', e.emit('ReduceSum', [losses], { keepdims: int(0) }), 1 / perSample);
    this.#gradient(e.emit('Mul', [derivatives, this.#factor(1 / perSample)]));
    return e.build(kind, ['loss', 'gradient']);
  }

  /**
   * Of the probability p of the label's class (Lin et al. 2017, eq. 4, γ = 2): loss = −(1 − p)² log p; the gradient is
   * cross-entropy's times (1 − p)² − 2 p (1 − p) log p.
   */
  focal(): Graph {
    const e = this.#emitter;
    const layout = classLayout(this.#logits.shape, this.#labels.shape);
    if (layout === undefined) return this.#refuse('focal', 'it needs one class for each position off the class axis');
    const matrix = this.#toMatrix('logits', layout);
    const [rowCount, classCount] = e.shape(matrix) as [number, number];
    const given = e.emit('Reshape', [this.#cast('labels', 'int64'), e.int64s([rowCount, 1])]);
    const counted = this.#counted(given);
    const labels = counted === undefined ? given : e.emit('Mul', [given, this.#cast(counted, 'int64')]);
    const only = (value: string): string => (counted === undefined ? value : e.emit('Mul', [value, counted]));
    const logSoftmax = e.emit('LogSoftmax', [matrix], { axis: int(-1) });
    const logP = e.emit('GatherElements', [logSoftmax, labels], { axis: int(1) });
    const p = e.emit('Exp', [logP]);
    const rest = e.emit('Sub', [e.scalarLike(p, 1), p]);
    const squared = e.emit('Mul', [rest, rest]);
    const perSample = Math.max(1, elementCount(layout.positions));
    const losses = only(e.emit('Mul', [squared, logP]));
    this.#scalar('loss', e.emit('ReduceSum', [losses], { keepdims: int(0) }), -1 / perSample);
    this.#correct(matrix, given, perSample);
    const slope = e.emit('Mul', [e.emit('Mul', [p, rest]), e.emit('Mul', [logP, e.scalarLike(logP, 2)])]);
    const weight = only(e.emit('Mul', [e.emit('Sub', [squared, slope]), this.#factor(1 / perSample)]));
    const scaled = e.emit('Mul', [
      e.emit('Exp', [logSoftmax]),
      e.emit('Expand', [weight, e.int64s([rowCount, classCount])]),
    ]);
    const less = e.emit('Neg', [weight]);
    const gradient = e.emit('ScatterElements', [scaled, labels, less], { axis: int(1), reduction: string('add') });
    this.#gradient(this.#fromMatrix(gradient, layout));
    return e.build('focal', ['loss', 'correct', 'gradient']);
  }

  /**
   * Of a probability p = σ(x) and a label y: loss = −y log p − (1 − y) log(1 − p) = log(1 + eˣ) − x y, gradient = p −
   * y.
   */
  binaryCrossEntropy(): Graph {
    const e = this.#emitter;
    const perSample = Math.max(1, elementCount(this.#logits.shape.slice(1)));
    const given = this.#perOutput('binary-cross-entropy', 'it needs one label, 0 to 1, for each output');
    const counted = this.#counted(given);
    const only = (value: string): string => (counted === undefined ? value : e.emit('Mul', [value, counted]));
    const [x, y] = [this.#cast('logits', this.#type), only(given)];
    const losses = only(e.emit('Sub', [e.emit('Softplus', [x]), e.emit('Mul', [x, y])]));
    this.#scalar('loss', e.emit('ReduceSum', [losses], { keepdims: int(0) }), 1 / perSample);
    const isAbove = (value: string, limit: number): string =>
      this.#cast(e.emit('Greater', [value, e.scalarLike(value, limit)]), this.#type);
    const right = only(this.#cast(e.emit('Equal', [isAbove(x, 0), isAbove(y, 0.5)]), this.#type));
    this.#scalar('correct', e.emit('ReduceSum', [right], { keepdims: int(0) }), 1 / perSample);
    const difference = only(e.emit('Sub', [e.emit('Sigmoid', [x]), y]));
    this.#gradient(e.emit('Mul', [difference, this.#factor(1 / perSample)]));
    return e.build('binary-cross-entropy', ['loss', 'correct', 'gradient']);
  }

  /** The labels in the type and shape of the logits. */
  #perOutput(kind: LossKind, need: string): string {
    const { shape } = this.#logits;
    if (!sameShape(withoutOnes(shape), withoutOnes(this.#labels.shape))) this.#refuse(kind, need);
    return this.#emitter.emit('Reshape', [this.#cast('labels', this.#type), this.#emitter.int64s(shape)]);
  }

  /** 1 for each label that counts, 0 for others; undefined where all count. */
  #counted(labels: string): string | undefined {
    if (!this.#ignoresNegative) return undefined;
    const e = this.#emitter;
    return this.#cast(e.emit('GreaterOrEqual', [labels, e.scalarLike(labels, 0)]), this.#type);
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
  #classes(logSoftmax: string, given: string, smoothing: number, perSample: number): string {
    const e = this.#emitter;
    const share = smoothing / (e.shape(logSoftmax)[1] as number);
    const counted = this.#counted(given);
    const labels = counted === undefined ? given : e.emit('Mul', [given, this.#cast(counted, 'int64')]);
    const only = (value: string): string => (counted === undefined ? value : e.emit('Mul', [value, counted]));
    const atLabels = only(e.emit('GatherElements', [logSoftmax, labels], { axis: int(1) }));
    const picked = e.emit('ReduceSum', [atLabels], { keepdims: int(0) });
    const kept = e.emit('Mul', [picked, e.scalarLike(picked, 1 - smoothing)]);
    const spread = (): string =>
      e.emit('Mul', [e.emit('ReduceSum', [only(logSoftmax)], { keepdims: int(0) }), e.scalarLike(logSoftmax, share)]);
    this.#scalar('loss', smoothing === 0 ? picked : e.emit('Add', [kept, spread()]), -1 / perSample);
    const softmax = e.emit('Exp', [logSoftmax]);
    const p = smoothing === 0 ? softmax : e.emit('Sub', [softmax, e.scalarLike(softmax, share)]);
    const scaled = e.emit('Mul', [p, only(this.#factor(1 / perSample))]);
    const less = this.#factor(-(1 - smoothing) / perSample);
    const atLabel = counted === undefined ? e.emit('Expand', [less, e.int64s(e.shape(labels))]) : only(less);
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
 * axis. Undefined if neither fits.
 */
export function classLayout(logits: readonly number[], labels: readonly number[]): Layout | undefined {
  if (logits.length < 2) return undefined;
  const own = withoutOnes(logits).slice(1);
  if (own.length === 0) own.push(1);
  const fits = (positions: readonly number[]): boolean =>
    logits[0] === labels[0] && sameShape(positions, withoutOnes(labels).slice(1));
  const first = { positions: own.slice(1), classCount: own[0] as number, isClassFirst: true };
  const last = { positions: own.slice(0, -1), classCount: own.at(-1) as number, isClassFirst: false };
  return [first, last].find(({ positions }) => fits(positions));
}

/** The layout for labels that are distributions: classes on axis 1. */
function softLayout(logits: readonly number[], labels: readonly number[]): Layout | undefined {
  const [, classCount = 1, ...positions] = withoutOnes(logits);
  if (logits.length < 2 || !sameShape(withoutOnes(logits), withoutOnes(labels))) return undefined;
  return { positions, classCount, isClassFirst: true };
}

/** A shape without its dimensions of 1; the first, the batch, stays. */
export function withoutOnes(shape: readonly number[]): number[] {
  return shape.filter((dimension, axis) => axis === 0 || dimension !== 1);
}
