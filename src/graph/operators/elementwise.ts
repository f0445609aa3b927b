// Operators that compute each element of their result from the elements at the same place of their (broadcast) inputs.

import { floatAttribute, intAttribute, type Node, stringAttribute } from '../graph.ts';
import { type ElementType, elementCount, isFloat, sameShape, type Tensor, type ValueType } from '../tensor.ts';
import { elementTypeAttribute } from './data-types.ts';
import {
  arithmeticTypes,
  boolOnly,
  check,
  define,
  floatTypes,
  type Inputs,
  numericTypes,
  required,
  type Specification,
  shapeText,
  signedTypes,
  typeText,
  unsignedTypes,
} from './define.ts';
import type { OperatorDefinition } from './definition.ts';
import { broadcastOffsets, broadcastShapes, broadcastsTo, gather } from './indexing.ts';
import type { ElementwiseName } from './names.ts';
import {
  highest,
  isBig,
  isInteger,
  literal,
  lowest,
  numbers,
  plainNumbers,
  roundHalfToEven,
  scratch,
  store,
  storePlain,
  toBig,
} from './numbers.ts';
import { erf, gelu, geluTanh, sigmoid, softplus } from './scalar-functions.ts';

type Unary = (x: number) => number;
type Binary = (a: number, b: number) => number;

