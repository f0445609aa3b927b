// Random valid applications of every operator: the shared material of property tests (types, ONNX Runtime, gradients).
// One seed is one case, for ever; a new operator does not compile until it has its generator here.

import {
  type Attribute,
  type Attributes,
  float,
  int,
  ints,
  type Node,
  string,
  tensorAttribute,
} from '../graph/graph.ts';
import { dataTypeCode } from '../graph/operators/data-types.ts';
import {
  anyType,
  arithmeticTypes,
  floatTypes,
  integerTypes,
  numericTypes,
  signedTypes,
  unsignedTypes,
} from '../graph/operators/define.ts';
import type { OperatorName } from '../graph/operators/names.ts';
import { numberToHalf } from '../graph/operators/numbers.ts';
import { type ElementType, elementCount, int64s, isFloat, scalar, type Tensor, tensor } from '../graph/tensor.ts';
import { createRandom, permutation, type Random } from '../random.ts';

/** A node and values for its inputs (undefined where an optional input is absent). */
export interface OperatorCase {
  readonly node: Node;
  readonly inputs: readonly (Tensor | undefined)[];
}

/** What the caller wants of a case. */
export interface CaseOptions {
  /** The element types to draw from; all that the operator takes where none of these is possible. Default: all. */
  readonly types?: readonly ElementType[];
}

/** The case of an operator that belongs to `seed`. */
export function operatorCase(operator: OperatorName, seed: number, options: CaseOptions = {}): OperatorCase {
  const draw = new Draw(createRandom(seed), options.types ?? anyType);
  const { inputs: drawn, attributes = {}, outputCount = 1 } = generators[operator](draw);
  // Absent inputs at the end are not written at all, as exporters do.
  const inputs = drawn.slice(0, drawn.findLastIndex((input) => input !== undefined) + 1);
  const node: Node = {
    operator,
    domain: '',
    name: `case ${seed}`,
    inputs: inputs.map((input, index) => (input === undefined ? '' : `input${index}`)),
    outputs: Array.from({ length: outputCount }, (_, index) => `output${index}`),
    attributes: Object.fromEntries(
      Object.entries(attributes).filter((entry): entry is [string, Attribute] => entry[1] !== undefined),
    ),
  };
  return { node, inputs };
}

interface Drawn {
  readonly inputs: readonly (Tensor | undefined)[];
  /** Undefined ones are left out. */
  readonly attributes?: Readonly<Record<string, Attribute | undefined>>;
  readonly outputCount?: number;
}

type Generator = (draw: Draw) => Drawn;

/** Draws the parts of a case. */
class Draw {
  readonly #random: Random;
  readonly #types: readonly ElementType[];

  constructor(random: Random, types: readonly ElementType[]) {
    this.#random = random;
    this.#types = types;
  }

  /** An integer in [low, high]. */
  integer(low: number, high: number): number {
    return low + this.#random.integer(high - low + 1);
  }

  integers(count: number, low: number, high: number): number[] {
    return Array.from({ length: count }, () => this.integer(low, high));
  }

  flag(): boolean {
    return this.#random.integer(2) === 1;
  }

