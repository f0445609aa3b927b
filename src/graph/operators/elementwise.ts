// Operators that compute each element of the result from the elements at the same place of their (broadcast) inputs.

import { floatAttribute, intAttribute, stringAttribute } from '../graph.ts';
import { elementCount, type ValueType } from '../tensor.ts';
import { elementTypeAttribute } from './data-types.ts';
import {
  arithmeticTypes,
  boolOnly,
  check,
  define,
  floatTypes,
  integerTypes,
  numericTypes,
  required,
  shapeText,
  signedTypes,
  typeText,
  unsignedTypes,
} from './define.ts';
import type { OperatorDefinition } from './definition.ts';
import { binary, shapesOf, unary, variadic, zip } from './elementwise-forms.ts';
import { bitShift, cast, clip, divideBig, modulo, power, where } from './elementwise-kernels.ts';
import { broadcastShapes, broadcastsTo } from './indexing.ts';
import type { ElementwiseName } from './names.ts';
import { isBig, literal, roundHalfToEven } from './numbers.ts';
import { erf, gelu, geluTanh, sigmoid, softplus } from './scalar-functions.ts';

export const elementwise: Readonly<Record<ElementwiseName, OperatorDefinition>> = {
  Abs: unary(() => Math.abs, { types: [numericTypes], big: (x) => (x < 0n ? -x : x) }),
  Acos: unary(() => Math.acos),
  Acosh: unary(() => Math.acosh),
  Add: binary(() => (a, b) => a + b),
  And: binary(() => (a, b) => a & b, { types: [boolOnly], result: 'bool' }),
  Asin: unary(() => Math.asin),
  Asinh: unary(() => Math.asinh),
  Atan: unary(() => Math.atan),
  Atanh: unary(() => Math.atanh),
  BitShift: binary(bitShift, { types: [unsignedTypes], attributes: { direction: 'string' } }),
  BitwiseAnd: binary(() => (a, b) => a & b, { types: [integerTypes] }),
  BitwiseNot: unary(() => (x) => ~x, { types: [integerTypes], big: (x) => ~x }),
  BitwiseOr: binary(() => (a, b) => a | b, { types: [integerTypes] }),
  BitwiseXor: binary(() => (a, b) => a ^ b, { types: [integerTypes] }),
  Cast: define({
    inputs: [1, 1],
    attributes: { to: 'int', saturate: 'int' },
    infer: (node, inputs) => [
      { type: elementTypeAttribute(node, 'to', intAttribute(node, 'to', 0)), shape: required(inputs, 0).shape },
    ],
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
        check(
          !bound || elementCount(bound.shape) === 1,
          node,
          () => `wants a scalar bound, not ${bound && typeText(bound)}`,
        );
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
      check(
        approximate === 'none' || approximate === 'tanh',
        node,
        () => `has approximate "${approximate}"; it may be "none" or "tanh"`,
      );
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
      return (x) =>
        Number((positive && x === Number.POSITIVE_INFINITY) || (negative && x === Number.NEGATIVE_INFINITY));
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
        () =>
          `has a slope of shape ${shapeText(slope.shape)}, which does not broadcast to its input's ` +
          `${shapeText(x.shape)}`,
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
  // Added term by term in the element type, as runtimes do: the sum is then the same if a cut of the graph splits it.
  Sum: variadic(floatTypes, (type) => (type === 'float64' ? (a, b) => a + b : (a, b) => Math.fround(a + b))),
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

function typeOf({ type, shape }: ValueType): ValueType {
  return { type, shape };
}