export const elementwise: Readonly<Record<ElementwiseName, OperatorDefinition>> = {
  Abs: unary(() => Math.abs, { types: [numericTypes], big: (x) => (x < 0n ? -x : x) }),
  Acos: unary(() => Math.acos),
  Add: binary(() => (a, b) => a + b),
  And: binary(() => (a, b) => a & b, { types: [boolOnly], result: 'bool' }),
  Asin: unary(() => Math.asin),
  Atan: unary(() => Math.atan),
  BitShift: binary(bitShift, { types: [unsignedTypes], attributes: { direction: 'string' } }),
  Cast: define({
    inputs: [1, 1],
    attributes: { to: 'int', saturate: 'int' },
    infer: (node, inputs) => [{ type: elementTypeAttribute(node, 'to', intAttribute(node, 'to', 0)), shape: required(inputs, 0).shape }],
    evaluate: (_node, inputs, [result]) => [cast(required(inputs, 0), (result as ValueType).type)],
  }),
  CastLike: define({
    inputs: [2, 2],
    attributes: { saturate: 'int' },
    infer: (_node, inputs) => [{ type: required(inputs, 1).type, shape: required(inputs, 0).shape }],
    evaluate: (_node, inputs) => [cast(required(inputs, 0), required(inputs, 1).type)],
  }),
  Ceil: unary(() => Math.ceil),
  // max(0, x) + min(0, α·(exp(x/α) − 1))
  Celu: unary(
    (node) => {
      const alpha = floatAttribute(node, 'alpha', 1);
      return (x) => Math.max(0, x) + Math.min(0, alpha * Math.expm1(x / alpha));
    },
    { attributes: { alpha: 'float' } },
  ),
  Clip: define({
    inputs: [1, 3],
    types: [numericTypes],
    sameType: 'all',
    infer(node, inputs) {
      for (const index of [1, 2]) {
        const bound = inputs[index];
        check(!bound || elementCount(bound.shape) === 1, node, () => `wants a scalar bound, not ${bound && typeText(bound)}`);
      }
      const { type, shape } = required(inputs, 0);
      return [{ type, shape }];
    },
    evaluate: (_node, inputs) => [clip(inputs)],
  }),
  Cos: unary(() => Math.cos),
  Cosh: unary(() => Math.cosh),
  Div: binary((_node, type) => (isBig(type) ? divideBig : (a, b) => a / b)),
  // x for x ≥ 0, α·(exp(x) − 1) below
  Elu: unary(
    (node) => {
      const alpha = floatAttribute(node, 'alpha', 1);
      return (x) => (x < 0 ? alpha * Math.expm1(x) : x);
    },
    { attributes: { alpha: 'float' } },
  ),
  Equal: binary(() => (a, b) => Number(a === b), { types: [[...numericTypes, 'bool']], result: 'bool' }),
  Erf: unary(() => erf, { types: [numericTypes] }),
  Exp: unary(() => Math.exp),
  Floor: unary(() => Math.floor),
  Gelu: unary(
    (node) => {
      const approximate = stringAttribute(node, 'approximate', 'none');
      check(approximate === 'none' || approximate === 'tanh', node, () => `has approximate "${approximate}"; it may be "none" or "tanh"`);
      return approximate === 'tanh' ? geluTanh : gelu;
    },
    { attributes: { approximate: 'string' } },
  ),
  Greater: binary(() => (a, b) => Number(a > b), { result: 'bool' }),
  GreaterOrEqual: binary(() => (a, b) => Number(a >= b), { result: 'bool' }),
  // max(0, min(1, α·x + β))
  HardSigmoid: unary(
    (node) => {
      const alpha = floatAttribute(node, 'alpha', 0.2);
      const beta = floatAttribute(node, 'beta', 0.5);
      return (x) => Math.max(0, Math.min(1, alpha * x + beta));
    },
    { attributes: { alpha: 'float', beta: 'float' } },
  ),
  HardSwish: unary(() => (x) => x * Math.max(0, Math.min(1, x / 6 + 0.5))),
  Identity: define({
    inputs: [1, 1],
    infer: (_node, inputs) => [typeOf(required(inputs, 0))],
    evaluate: (_node, inputs) => [required(inputs, 0)],
  }),
  IsInf: unary(
    (node) => {
      const negative = intAttribute(node, 'detect_negative', 1) !== 0;
      const positive = intAttribute(node, 'detect_positive', 1) !== 0;
      return (x) => Number((positive && x === Number.POSITIVE_INFINITY) || (negative && x === Number.NEGATIVE_INFINITY));
    },
    { attributes: { detect_negative: 'int', detect_positive: 'int' }, result: 'bool' },
  ),
  IsNaN: unary(() => (x) => Number(Number.isNaN(x)), { result: 'bool' }),
  LeakyRelu: unary(
    (node) => {
      const alpha = floatAttribute(node, 'alpha', 0.01);
      return (x) => (x < 0 ? alpha * x : x);
    },
    { attributes: { alpha: 'float' } },
  ),
  Less: binary(() => (a, b) => Number(a < b), { result: 'bool' }),
  LessOrEqual: binary(() => (a, b) => Number(a <= b), { result: 'bool' }),
  Log: unary(() => Math.log),
  Max: variadic(numericTypes, (type) => (isBig(type) ? (a, b) => (a > b ? a : b) : Math.max)),
  Mean: variadic(
    floatTypes,
    () => (a, b) => a + b,
    (sum, count) => sum / count,
  ),
  Min: variadic(numericTypes, (type) => (isBig(type) ? (a, b) => (a < b ? a : b) : Math.min)),
  Mish: unary(() => (x) => x * Math.tanh(softplus(x))),
  Mod: binary(modulo, { attributes: { fmod: 'int' } }),
  Mul: binary((_node, type) => (type === 'int32' || type === 'uint32' ? Math.imul : (a, b) => a * b)),
  Neg: unary(() => (x) => -x, { types: [signedTypes], big: (x) => -x }),
  Not: unary(() => (x) => 1 - x, { types: [boolOnly] }),
  Or: binary(() => (a, b) => a | b, { types: [boolOnly], result: 'bool' }),
  PRelu: define({
    inputs: [2, 2],
    types: [arithmeticTypes],
    sameType: 'all',
    infer(node, inputs) {
      const x = required(inputs, 0);
      const slope = required(inputs, 1);
      check(
        broadcastsTo(slope.shape, x.shape),
        node,
        () => `has a slope of shape ${shapeText(slope.shape)}, which does not broadcast to its input's ${shapeText(x.shape)}`,
      );
      return [typeOf(x)];
    },
    evaluate: (_node, inputs, [result]) => {
      const zero = literal(required(inputs, 0).type, 0);
      return [zip(inputs, result as ValueType, (x, slope) => (x < zero ? slope * x : x))];
    },
  }),
  Pow: define({
    inputs: [2, 2],
    types: [[...floatTypes, 'int32', 'int64'], numericTypes],
    infer: (node, inputs) => [{ type: required(inputs, 0).type, shape: broadcastShapes(node, shapesOf(inputs)) }],
    evaluate: (_node, inputs, [result]) => [power(required(inputs, 0), required(inputs, 1), result as ValueType)],
  }),
  Reciprocal: unary(() => (x) => 1 / x),
  Relu: unary(() => (x) => (x < 0 ? 0 : x), { types: [signedTypes], big: (x) => (x < 0n ? 0n : x) }),
  Round: unary(() => roundHalfToEven),
  // γ·(x for x > 0, α·(exp(x) − 1) below); the defaults are ONNX's, float32 numbers
  Selu: unary(
    (node) => {
      const alpha = floatAttribute(node, 'alpha', 1.67326319217681884765625);
      const gamma = floatAttribute(node, 'gamma', 1.05070102214813232421875);
      return (x) => gamma * (x > 0 ? x : alpha * Math.expm1(x));
    },
    { attributes: { alpha: 'float', gamma: 'float' } },
  ),
  Sigmoid: unary(() => sigmoid),
  Sign: unary(() => Math.sign, { types: [numericTypes], big: (x) => (x > 0n ? 1n : x < 0n ? -1n : 0n) }),
  Sin: unary(() => Math.sin),
  Sinh: unary(() => Math.sinh),
  Softplus: unary(() => softplus),
  Softsign: unary(() => (x) => x / (1 + Math.abs(x))),
  Sqrt: unary(() => Math.sqrt),
  Sub: binary(() => (a, b) => a - b),
  Sum: variadic(floatTypes, () => (a, b) => a + b),
  Tan: unary(() => Math.tan),
  Tanh: unary(() => Math.tanh),
  ThresholdedRelu: unary(
    (node) => {
      const alpha = floatAttribute(node, 'alpha', 1);
      return (x) => (x > alpha ? x : 0);
    },
    { attributes: { alpha: 'float' } },
  ),
  Where: define({
    inputs: [3, 3],
    infer(node, inputs) {
      const condition = required(inputs, 0);
      const [a, b] = [required(inputs, 1), required(inputs, 2)];
      check(condition.type === 'bool', node, () => `wants a bool condition, not ${typeText(condition)}`);
      check(a.type === b.type, node, () => `mixes element types: ${typeText(a)} and ${typeText(b)}; add a Cast`);
      return [{ type: a.type, shape: broadcastShapes(node, shapesOf(inputs)) }];
    },
    evaluate: (_node, inputs, [result]) => [where(inputs, result as ValueType)],
  }),
  Xor: binary(() => (a, b) => a ^ b, { types: [boolOnly], result: 'bool' }),
};

