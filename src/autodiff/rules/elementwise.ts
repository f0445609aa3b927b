// Gradients of the elementwise operators. Notation: x, a, b inputs, y the output, g = dL/dy, and dx = dL/dx. A formula
// that could use either x or y uses y, which the next operator usually saves anyway.

import type { Emitter } from '../../graph/emitter.ts';
import { float, floatAttribute, stringAttribute } from '../../graph/graph.ts';
import type { ElementwiseName } from '../../graph/operators/names.ts';
import {
  add,
  apply,
  cast,
  compare,
  div,
  gated,
  masked,
  mul,
  oneMinus,
  scale,
  select,
  shift,
  square,
  sub,
  sum,
  sumTo,
} from '../expressions.ts';
import {
  type GradientRule,
  gradientOf,
  inputOf,
  inputShape,
  outputOf,
  type RuleContext,
  type RuleEntry,
  whereNeeded,
} from '../rule.ts';
import { clip } from './clipping.ts';
import { power } from './powers.ts';

export const elementwiseRules: Readonly<Record<ElementwiseName, RuleEntry>> = {
  // g · sign(x)
  Abs: unary((e, { g, x }) => mul(e, g, apply(e, 'Sign', x()))),
  // −g / √(1 − x²)
  Acos: unary((e, { g, x }) => scale(e, div(e, g, apply(e, 'Sqrt', oneMinus(e, square(e, x())))), -1)),
  // g / √(x² − 1)
  Acosh: unary((e, { g, x }) => div(e, g, apply(e, 'Sqrt', shift(e, square(e, x()), -1)))),
  // da = g, db = g
  Add: binary({ a: (_, { g }) => g, b: (_, { g }) => g }),
  And: 'not-differentiable',
  // g / √(1 − x²)
  Asin: unary((e, { g, x }) => div(e, g, apply(e, 'Sqrt', oneMinus(e, square(e, x()))))),
  // g / √(x² + 1)
  Asinh: unary((e, { g, x }) => div(e, g, apply(e, 'Sqrt', shift(e, square(e, x()), 1)))),
  // g / (1 + x²)
  Atan: unary((e, { g, x }) => div(e, g, shift(e, square(e, x()), 1))),
  // g / (1 − x²)
  Atanh: unary((e, { g, x }) => div(e, g, oneMinus(e, square(e, x())))),
  BitShift: 'not-differentiable',
  BitwiseAnd: 'not-differentiable',
  BitwiseNot: 'not-differentiable',
  BitwiseOr: 'not-differentiable',
  BitwiseXor: 'not-differentiable',
  // g in x's type
  Cast: unary((e, { g, x }) => cast(e, g, e.type(x()).type)),
  CastLike: (context) => [
    cast(context.emitter, gradientOf(context), context.emitter.type(inputOf(context)).type),
    undefined,
  ],
  Ceil: 'not-differentiable',
  // g · (1 for y ≥ 0, exp(x/α) = y/α + 1 below)
  Celu: unary((e, { g, y, number }) =>
    mul(e, g, e.emit('Min', [shift(e, scale(e, y(), 1 / number('alpha', 1)), 1), e.scalarLike(y(), 1)])),
  ),
  Clip: clip,
  // −g · sin x
  Cos: unary((e, { g, x }) => scale(e, mul(e, g, apply(e, 'Sin', x())), -1)),
  // g · sinh x
  Cosh: unary((e, { g, x }) => mul(e, g, apply(e, 'Sinh', x()))),
  // da = g / b, db = −g · y / b
  Div: binary({ a: (e, { g, b }) => div(e, g, b()), b: (e, { g, b, y }) => scale(e, div(e, mul(e, g, y()), b()), -1) }),
  // g · (1 for x ≥ 0, α·exp(x) = y + α below)
  Elu: unary((e, c) => exponentialTail(e, c, c.number('alpha', 1), 1)),
  Equal: 'not-differentiable',
  // g · 2/√π · exp(−x²)
  Erf: unary((e, { g, x }) =>
    mul(e, g, scale(e, apply(e, 'Exp', scale(e, square(e, x()), -1)), 2 / Math.sqrt(Math.PI))),
  ),
  // g · y
  Exp: unary((e, { g, y }) => mul(e, g, y())),
  Floor: 'not-differentiable',
  Gelu: unary((e, c) => (c.text('approximate', 'none') === 'tanh' ? geluTanh(e, c) : gelu(e, c))),
  Greater: 'not-differentiable',
  GreaterOrEqual: 'not-differentiable',
  // g · α where 0 < y < 1, which is where y(1 − y) is not 0
  HardSigmoid: unary((e, { g, y, number }) =>
    gated(e, scale(e, g, number('alpha', 0.2)), mul(e, y(), oneMinus(e, y()))),
  ),
  HardSwish: unary(hardSwish),
  Identity: unary((_, { g }) => g),
  IsInf: 'not-differentiable',
  IsNaN: 'not-differentiable',
  // g for x > 0, α·g elsewhere; α ≥ 0 keeps the sign, so y can replace x
  LeakyRelu: unary((e, { g, x, y, number }) => {
    const alpha = number('alpha', 0.01);
    return select(e, compare(e, 'Greater', alpha >= 0 ? y() : x(), 0), g, scale(e, g, alpha));
  }),
  Less: 'not-differentiable',
  LessOrEqual: 'not-differentiable',
  // g / x
  Log: unary((e, { g, x }) => div(e, g, x())),
  Max: extremum,
  // g / n to each of the n inputs
  Mean: (context) => shared(context, (e, g) => scale(e, g, 1 / context.node.inputs.length)),
  Min: extremum,
  Mish: unary(mish),
  // fmod: y = a − b·trunc(a/b), so da = g and db = −g · trunc(a/b) = g · (y − a)/b
  Mod: binary({
    a: (_, { g }) => g,
    b: (e, { g, a, b, y }) => mul(e, g, apply(e, 'Round', div(e, sub(e, y(), a()), b()))),
  }),
  Mul: multiplication,
  // −g
  Neg: unary((e, { g }) => scale(e, g, -1)),
  Not: 'not-differentiable',
  Or: 'not-differentiable',
  // da = g for a ≥ 0, slope·g below; dslope = g · min(a, 0)
  PRelu: binary({
    a: (e, { g, a, b }) => select(e, compare(e, 'Less', a(), 0), mul(e, g, b()), g),
    b: (e, { g, a }) => mul(e, g, e.emit('Min', [a(), e.scalarLike(a(), 0)])),
  }),
  Pow: power,
  // −g · y²
  Reciprocal: unary((e, { g, y }) => scale(e, mul(e, g, square(e, y())), -1)),
  // g where y > 0, which is where it is not 0
  Relu: unary((e, { g, y }) => gated(e, g, y())),
  Round: 'not-differentiable',
  // g · (γ for x > 0, γα·exp(x) = y + γα elsewhere)
  Selu: unary((e, c) => {
    const gamma = c.number('gamma', 1.05070102214813232421875);
    return exponentialTail(e, c, gamma * c.number('alpha', 1.67326319217681884765625), gamma);
  }),
  // g · y · (1 − y)
  Sigmoid: unary((e, { g, y }) => mul(e, g, mul(e, y(), oneMinus(e, y())))),
  Sign: 'not-differentiable',
  // g · cos x
  Sin: unary((e, { g, x }) => mul(e, g, apply(e, 'Cos', x()))),
  // g · cosh x
  Sinh: unary((e, { g, x }) => mul(e, g, apply(e, 'Cosh', x()))),
  // g · sigmoid(x)
  Softplus: unary((e, { g, x }) => mul(e, g, apply(e, 'Sigmoid', x()))),
  // g / (1 + |x|)²
  Softsign: unary((e, { g, x }) => div(e, g, square(e, shift(e, apply(e, 'Abs', x()), 1)))),
  // g / (2y)
  Sqrt: unary((e, { g, y }) => div(e, scale(e, g, 0.5), y())),
  // da = g, db = −g
  Sub: binary({ a: (_, { g }) => g, b: (e, { g }) => scale(e, g, -1) }),
  // g to each input
  Sum: (context) => shared(context, (_, g) => g),
  // g · (1 + y²)
  Tan: unary((e, { g, y }) => mul(e, g, shift(e, square(e, y()), 1))),
  // g · (1 − y²)
  Tanh: unary((e, { g, y }) => mul(e, g, oneMinus(e, square(e, y())))),
  // g where x > α; α ≥ 0 leaves y not 0 exactly there
  ThresholdedRelu: unary((e, { g, x, y, number }) => {
    const alpha = number('alpha', 1);
    return alpha >= 0 ? gated(e, g, y()) : masked(e, g, compare(e, 'Greater', x(), alpha));
  }),
  // da = g where the condition holds, db = g where it does not
  Where: (context) => {
    const { emitter: e } = context;
    const g = gradientOf(context);
    const condition = inputOf(context, 0);
    return whereNeeded(
      context,
      () => undefined,
      () => sumTo(e, masked(e, g, condition), inputShape(context, 1)),
      () => sumTo(e, select(e, condition, e.scalarLike(g, 0), g), inputShape(context, 2)),
    );
  },
  Xor: 'not-differentiable',
};

