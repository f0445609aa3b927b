// Cases of the elementwise operators.

import fc from 'fast-check';
import { type Attributes, float, int, string } from '../../graph/graph.ts';
import { scalar, type Tensor, tensor } from '../../graph/tensor.ts';
import type { Random } from '../../random.ts';
import { awayFromZero, between, broadcastShapes, type CaseGenerator, cases, distinct, nodeOf, shapes } from './case.ts';

type Values = (random: Random, shape: readonly number[]) => Tensor;

const any: Values = (random, shape) => between(random, shape, -2, 2);
const positive: Values = (random, shape) => between(random, shape, 0.2, 3);
const unit: Values = (random, shape) => between(random, shape, -0.9, 0.9);

/** One input; each attribute has one of the given values. */
function unary(
  operator: string,
  values: Values,
  attributes: Readonly<Record<string, readonly number[]>> = {},
): CaseGenerator {
  const choices = Object.fromEntries(
    Object.entries(attributes).map(([name, choice]) => [name, fc.constantFrom(...choice)]),
  );
  return cases(fc.record({ shape: shapes(0, 3), attributes: fc.record(choices) }), (config, random) => ({
    node: nodeOf(
      operator,
      ['x'],
      Object.fromEntries(Object.entries(config.attributes).map(([name, value]) => [name, float(value)])),
    ),
    inputs: { x: values(random, config.shape) },
    differentiable: ['x'],
  }));
}

/** Two inputs that broadcast, one or both differentiable; or one value in both places. */
function binary(operator: string, first: Values, second: Values, attributes: Attributes = {}): CaseGenerator {
  const arbitrary = fc.record({
    shapes: broadcastShapes(2),
    differentiable: fc.constantFrom(['a', 'b'], ['a'], ['b']),
    same: fc.boolean(),
  });
  return cases(arbitrary, (config, random) => {
    const [shapeA = [], shapeB = []] = config.shapes;
    const b = second(random, shapeB);
    if (config.same) return { node: nodeOf(operator, ['b', 'b'], attributes), inputs: { b }, differentiable: ['b'] };
    return {
      node: nodeOf(operator, ['a', 'b'], attributes),
      inputs: { a: first(random, shapeA), b },
      differentiable: config.differentiable,
    };
  });
}

/** One to four inputs that broadcast. */
function variadic(operator: string): CaseGenerator {
  return cases(
    fc.integer({ min: 1, max: 4 }).chain((count) => broadcastShapes(count)),
    (config, random) => {
      const names = config.map((_, index) => `x${index}`);
      const values = distinct(random, ...config);
      return {
        node: nodeOf(operator, names),
        inputs: Object.fromEntries(names.map((name, index) => [name, values[index] as Tensor])),
        differentiable: names,
      };
    },
  );
}