interface UnaryOptions extends Pick<Specification, 'types' | 'attributes'> {
  /** The function on 64-bit integers; where it is not given they go through double precision. */
  readonly big?: (x: bigint) => bigint;
  /** The result's element type where it is not the input's. */
  readonly result?: ElementType;
}

/** An operator y = f(x); `choose` reads the attributes. Takes floats unless `types` says otherwise. */
function unary(
  choose: (node: Node) => Unary,
  { types = [floatTypes], attributes = {}, big, result }: UnaryOptions = {},
): OperatorDefinition {
  return define({
    inputs: [1, 1],
    types,
    attributes,
    infer(node, inputs) {
      choose(node);
      const { type, shape } = required(inputs, 0);
      return [{ type: result ?? type, shape }];
    },
    evaluate(node, inputs) {
      const x = required(inputs, 0);
      const type = result ?? x.type;
      if (big && isBig(x.type)) return [{ type, shape: x.shape, data: (x.data as BigInt64Array).map(big) }];
      return [storePlain(type, x.shape, Float64Array.from(plainNumbers(x), choose(node)))];
    },
  });
}

interface BinaryOptions extends Pick<Specification, 'types' | 'attributes'> {
  readonly result?: ElementType;
}

/** An operator c = f(a, b) with broadcasting, on two values of one type. Takes all numeric types unless `types` says otherwise. */
function binary(
  choose: (node: Node, type: ElementType) => Binary,
  { types = [numericTypes], attributes = {}, result }: BinaryOptions = {},
): OperatorDefinition {
  return define({
    inputs: [2, 2],
    types,
    sameType: 'all',
    attributes,
    infer(node, inputs) {
      const { type } = required(inputs, 0);
      choose(node, type);
      return [{ type: result ?? type, shape: broadcastShapes(node, shapesOf(inputs)) }];
    },
    evaluate: (node, inputs, [type]) => [zip(inputs, type as ValueType, choose(node, required(inputs, 0).type))],
  });
}