/** The values of a unary operator; reading one makes the forward pass save it. */
interface UnaryValues {
  readonly g: string;
  readonly x: () => string;
  readonly y: () => string;
  readonly number: (attribute: string, fallback: number) => number;
  readonly text: (attribute: string, fallback: string) => string;
}

function unary(formula: (e: Emitter, values: UnaryValues) => string): GradientRule {
  return (context) => [
    formula(context.emitter, {
      g: gradientOf(context),
      x: () => inputOf(context),
      y: () => outputOf(context),
      number: (attribute, fallback) => floatAttribute(context.node, attribute, fallback),
      text: (attribute, fallback) => stringAttribute(context.node, attribute, fallback),
    }),
  ];
}

interface BinaryValues {
  readonly g: string;
  readonly a: () => string;
  readonly b: () => string;
  readonly y: () => string;
}

/** Two formulas on the broadcast shape, each summed to its input's shape. */
function binary(formulas: Readonly<Record<'a' | 'b', (e: Emitter, values: BinaryValues) => string>>): GradientRule {
  return (context) => {
    const e = context.emitter;
    const values = {
      g: gradientOf(context),
      a: () => inputOf(context, 0),
      b: () => inputOf(context, 1),
      y: () => outputOf(context),
    };
    return whereNeeded(
      context,
      () => sumTo(e, formulas.a(e, values), inputShape(context, 0)),
      () => sumTo(e, formulas.b(e, values), inputShape(context, 1)),
    );
  };
}