  pick<T>(list: readonly T[]): T {
    return list[this.#random.integer(list.length)] as T;
  }

  /** The value, or undefined half of the time. */
  maybe<T>(value: T): T | undefined {
    return this.flag() ? value : undefined;
  }

  type(allowed: readonly ElementType[]): ElementType {
    const wanted = allowed.filter((type) => this.#types.includes(type));
    return this.pick(wanted.length > 0 ? wanted : allowed);
  }

  shape(leastRank = 0, mostRank = 4, most = 4): number[] {
    return this.integers(this.integer(leastRank, mostRank), 1, most);
  }

  /** A shape that broadcasts to `target`: leading axes dropped, some axes 1. */
  broadcastable(target: readonly number[]): number[] {
    return target.slice(this.integer(0, target.length)).map((dimension) => (this.flag() ? dimension : 1));
  }

  /** Floats between −3 and 3; integers too, from 0 for unsigned types; 0 and 1 for bool. */
  tensor(type: ElementType, shape: readonly number[]): Tensor {
    if (type === 'bool') return this.#fill(type, shape, () => this.integer(0, 1));
    if (type === 'float16') return this.#fill(type, shape, () => numberToHalf(this.#real()));
    if (isFloat(type)) return this.#fill(type, shape, () => this.#real());
    return this.#fill(type, shape, () => this.integer(type.startsWith('u') ? 0 : -3, 3));
  }

  /** Positive floats or integers. */
  positive(type: ElementType, shape: readonly number[]): Tensor {
    if (type === 'float16') return this.#fill(type, shape, () => numberToHalf(Math.abs(this.#real()) + 0.125));
    return this.#fill(type, shape, () => (isFloat(type) ? Math.abs(this.#real()) + 0.125 : this.integer(1, 3)));
  }

  /** Integers from −limit (0 where `negative` is false) up to limit − 1. */
  indices(type: ElementType, shape: readonly number[], limit: number, negative = true): Tensor {
    return this.#fill(type, shape, () => this.integer(negative ? -limit : 0, limit - 1));
  }

  /** An axis of a value of this rank, perhaps counted from the end. */
  axis(rank: number): number {
    return this.integer(-rank, rank - 1);
  }

  /** Some distinct axes in any order, at least `least`. */
  axes(rank: number, least = 0): number[] {
    const order = [...permutation(rank, this.#random)].slice(0, this.integer(least, rank));
    return order.map((axis) => (this.flag() ? axis : axis - rank));
  }

  order(rank: number): number[] {
    return [...permutation(rank, this.#random)];
  }

  #real(): number {
    return Math.fround(this.#random.uniform() * 6 - 3);
  }

  #fill(type: ElementType, shape: readonly number[], value: () => number): Tensor {
    return tensor(type, shape, Array.from({ length: elementCount(shape) }, value));
  }
}

const generators: Readonly<Record<OperatorName, Generator>> = {
  Abs: unary(numericTypes),
  Acos: unary(),
  Acosh: unary(),
  Add: binary(numericTypes),
  And: binary(['bool']),
  ArgMax: argument,
  ArgMin: argument,
  Asin: unary(),
  Asinh: unary(),
  Atan: unary(),
  Atanh: unary(),
  AveragePool: (draw) => pool(draw, floatTypes, { count_include_pad: draw.maybe(int(1)) }),
  BatchNormalization(draw) {
    const type = draw.type(floatTypes);
    const shape = draw.shape(2, 4);
    const channels = [shape[1] as number];
    const training = draw.flag();
    return {
      inputs: [
        draw.tensor(type, shape),
        draw.tensor(type, channels),
        draw.tensor(type, channels),
        draw.tensor(type, channels),
        draw.positive(type, channels),
      ],
      attributes: {
        training_mode: training ? int(1) : undefined,
        epsilon: draw.maybe(float(0.01)),
        momentum: draw.maybe(float(0.75)),
      },
      outputCount: training ? 3 : 1,
    };
  },
  Bernoulli: (draw) => ({
    inputs: [draw.positive(draw.type(floatTypes), draw.shape())],
    attributes: { dtype: draw.maybe(int(1)) },
  }),
  BitShift(draw) {
    const type = draw.type(unsignedTypes);
    const shape = draw.shape();
    return {
      inputs: [draw.tensor(type, shape), draw.tensor(type, draw.broadcastable(shape))],
      attributes: { direction: string(draw.pick(['LEFT', 'RIGHT'])) },
    };
  },
  BitwiseAnd: binary(integerTypes),
  BitwiseNot: unary(integerTypes),
  BitwiseOr: binary(integerTypes),
  BitwiseXor: binary(integerTypes),
  Cast: (draw) => ({
    inputs: [draw.positive(draw.type(numericTypes), draw.shape())],
    attributes: { to: int(dataTypeCode(draw.type(anyType))) },
  }),
  CastLike: (draw) => ({
    inputs: [draw.positive(draw.type(numericTypes), draw.shape()), draw.tensor(draw.type(anyType), draw.shape())],
  }),
  Ceil: unary(),
  Celu: unary(['float32'], { alpha: float(1.5) }),
  Clip(draw) {
    const type = draw.type(numericTypes);
    return {
      inputs: [draw.tensor(type, draw.shape()), draw.maybe(draw.tensor(type, [])), draw.maybe(draw.tensor(type, []))],
    };
  },
  Concat(draw) {
    const type = draw.type(anyType);
    const shape = draw.shape(1);
    const axis = draw.axis(shape.length);
    const inputs = Array.from({ length: draw.integer(1, 3) }, () =>
      draw.tensor(type, shape.with(axis, draw.integer(0, 3))),
    );
    return { inputs, attributes: { axis: int(axis) } };
  },
  Constant: (draw) => ({
    inputs: [],
    attributes: draw.pick<Attributes>([
      { value: tensorAttribute(draw.tensor(draw.type(anyType), draw.shape())) },
      { value_int: int(3) },
      { value_ints: ints([4, 5]) },
      { value_float: float(0.5) },
    ]),
  }),
  ConstantOfShape: (draw) => ({
    inputs: [int64s(draw.shape())],
    attributes: { value: draw.maybe(tensorAttribute(draw.tensor(draw.type(anyType), [1]))) },
  }),
  Conv(draw) {
    const { type, groups, kernel, spatial, attributes, autoPad } = convolution(draw);
    const [perGroup, channels] = [draw.integer(1, 2), groups * draw.integer(1, 2)];
    const dilations = draw.integers(kernel.length, 1, 2);
    const size = spatial.map(
      (extra, axis) =>
        ((kernel[axis] as number) - 1) * (autoPad === undefined ? (dilations[axis] as number) : 1) + extra,
    );
    return {
      inputs: [
        draw.tensor(type, [draw.integer(1, 2), groups * perGroup, ...size]),
        draw.tensor(type, [channels, perGroup, ...kernel]),
        draw.maybe(draw.tensor(type, [channels])),
      ],
      attributes: { ...attributes, dilations: autoPad === undefined ? ints(dilations) : undefined },
    };
  },
  ConvTranspose(draw) {
    const { type, groups, kernel, spatial, strides, attributes, autoPad } = convolution(draw);
    const [perGroup, channels] = [draw.integer(1, 2), groups * draw.integer(1, 2)];
    // Large enough that padding leaves something of the output.
    const size = spatial.map((extra) => extra + 2);
    const weights = draw.tensor(type, [channels, perGroup, ...kernel]);
    const outputPadding = strides.map((stride) => draw.integer(0, stride - 1));
    const covered = size.map((count, axis) => (count - 1) * (strides[axis] as number) + (kernel[axis] as number));
    const outputShape = covered.map((length, axis) =>
      Math.max(1, length + draw.integer(-1, (strides[axis] as number) - 1)),
    );
    const stated = draw.integer(0, 3) === 0 ? ints(outputShape) : undefined;
    return {
      inputs: [
        draw.tensor(type, [draw.integer(1, 2), channels, ...size]),
        weights,
        draw.maybe(draw.tensor(type, [perGroup * groups])),
      ],
      attributes: stated
        ? { ...attributes, pads: undefined, output_shape: stated }
        : { ...attributes, output_padding: autoPad === undefined ? draw.maybe(ints(outputPadding)) : undefined },
    };
  },
  Cos: unary(),
  Cosh: unary(),
  CumSum(draw) {
    const shape = draw.shape(1);
    const axis = scalar(draw.pick(['int32', 'int64']), draw.axis(shape.length));
    return {
      inputs: [draw.tensor(draw.type(arithmeticTypes), shape), axis],
      attributes: { exclusive: draw.maybe(int(1)), reverse: draw.maybe(int(1)) },
    };
  },
  DepthToSpace(draw) {
    const block = draw.integer(1, 3);
    const [n, c, h, w] = draw.integers(4, 1, 3) as [number, number, number, number];
    return {
      inputs: [draw.tensor(draw.type(floatTypes), [n, c * block * block, h, w])],
      attributes: { blocksize: int(block), mode: draw.maybe(string(draw.pick(['DCR', 'CRD']))) },
    };
  },
  Div(draw) {
    const type = draw.type(numericTypes);
    const shape = draw.shape();
    return { inputs: [draw.tensor(type, draw.broadcastable(shape)), draw.positive(type, shape)] };
  },
  Dropout: (draw) => ({
    inputs: [draw.tensor(draw.type(floatTypes), draw.shape()), draw.maybe(scalar('float32', 0.5)), scalar('bool', 0)],
    outputCount: draw.integer(1, 2),
  }),
  Elu: unary(floatTypes, { alpha: float(0.75) }),
  Equal: binary([...numericTypes, 'bool']),
  Erf: unary(),
  Exp: unary(),
  Expand(draw) {
    const shape = draw.shape();
    return {
      inputs: [draw.tensor(draw.type(anyType), draw.broadcastable(shape)), int64s(shape.map((dimension) => dimension))],
    };
  },
  EyeLike: (draw) => ({
    inputs: [draw.tensor(draw.type(anyType), draw.shape(2, 2))],
    attributes: {
      k: draw.maybe(int(draw.integer(-2, 2))),
      dtype: draw.maybe(int(dataTypeCode(draw.type(['float32', 'float64', 'int32', 'int64'])))),
    },
  }),
  Flatten(draw) {
    const shape = draw.shape();
    return {
      inputs: [draw.tensor(draw.type(anyType), shape)],
      attributes: { axis: int(draw.integer(-shape.length, shape.length)) },
    };
  },
  Floor: unary(),
  Gather(draw) {
    const shape = draw.shape(1);
    const axis = draw.axis(shape.length);
    const indices = draw.indices(draw.pick(['int32', 'int64']), draw.shape(0, 2), shape.at(axis) as number);
    return { inputs: [draw.tensor(draw.type(anyType), shape), indices], attributes: { axis: int(axis) } };
  },
  GatherElements(draw) {
    const { shape, axis, indices } = elementIndices(draw);
    return { inputs: [draw.tensor(draw.type(anyType), shape), indices], attributes: { axis: int(axis) } };
  },
  GatherND(draw) {
    const shape = draw.shape(2);
    const batch = draw.integer(0, 1);
    const depth = draw.integer(1, shape.length - batch);
    const limit = Math.min(...shape.slice(batch, batch + depth));
    const indices = draw.indices('int64', [...shape.slice(0, batch), ...draw.shape(0, 2), depth], limit);
    return { inputs: [draw.tensor(draw.type(anyType), shape), indices], attributes: { batch_dims: int(batch) } };
  },
  Gelu: (draw) => ({
    inputs: [draw.tensor(draw.type(floatTypes), draw.shape())],
    attributes: { approximate: draw.maybe(string(draw.pick(['none', 'tanh']))) },
  }),
  Gemm(draw) {
    const type = draw.type(arithmeticTypes);
    const [m, k, n] = draw.integers(3, 1, 4) as [number, number, number];
    const [transA, transB] = [draw.flag(), draw.flag()];
    return {
      inputs: [
        draw.tensor(type, transA ? [k, m] : [m, k]),
        draw.tensor(type, transB ? [n, k] : [k, n]),
        draw.maybe(draw.tensor(type, draw.broadcastable([m, n]))),
      ],
      attributes: {
        transA: int(Number(transA)),
        transB: int(Number(transB)),
        alpha: draw.maybe(float(isFloat(type) ? 0.5 : 2)),
        beta: draw.maybe(float(isFloat(type) ? 1.5 : 3)),
      },
    };
  },
  GlobalAveragePool: (draw) => ({ inputs: [draw.tensor(draw.type(floatTypes), draw.shape(3, 5))] }),
  GlobalMaxPool: (draw) => ({ inputs: [draw.tensor(draw.type(floatTypes), draw.shape(3, 5))] }),
  Greater: binary(numericTypes),
  GreaterOrEqual: binary(numericTypes),
  GroupNormalization(draw) {
    const type = draw.type(floatTypes);
    const groups = draw.integer(1, 3);
    const channels = groups * draw.integer(1, 3);
    return {
      inputs: [
        draw.tensor(type, [draw.integer(1, 2), channels, ...draw.shape(1, 2)]),
        draw.tensor(type, [channels]),
        draw.tensor(type, [channels]),
      ],
      attributes: { num_groups: int(groups), epsilon: draw.maybe(float(0.01)) },
    };
  },
  HardSigmoid: unary(floatTypes, { alpha: float(0.25), beta: float(0.375) }),
  HardSwish: unary(),
  Identity: unary(anyType),
  InstanceNormalization(draw) {
    const type = draw.type(floatTypes);
    const shape = draw.shape(3, 4);
    const channels = [shape[1] as number];
    return {
      inputs: [draw.tensor(type, shape), draw.tensor(type, channels), draw.tensor(type, channels)],
      attributes: { epsilon: draw.maybe(float(0.01)) },
    };
  },
  IsInf: (draw) => ({
    inputs: [withSpecials(draw.tensor(draw.type(['float32', 'float64']), draw.shape()))],
    attributes: { detect_negative: draw.maybe(int(0)), detect_positive: draw.maybe(int(0)) },
  }),
  IsNaN: (draw) => ({ inputs: [withSpecials(draw.tensor(draw.type(['float32', 'float64']), draw.shape()))] }),
  LayerNormalization(draw) {
    const type = draw.type(floatTypes);
    const shape = draw.shape(1);
    const axis = draw.axis(shape.length);
    const normalized = shape.slice(axis < 0 ? axis + shape.length : axis);
    return {
      inputs: [draw.tensor(type, shape), draw.tensor(type, normalized), draw.maybe(draw.tensor(type, normalized))],
      attributes: { axis: int(axis), epsilon: draw.maybe(float(0.01)) },
      outputCount: draw.pick([1, 3]),
    };
  },
  LeakyRelu: unary(floatTypes, { alpha: float(0.125) }),
  Less: binary(numericTypes),
  LessOrEqual: binary(numericTypes),
  Log: unary(),
  LogSoftmax: alongAxis,
  LpNormalization(draw) {
    const { inputs, attributes } = alongAxis(draw);
    return { inputs, attributes: { ...attributes, p: draw.maybe(int(draw.integer(1, 2))) } };
  },
  MatMul(draw) {
    const type = draw.type(arithmeticTypes);
    const [m, k, n] = draw.integers(3, 1, 4) as [number, number, number];
    const batch = draw.shape(0, 2, 3);
    const left = draw.flag() ? [k] : [...draw.broadcastable(batch), m, k];
    const right = draw.flag() ? [k] : [...draw.broadcastable(batch), k, n];
    return { inputs: [draw.tensor(type, left), draw.tensor(type, right)] };
  },
  Max: variadic(numericTypes),
  MaxPool: (draw) => ({
    ...pool(draw, [...floatTypes, 'int8', 'uint8'], { storage_order: draw.maybe(int(1)) }, true),
    outputCount: draw.integer(1, 2),
  }),
  Mean: variadic(floatTypes),
  Min: variadic(numericTypes),
  Mish: unary(),
  Mod(draw) {
    const type = draw.type(numericTypes);
    const shape = draw.shape();
    const fmod = isFloat(type) || draw.flag();
    return {
      inputs: [draw.tensor(type, shape), draw.positive(type, draw.broadcastable(shape))],
      attributes: { fmod: fmod ? int(1) : undefined },
    };
  },
  Mul: binary(numericTypes),
  Neg: unary(signedTypes),
  NonZero: (draw) => ({ inputs: [draw.tensor(draw.type(anyType), draw.shape())] }),
  Not: unary(['bool']),
  OneHot(draw) {
    const shape = draw.shape(1, 3);
    const depth = draw.integer(1, 4);
    const indices = draw.indices(draw.type(['int64', 'int32', 'float32']), shape, depth + 1);
    return {
      inputs: [indices, scalar(draw.type(['int64', 'int32', 'float32']), depth), draw.tensor(draw.type(anyType), [2])],
      attributes: { axis: draw.maybe(int(draw.axis(shape.length + 1))) },
    };
  },
  Or: binary(['bool']),
  PRelu(draw) {
    const type = draw.type(arithmeticTypes);
    const shape = draw.shape();
    return { inputs: [draw.tensor(type, shape), draw.tensor(type, draw.broadcastable(shape))] };
  },
  Pad(draw) {
    const type = draw.type(numericTypes);
    const shape = draw.integers(draw.integer(1, 4), 2, 4);
    const mode = draw.pick(['constant', 'reflect', 'edge', 'wrap']);
    const axes = draw.maybe(draw.axes(shape.length, 1));
    const pads = draw.integers(
      2 * (axes?.length ?? shape.length),
      mode === 'constant' ? -1 : 0,
      mode === 'constant' ? 3 : 1,
    );
    const value = mode === 'constant' ? draw.maybe(draw.tensor(type, [])) : undefined;
    return {
      inputs: [draw.tensor(type, shape), int64s(pads), value, axes && int64s(axes)],
      attributes: { mode: string(mode) },
    };
  },
  Pow(draw) {
    const shape = draw.shape();
    const exponent = draw.type(['float32', 'float64', 'int32', 'int64']);
    return {
      inputs: [
        draw.positive(draw.type(['float32', 'float64', 'int32', 'int64']), draw.broadcastable(shape)),
        draw.positive(exponent, shape),
      ],
    };
  },
  RandomNormal: (draw) => ({
    inputs: [],
    attributes: { shape: ints(draw.shape()), mean: draw.maybe(float(1.5)), scale: draw.maybe(float(2)) },
  }),
  RandomNormalLike: (draw) => ({
    inputs: [draw.tensor(draw.type(floatTypes), draw.shape())],
    attributes: { mean: draw.maybe(float(1.5)), dtype: draw.maybe(int(11)) },
  }),
  RandomUniform: (draw) => ({
    inputs: [],
    attributes: { shape: ints(draw.shape()), low: draw.maybe(float(-1)), high: draw.maybe(float(2)) },
  }),
  RandomUniformLike: (draw) => ({
    inputs: [draw.tensor(draw.type(floatTypes), draw.shape())],
    attributes: { low: draw.maybe(float(-1)), dtype: draw.maybe(int(11)) },
  }),
  Range(draw) {
    const type = draw.type(['float32', 'float64', 'int16', 'int32', 'int64']);
    const delta = draw.pick([-2, -1, 1, 2, 3]);
    return { inputs: [scalar(type, draw.integer(-5, 5)), scalar(type, draw.integer(-5, 5)), scalar(type, delta)] };
  },
  Reciprocal: unary(),
  ReduceL1: reduction(),
  ReduceL2: reduction(),
  ReduceLogSum: reduction(true),
  ReduceLogSumExp: reduction(),
  ReduceMax: reduction(),
  ReduceMean: reduction(),
  ReduceMin: reduction(),
  ReduceProd: reduction(),
  ReduceSum: reduction(),
  ReduceSumSquare: reduction(),
  Relu: unary(signedTypes),
  Reshape(draw) {
    const shape = draw.shape(1);
    const target = draw.order(shape.length).map((axis) => shape[axis] as number);
    if (draw.flag()) target.splice(draw.integer(0, target.length), 0, 1);
    if (draw.flag()) target[draw.integer(0, target.length - 1)] = -1;
    return {
      inputs: [draw.tensor(draw.type(anyType), shape), int64s(target)],
      attributes: { allowzero: draw.maybe(int(1)) },
    };
  },
  Resize: resize,
  Round: unary(),
  ScatterElements(draw) {
    const { shape, axis, indices } = elementIndices(draw);
    const type = draw.type(numericTypes);
    return {
      inputs: [draw.tensor(type, shape), indices, draw.tensor(type, indices.shape)],
      attributes: { axis: int(axis), reduction: scatterReduction(draw) },
    };
  },
  ScatterND(draw) {
    const shape = draw.shape(1);
    const depth = draw.integer(1, shape.length);
    const limit = Math.min(...shape.slice(0, depth));
    const outer = draw.shape(0, 2);
    const type = draw.type(numericTypes);
    return {
      inputs: [
        draw.tensor(type, shape),
        draw.indices('int64', [...outer, depth], limit),
        draw.tensor(type, [...outer, ...shape.slice(depth)]),
      ],
      attributes: { reduction: scatterReduction(draw) },
    };
  },
  Selu: unary(floatTypes, { alpha: float(1.5), gamma: float(1.25) }),
  Shape: (draw) => ({
    inputs: [draw.tensor(draw.type(anyType), draw.shape())],
    attributes: { start: draw.maybe(int(draw.integer(-5, 5))), end: draw.maybe(int(draw.integer(-5, 5))) },
  }),
  Sigmoid: unary(),
  Sign: unary(numericTypes),
  Sin: unary(),
  Sinh: unary(),
  Size: (draw) => ({ inputs: [draw.tensor(draw.type(anyType), draw.shape())] }),
  Slice(draw) {
    const shape = draw.shape(1);
    const axes = draw.axes(shape.length, 1);
    const list = (low: number, high: number): number[] => draw.integers(axes.length, low, high);
    const steps = list(1, 3).map((step) => (draw.flag() ? step : -step));
    return {
      inputs: [
        draw.tensor(draw.type(anyType), shape),
        int64s(list(-5, 5)),
        int64s(list(-5, 5)),
        int64s(axes),
        int64s(steps),
      ],
    };
  },
  Softmax: alongAxis,
  Softplus: unary(),
  Softsign: unary(),
  SpaceToDepth(draw) {
    const block = draw.integer(1, 3);
    const [n, c, h, w] = draw.integers(4, 1, 3) as [number, number, number, number];
    return {
      inputs: [draw.tensor(draw.type(floatTypes), [n, c, h * block, w * block])],
      attributes: { blocksize: int(block) },
    };
  },
  Split(draw) {
    const sizes = draw.integers(draw.integer(1, 3), 1, 3);
    const shape = draw.shape(1);
    const axis = draw.axis(shape.length);
    const total = sizes.reduce((sum, size) => sum + size, 0);
    const stated = draw.flag();
    // Without sizes the parts are equal but for the last one: always possible for a length from count² on.
    const x = draw.tensor(
      draw.type(anyType),
      shape.with(axis, stated ? total : draw.integer(sizes.length ** 2, sizes.length ** 2 + 3)),
    );
    return {
      inputs: [x, stated ? int64s(sizes) : undefined],
      attributes: { axis: int(axis), num_outputs: stated ? undefined : int(sizes.length) },
      outputCount: sizes.length,
    };
  },
  Sqrt: unary(),
  Squeeze(draw) {
    const shape = draw.shape().map((dimension) => (draw.flag() ? dimension : 1));
    const axes = shape.flatMap((dimension, axis) =>
      dimension === 1 && draw.flag() ? [draw.flag() ? axis : axis - shape.length] : [],
    );
    return { inputs: [draw.tensor(draw.type(anyType), shape), axes.length > 0 ? draw.maybe(int64s(axes)) : undefined] };
  },
  Sub: binary(numericTypes),
  Sum: variadic(floatTypes),
  Tan: unary(),
  Tanh: unary(),
  ThresholdedRelu: unary(floatTypes, { alpha: float(0.75) }),
  Tile(draw) {
    const shape = draw.shape(1);
    return { inputs: [draw.tensor(draw.type(anyType), shape), int64s(draw.integers(shape.length, 0, 3))] };
  },
  TopK(draw) {
    const shape = draw.shape(1);
    const axis = draw.axis(shape.length);
    const x = draw.tensor(draw.type(['float32', 'float64', 'int32', 'int64']), shape);
    return {
      inputs: [x, int64s([draw.integer(1, shape.at(axis) as number)])],
      attributes: { axis: int(axis), largest: draw.maybe(int(0)) },
      outputCount: 2,
    };
  },
  Transpose(draw) {
    const shape = draw.shape();
    return {
      inputs: [draw.tensor(draw.type(anyType), shape)],
      attributes: { perm: draw.maybe(ints(draw.order(shape.length))) },
    };
  },
  Trilu: (draw) => ({
    inputs: [draw.tensor(draw.type(anyType), draw.shape(2)), draw.maybe(scalar('int64', draw.integer(-3, 3)))],
    attributes: { upper: draw.maybe(int(0)) },
  }),
  Unsqueeze(draw) {
    const shape = draw.shape(0, 3);
    const count = draw.integer(1, 2);
    const axes = draw.order(shape.length + count).slice(0, count);
    return { inputs: [draw.tensor(draw.type(anyType), shape), int64s(axes)] };
  },
  Where(draw) {
    const shape = draw.shape();
    const type = draw.type(anyType);
    return {
      inputs: [
        draw.tensor('bool', draw.broadcastable(shape)),
        draw.tensor(type, shape),
        draw.tensor(type, draw.broadcastable(shape)),
      ],
    };
  },
  Xor: binary(['bool']),
};

/** x alone; each attribute there half of the time. */
function unary(types: readonly ElementType[] = floatTypes, attributes: Attributes = {}): Generator {
  return (draw) => ({
    inputs: [draw.tensor(draw.type(types), draw.shape())],
    attributes: Object.fromEntries(Object.entries(attributes).map(([name, value]) => [name, draw.maybe(value)])),
  });
}

function binary(types: readonly ElementType[]): Generator {
  return (draw) => {
    const type = draw.type(types);
    const shape = draw.shape();
    const inputs = [draw.tensor(type, shape), draw.tensor(type, draw.broadcastable(shape))];
    return { inputs: draw.flag() ? inputs : inputs.reverse() };
  };
}

function variadic(types: readonly ElementType[]): Generator {
  return (draw) => {
    const type = draw.type(types);
    const shape = draw.shape();
    return { inputs: Array.from({ length: draw.integer(1, 4) }, () => draw.tensor(type, draw.broadcastable(shape))) };
  };
}

function alongAxis(draw: Draw): Drawn {
  const shape = draw.shape(1);
  return {
    inputs: [draw.tensor(draw.type(floatTypes), shape)],
    attributes: { axis: draw.maybe(int(draw.axis(shape.length))) },
  };
}

function argument(draw: Draw): Drawn {
  const shape = draw.shape(1);
  const attributes = {
    axis: draw.maybe(int(draw.axis(shape.length))),
    keepdims: draw.maybe(int(0)),
    select_last_index: draw.maybe(int(1)),
  };
  return { inputs: [draw.tensor(draw.type(numericTypes), shape)], attributes };
}

function reduction(positive = false): Generator {
  return (draw) => {
    const shape = draw.shape();
    const type = draw.type(['float32', 'float64', 'float16', 'int32', 'int64']);
    const axes = draw.maybe(int64s(draw.axes(shape.length)));
    const x = positive ? draw.positive(type, shape) : draw.tensor(type, shape);
    return {
      inputs: [x, axes],
      attributes: { keepdims: draw.maybe(int(0)), noop_with_empty_axes: draw.maybe(int(1)) },
    };
  };
}

function resize(draw: Draw): Drawn {
  const mode = draw.pick(['nearest', 'linear', 'cubic']);
  const shape = [...draw.integers(2, 1, 2), ...draw.integers(2, 1, 5)];
  const type = draw.type(floatTypes);
  const stated = draw.flag();
  const listed = draw.flag();
  const [low, high] = [draw.pick([0.5, 0.6, 1, 2]), draw.pick([0.7, 1.5, 2, 3])];
  const scales = shape.map((size, axis) => (axis < 2 ? 1 : Math.max(axis === 2 ? low : high, 1 / size)));
  const sizes = shape.map((size, axis) => (axis < 2 ? size : draw.integer(1, 8)));
  const kept = (list: readonly number[]): readonly number[] => (listed ? list.slice(2) : list);
  return {
    inputs: [
      draw.tensor(type, shape),
      undefined,
      stated ? tensor('float32', [kept(scales).length], kept(scales)) : undefined,
      stated ? undefined : int64s(kept(sizes)),
    ],
    attributes: {
      mode: string(mode),
      axes: listed ? ints([2, 3]) : undefined,
      coordinate_transformation_mode: draw.maybe(
        string(draw.pick(['half_pixel', 'pytorch_half_pixel', 'align_corners', 'asymmetric'])),
      ),
      nearest_mode:
        mode === 'nearest' ? draw.maybe(string(draw.pick(['round_prefer_ceil', 'floor', 'ceil']))) : undefined,
      cubic_coeff_a: mode === 'cubic' ? draw.maybe(float(-0.5)) : undefined,
      exclude_outside: mode === 'cubic' ? draw.maybe(int(1)) : undefined,
    },
  };
}

function scatterReduction(draw: Draw): Attribute | undefined {
  return draw.maybe(string(draw.pick(['none', 'add', 'mul', 'max', 'min'])));
}

function elementIndices(draw: Draw): { readonly shape: number[]; readonly axis: number; readonly indices: Tensor } {
  const shape = draw.shape(1);
  const axis = draw.axis(shape.length);
  const positive = axis < 0 ? axis + shape.length : axis;
  const indexShape = shape.map((dimension, other) =>
    other === positive ? draw.integer(1, 4) : draw.integer(1, dimension),
  );
  return { shape, axis, indices: draw.indices(draw.pick(['int32', 'int64']), indexShape, shape[positive] as number) };
}

/** Some elements replaced by NaN and the infinities. */
function withSpecials(value: Tensor): Tensor {
  const data = value.data.slice() as Float64Array;
  const specials = [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  data.forEach((_, index) => {
    if (index % 2 === 0) data[index] = specials[(index / 2) % 3] as number;
  });
  return { ...value, data };
}

interface Convolution {
  readonly type: ElementType;
  readonly groups: number;
  readonly kernel: readonly number[];
  /** What the input has beyond the dilated kernel. */
  readonly spatial: readonly number[];
  readonly strides: readonly number[];
  readonly autoPad: string | undefined;
  readonly attributes: Readonly<Record<string, Attribute | undefined>>;
}

function convolution(draw: Draw): Convolution {
  const rank = draw.integer(1, 3);
  const kernel = draw.integers(rank, 1, 3);
  const strides = draw.integers(rank, 1, 2);
  const groups = draw.integer(1, 2);
  const autoPad = draw.integer(0, 3) === 0 ? draw.pick(['VALID', 'SAME_UPPER', 'SAME_LOWER']) : undefined;
  const pads = draw.integers(2 * rank, 0, 1);
  return {
    type: draw.type(floatTypes),
    groups,
    kernel,
    spatial: draw.integers(rank, 1, 4),
    strides,
    autoPad,
    attributes: {
      group: int(groups),
      strides: ints(strides),
      kernel_shape: draw.maybe(ints(kernel)),
      auto_pad: autoPad === undefined ? undefined : string(autoPad),
      pads: autoPad === undefined ? draw.maybe(ints(pads)) : undefined,
    },
  };
}

function pool(
  draw: Draw,
  types: readonly ElementType[],
  attributes: Readonly<Record<string, Attribute | undefined>>,
  dilated = false,
): Drawn {
  const rank = draw.integer(1, 3);
  const kernel = draw.integers(rank, 1, 3);
  const autoPad = draw.integer(0, 3) === 0 ? draw.pick(['VALID', 'SAME_UPPER', 'SAME_LOWER']) : undefined;
  const dilations = dilated && autoPad === undefined ? draw.integers(rank, 1, 2) : kernel.map(() => 1);
  const size = kernel.map((extent, axis) => (extent - 1) * (dilations[axis] as number) + draw.integer(1, 4));
  const pads = [...kernel, ...kernel].map((extent) => draw.integer(0, Math.min(1, extent - 1)));
  return {
    inputs: [draw.tensor(draw.type(types), [...draw.integers(2, 1, 2), ...size])],
    attributes: {
      ...attributes,
      kernel_shape: ints(kernel),
      // No longer than the kernel: where SAME would need negative padding, ONNX Runtime refuses.
      strides: draw.maybe(ints(kernel.map((extent) => draw.integer(1, extent)))),
      dilations: dilations.some((dilation) => dilation > 1) ? ints(dilations) : undefined,
      auto_pad: autoPad === undefined ? undefined : string(autoPad),
      pads: autoPad === undefined ? draw.maybe(ints(pads)) : undefined,
      ceil_mode: draw.maybe(int(1)),
    },
  };
}