/** An operator that folds `combine` over any number of inputs of one type, with broadcasting, and then finishes each element. */
function variadic(
  types: readonly ElementType[],
  choose: (type: ElementType) => Binary,
  finish?: (total: number, count: number) => number,
): OperatorDefinition {
  return define({
    inputs: [1, Number.POSITIVE_INFINITY],
    types: [types],
    sameType: 'all',
    infer(node, inputs) {
      node.inputs.forEach((name) => check(name !== '', node, () => 'lacks one of its inputs'));
      return [{ type: required(inputs, 0).type, shape: broadcastShapes(node, shapesOf(inputs)) }];
    },
    evaluate(_node, inputs, [result]) {
      const { type, shape } = result as ValueType;
      const combine = choose(type);
      const total = scratch(type, elementCount(shape));
      inputs.forEach((input, position) => {
        const values = numbers(input as Tensor);
        const table = broadcastOffsets((input as Tensor).shape, shape);
        for (let index = 0; index < total.length; index++) {
          const value = values[table[index] as number] as number;
          total[index] = position === 0 ? value : combine(total[index] as number, value);
        }
      });
      if (finish)
        total.forEach((value, index) => {
          total[index] = finish(value, inputs.length);
        });
      return [store(type, shape, total)];
    },
  });
}

/** f over two inputs, broadcast to the result's shape. */
function zip(inputs: Inputs<Tensor>, { type, shape }: ValueType, f: Binary): Tensor {
  const [left, right] = [required(inputs, 0), required(inputs, 1)];
  const [a, b] = [numbers(left), numbers(right)];
  const values = scratch(type, elementCount(shape));
  if (sameShape(left.shape, right.shape)) {
    for (let index = 0; index < values.length; index++) values[index] = f(a[index] as number, b[index] as number);
  } else {
    const [first, second] = [broadcastOffsets(left.shape, shape), broadcastOffsets(right.shape, shape)];
    for (let index = 0; index < values.length; index++)
      values[index] = f(a[first[index] as number] as number, b[second[index] as number] as number);
  }
  return store(type, shape, values);
}

/** min(max(x, low), high), so that a crossed pair of bounds gives the upper one, as numpy does. */
function clip(inputs: Inputs<Tensor>): Tensor {
  const { type, shape } = required(inputs, 0);
  const x = numbers(required(inputs, 0));
  const low = inputs[1] === undefined ? lowest(type) : (numbers(inputs[1])[0] as number);
  const high = inputs[2] === undefined ? highest(type) : (numbers(inputs[2])[0] as number);
  const values = scratch(type, x.length);
  for (let index = 0; index < x.length; index++) {
    let value = x[index] as number;
    if (value < low) value = low;
    if (value > high) value = high;
    values[index] = value;
  }
  return store(type, shape, values);
}