/** The same gradient to every input, summed to its shape. */
function shared(context: RuleContext, formula: (e: Emitter, g: string) => string): readonly (string | undefined)[] {
  const e = context.emitter;
  const g = formula(e, gradientOf(context));
  return context.node.inputs.map((_, index) =>
    context.needs[index] ? sumTo(e, g, inputShape(context, index)) : undefined,
  );
}

/** g · (slope for x > 0, factor·exp(x) = y + factor below); where both are > 0, y has x's sign. */
function exponentialTail(e: Emitter, { g, x, y }: UnaryValues, factor: number, slope: number): string {
  if (factor <= 0 || slope <= 0) {
    return mul(
      e,
      g,
      select(e, compare(e, 'Less', x(), 0), scale(e, apply(e, 'Exp', x()), factor), e.scalarLike(g, slope)),
    );
  }
  return mul(e, g, select(e, compare(e, 'Less', y(), 0), shift(e, y(), factor), e.scalarLike(g, slope)));
}

/** y = x·Φ(x): g · (Φ(x) + x·φ(x)), Φ(x) = ½(1 + erf(x/√2)), φ(x) = exp(−x²/2)/√(2π) */
function gelu(e: Emitter, { g, x }: UnaryValues): string {
  // ½ + ½·erf in one pass: HardSigmoid's bounds are those of Φ
  const cumulative = e.emit('HardSigmoid', [apply(e, 'Erf', scale(e, x(), Math.SQRT1_2))], {
    alpha: float(0.5),
    beta: float(0.5),
  });
  const density = scale(e, apply(e, 'Exp', scale(e, square(e, x()), -0.5)), 1 / Math.sqrt(2 * Math.PI));
  return mul(e, g, add(e, cumulative, mul(e, x(), density)));
}