export const elementwiseCases: Readonly<Record<string, CaseGenerator>> = {
  Abs: unary('Abs', awayFromZero),
  Acos: unary('Acos', unit),
  Acosh: unary('Acosh', (random, shape) => between(random, shape, 1.2, 4)),
  Add: binary('Add', any, any),
  Asin: unary('Asin', unit),
  Asinh: unary('Asinh', any),
  Atan: unary('Atan', any),
  Atanh: unary('Atanh', unit),
  Cast: cases(shapes(0, 3), (shape, random) => ({
    node: nodeOf('Cast', ['x'], { to: int(11) }),
    inputs: { x: any(random, shape) },
    differentiable: ['x'],
  })),
  CastLike: cases(shapes(0, 3), (shape, random) => ({
    node: nodeOf('CastLike', ['x', 'like']),
    inputs: { x: any(random, shape), like: scalar('float64', 0) },
    differentiable: ['x'],
  })),
  Celu: unary('Celu', awayFromZero, { alpha: [1, 0.5, 2] }),
  Clip: cases(
    fc.record({
      shape: shapes(0, 3),
      low: fc.option(fc.constantFrom(-1, 0.5, -0.3), { nil: undefined }),
      high: fc.option(fc.constantFrom(1, 0.1), { nil: undefined }),
      boundShape: fc.constantFrom([], [1]),
      differentiable: fc.constantFrom(['x'], ['x', 'low'], ['x', 'high'], ['low', 'high', 'x']),
    }),
    (config, random) => {
      const bounds = { low: config.low, high: config.high };
      const given = (Object.keys(bounds) as ('low' | 'high')[]).filter((name) => bounds[name] !== undefined);
      const away = (value: number): boolean => given.every((name) => Math.abs(value - (bounds[name] as number)) > 0.01);
      const names = ['x', config.low === undefined ? '' : 'low', config.high === undefined ? '' : 'high'];
      const differentiable = config.differentiable.filter((name) => name === 'x' || given.includes(name as 'low'));
      return {
        node: nodeOf('Clip', names),
        inputs: {
          x: between(random, config.shape, -2, 2, away),
          ...Object.fromEntries(
            given.map((name) => [name, tensor('float64', config.boundShape, [bounds[name] as number])]),
          ),
        },
        constants: given.filter((name) => !differentiable.includes(name)),
        differentiable: differentiable.length === 0 ? ['x'] : differentiable,
      };
    },
  ),
  Cos: unary('Cos', any),
  Cosh: unary('Cosh', any),
  Div: binary('Div', any, awayFromZero),
  Elu: unary('Elu', awayFromZero, { alpha: [1, 0.7, 0, -1] }),
  Erf: unary('Erf', any),
  Exp: unary('Exp', any),
  Gelu: cases(fc.record({ shape: shapes(0, 3), approximate: fc.constantFrom('none', 'tanh') }), (config, random) => ({
    node: nodeOf('Gelu', ['x'], { approximate: string(config.approximate) }),
    inputs: { x: any(random, config.shape) },
    differentiable: ['x'],
  })),
  HardSigmoid: cases(
    fc.record({
      shape: shapes(0, 3),
      alpha: fc.double({ min: 0.1, max: 1, noNaN: true }),
      beta: fc.double({ min: 0, max: 1, noNaN: true }),
    }),
    ({ shape, alpha, beta }, random) => {
      const away = (x: number): boolean => Math.abs(alpha * x + beta) > 0.01 && Math.abs(alpha * x + beta - 1) > 0.01;
      const node = nodeOf('HardSigmoid', ['x'], { alpha: float(alpha), beta: float(beta) });
      return { node, inputs: { x: between(random, shape, -4, 4, away) }, differentiable: ['x'] };
    },
  ),
  HardSwish: unary('HardSwish', (random, shape) =>
    between(random, shape, -5, 5, (x) => Math.abs(Math.abs(x) - 3) > 0.01),
  ),
  Identity: unary('Identity', any),
  LeakyRelu: unary('LeakyRelu', awayFromZero, { alpha: [0.01, 0.5, 0, -0.5] }),
  Log: unary('Log', positive),
  Max: variadic('Max'),
  Mean: variadic('Mean'),
  Min: variadic('Min'),
  Mish: unary('Mish', any),
  // a/b keeps away from whole numbers, where the remainder jumps: |b| > 2 > |a| ± …, or a = q·b + r, r in the middle
  Mod: cases(
    fc.record({ shapes: broadcastShapes(1), quotient: fc.integer({ min: -3, max: 3 }), broadcast: fc.boolean() }),
    (config, random) => {
      const shape = config.shapes[0] as readonly number[];
      const b = between(random, config.broadcast ? [] : shape, 0.8, 1.2);
      const a = between(random, shape, 0.2, 0.6).data as Float64Array;
      const sign = config.quotient < 0 ? -1 : 1;
      const values = Array.from(
        a,
        (rest, index) => config.quotient * ((b.data[config.broadcast ? 0 : index] as number) ?? 1) + sign * rest,
      );
      return {
        node: nodeOf('Mod', ['a', 'b'], { fmod: int(1) }),
        inputs: { a: tensor('float64', shape, values), b },
        differentiable: ['a', 'b'],
      };
    },
  ),
  Mul: binary('Mul', any, any),
  Neg: unary('Neg', any),
  PRelu: cases(
    broadcastShapes(1).chain((single) =>
      fc.record({
        x: fc.constant(single[0] as number[]),
        ones: fc.array(fc.boolean(), { minLength: 3, maxLength: 3 }),
        dropped: fc.nat(3),
      }),
    ),
    (config, random) => {
      const slope = config.x.map((size, axis) => (config.ones[axis] ? 1 : size)).slice(config.dropped);
      return {
        node: nodeOf('PRelu', ['x', 'slope']),
        inputs: { x: awayFromZero(random, config.x), slope: any(random, slope) },
        differentiable: ['x', 'slope'],
      };
    },
  ),
  Pow: cases(
    fc.oneof(
      fc.record({
        shapes: broadcastShapes(2),
        exponent: fc.constant(undefined),
        type: fc.constant<'float64'>('float64'),
      }),
      fc.record({
        shapes: broadcastShapes(2),
        exponent: fc.constantFrom(2, 3, 1, 0, -1, 4),
        type: fc.constantFrom<'float64' | 'int64'>('float64', 'int64'),
      }),
      fc.record({
        shapes: broadcastShapes(2),
        exponent: fc.constantFrom(0.5, 1.7, -0.5),
        type: fc.constant<'float64'>('float64'),
      }),
    ),
    ({ shapes: [x = [], p = []], exponent, type }, random) => {
      if (exponent === undefined) {
        return {
          node: nodeOf('Pow', ['x', 'p']),
          inputs: { x: positive(random, x), p: any(random, p) },
          differentiable: ['x', 'p'],
        };
      }
      const base = Number.isInteger(exponent) ? awayFromZero(random, x) : positive(random, x);
      return {
        node: nodeOf('Pow', ['x', 'p']),
        inputs: { x: base, p: tensor(type, [1], [exponent]) },
        constants: ['p'],
        differentiable: ['x'],
      };
    },
  ),
  Reciprocal: unary('Reciprocal', awayFromZero),
  Relu: unary('Relu', awayFromZero),
  Selu: unary('Selu', awayFromZero, { alpha: [1.6, 0.5, -1], gamma: [1.05, 2, -1] }),
  Sigmoid: unary('Sigmoid', any),
  Sin: unary('Sin', any),
  Sinh: unary('Sinh', any),
  Softplus: unary('Softplus', any),
  Softsign: unary('Softsign', awayFromZero),
  Sqrt: unary('Sqrt', positive),
  Sub: binary('Sub', any, any),
  Sum: variadic('Sum'),
  Tan: unary('Tan', (random, shape) => between(random, shape, -1.2, 1.2)),
  Tanh: unary('Tanh', any),
  ThresholdedRelu: cases(
    fc.record({ shape: shapes(0, 3), alpha: fc.constantFrom(-0.5, 0, 0.7) }),
    ({ shape, alpha }, random) => ({
      node: nodeOf('ThresholdedRelu', ['x'], { alpha: float(alpha) }),
      inputs: { x: between(random, shape, -2, 2, (x) => Math.abs(x - alpha) > 0.01) },
      differentiable: ['x'],
    }),
  ),
  Where: cases(
    fc.record({ shapes: broadcastShapes(3), differentiable: fc.constantFrom(['a', 'b'], ['a'], ['b']) }),
    (config, random) => {
      const [c = [], a = [], b = []] = config.shapes;
      const condition = tensor('bool', c, Array.from(between(random, c, 0, 2).data as Float64Array, Math.floor));
      return {
        node: nodeOf('Where', ['c', 'a', 'b']),
        inputs: { c: condition, a: any(random, a), b: any(random, b) },
        differentiable: config.differentiable,
      };
    },
  ),
};