/** a to the power of b in a's type. 64-bit integers with a whole exponent stay exact modulo 2^64. */
function power(base: Tensor, exponent: Tensor, { type, shape }: ValueType): Tensor {
  if (isBig(type) && isInteger(exponent.type)) {
    const exact = (a: bigint, b: bigint): bigint => (b >= 0n ? BigInt.asIntN(64, a ** b) : toBig(Number(a) ** Number(b)));
    return zip([base, cast(exponent, 'int64')], { type, shape }, exact as unknown as Binary);
  }
  const [a, b] = [plainNumbers(base), plainNumbers(exponent)];
  const [first, second] = [broadcastOffsets(base.shape, shape), broadcastOffsets(exponent.shape, shape)];
  return storePlain(
    type,
    shape,
    Float64Array.from(first, (from, index) => (a[from] as number) ** (b[second[index] as number] as number)),
  );
}

/** Truncating division of 64-bit integers; 0 where the divisor is 0, whose quotient ONNX leaves undefined. */
const divideBig: Binary = ((a: bigint, b: bigint) => (b === 0n ? 0n : a / b)) as unknown as Binary;

/** fmod = 1: the remainder has the sign of the dividend, as in C. fmod = 0 (integers only): the sign of the divisor, as in Python. */
function modulo(node: Node, type: ElementType): Binary {
  const fmod = intAttribute(node, 'fmod', 0) !== 0;
  check(fmod || !isFloat(type), node, () => `has ${type} operands and fmod = 0; floats need fmod = 1`);
  const zero = literal(type, 0);
  if (isInteger(type)) {
    return (a, b) => {
      if (b === zero) return zero;
      const rest = a % b;
      return !fmod && rest !== zero && rest < zero !== b < zero ? rest + b : rest;
    };
  }
  return (a, b) => a % b;
}

function bitShift(node: Node, type: ElementType): Binary {
  const direction = stringAttribute(node, 'direction', '');
  check(direction === 'LEFT' || direction === 'RIGHT', node, () => `has direction "${direction}"; it must be "LEFT" or "RIGHT"`);
  const left = direction === 'LEFT';
  if (isBig(type)) return ((a: bigint, b: bigint) => (left ? a << b : a >> b)) as unknown as Binary;
  // Powers of two keep unsigned 32-bit values out of JavaScript's signed shifts.
  return (a, b) => (left ? a * 2 ** b : Math.floor(a / 2 ** b));
}

function where(inputs: Inputs<Tensor>, { type, shape }: ValueType): Tensor {
  const [condition, yes, no] = [required(inputs, 0), required(inputs, 1), required(inputs, 2)];
  const flags = condition.data as Uint8Array;
  const flagOffsets = broadcastOffsets(condition.shape, shape);
  const result = gather(no, shape, broadcastOffsets(no.shape, shape));
  const yesOffsets = broadcastOffsets(yes.shape, shape);
  const [to, from] = [result.data as Float64Array, yes.data as Float64Array];
  for (let index = 0; index < to.length; index++)
    if (flags[flagOffsets[index] as number]) to[index] = from[yesOffsets[index] as number] as number;
  return { type, shape, data: to };
}

/** The values in another element type: floats round to nearest, integers lose the fraction and wrap, bool is "not zero". */
function cast(source: Tensor, type: ElementType): Tensor {
  const { shape } = source;
  if (source.type === type) return source;
  if (type === 'bool')
    return store(
      type,
      shape,
      Float64Array.from(plainNumbers(source), (x) => Number(x !== 0)),
    );
  if (!isBig(source.type)) return storePlain(type, shape, plainNumbers(source));
  if (isBig(type)) return { type, shape, data: (type === 'int64' ? BigInt64Array : BigUint64Array).from(source.data as BigInt64Array) };
  // Wrapping to 32 bits first keeps the low bits, which a double would lose.
  if (isInteger(type))
    return store(
      type,
      shape,
      Float64Array.from(source.data as unknown as ArrayLike<bigint>, (x) => Number(BigInt.asIntN(32, x))),
    );
  return store(type, shape, plainNumbers(source));
}

function typeOf({ type, shape }: ValueType): ValueType {
  return { type, shape };
}

function shapesOf(inputs: Inputs<ValueType>): readonly (readonly number[])[] {
  return inputs.flatMap((input) => (input ? [input.shape] : []));
}