/** y = ½x(1 + t), t = tanh(c(x + kx³)): g · (½(1 + t) + ½x(1 − t²)·c(1 + 3kx²)) */
function geluTanh(e: Emitter, { g, x }: UnaryValues): string {
  const c = Math.sqrt(2 / Math.PI);
  const k = 0.044715;
  const xx = square(e, x());
  const t = apply(e, 'Tanh', mul(e, x(), shift(e, scale(e, xx, c * k), c)));
  const inner = mul(e, x(), shift(e, scale(e, xx, 1.5 * c * k), 0.5 * c));
  return mul(e, g, add(e, shift(e, scale(e, t, 0.5), 0.5), mul(e, oneMinus(e, square(e, t)), inner)));
}

/** g · (x/3 + ½ for |x| < 3, 0 below, 1 above) */
function hardSwish(e: Emitter, { g, x }: UnaryValues): string {
  const inside = compare(e, 'Less', apply(e, 'Abs', x()), 3);
  const outside = e.emit('HardSigmoid', [x()], { alpha: float(1 / 6), beta: float(0.5) });
  return mul(e, g, select(e, inside, shift(e, scale(e, x(), 1 / 3), 0.5), outside));
}

/** y = x·t, t = tanh(softplus x): g · (t + x·(1 − t²)·sigmoid(x)) */
function mish(e: Emitter, { g, x }: UnaryValues): string {
  const t = apply(e, 'Tanh', apply(e, 'Softplus', x()));
  const slope = mul(e, mul(e, x(), oneMinus(e, square(e, t))), apply(e, 'Sigmoid', x()));
  return mul(e, g, add(e, t, slope));
}

const product = binary({ a: (e, { g, b }) => mul(e, g, b()), b: (e, { g, a }) => mul(e, g, a()) });

/**
 * da = g · b, db = g · a. For y = x·s with s = sigmoid(x), both at once: dx = g · (s + y·(1 − s)), which saves work and
 * reads y instead of x.
 */
function multiplication(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node, producer } = context;
  const isSigmoidOf = (s: string, x: string): boolean =>
    producer(s)?.operator === 'Sigmoid' && producer(s)?.inputs[0] === x;
  const [a = '', b = ''] = node.inputs;
  const gateIndex = isSigmoidOf(b, a) ? 1 : isSigmoidOf(a, b) ? 0 : undefined;
  if (gateIndex === undefined) return product(context);
  const s = node.inputs[gateIndex] as string;
  const slope = add(e, s, mul(e, outputOf(context), oneMinus(e, s)));
  const dx = mul(e, gradientOf(context), slope);
  return gateIndex === 1 ? [dx, undefined] : [undefined, dx];
}

/** Max and Min: g to the inputs that equal y, shared evenly among ties. */
function extremum(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  if (node.inputs.length === 1) return [g];
  const hits = node.inputs.map((input) => cast(e, e.emit('Equal', [input, outputOf(context)]), e.type(g).type));
  const share = div(e, g, sum(e, hits));
  return node.inputs.map((_, index) =>
    context.needs[index] ? sumTo(e, mul(e, share, hits[index] as string), inputShape(context, index)) : undefined,
  );
}
