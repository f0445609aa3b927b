// Tangents of the elementwise operators. Notation: x, a, b inputs, y the output, ẋ the tangent of x. A function of one
// element has a diagonal Jacobian: its formula is reverse mode's, in rules/elementwise.ts.

import type { ElementwiseName } from '../../graph/operators/names.ts';
import { add, apply, cast, compare, div, masked, mul, reshape, scale, select, sub, sum } from '../expressions.ts';
import { inputOf, outputOf } from '../rule.ts';
import { clippedAbove, clippedBelow } from '../rules/clipping.ts';
import { powerSlope } from '../rules/powers.ts';
import { bilinear, linear, symmetric, type TangentContext, type TangentEntry, term, total } from './rule.ts';

export const elementwiseTangents: Readonly<Record<ElementwiseName, TangentEntry>> = {
  Abs: symmetric,
  Acos: symmetric,
  Acosh: symmetric,
  // ȧ + ḃ
  Add: (context) => [total(context, context.tangents)],
  And: 'not-differentiable',
  Asin: symmetric,
  Asinh: symmetric,
  Atan: symmetric,
  Atanh: symmetric,
  BitShift: 'not-differentiable',
  BitwiseAnd: 'not-differentiable',
  BitwiseNot: 'not-differentiable',
  BitwiseOr: 'not-differentiable',
  BitwiseXor: 'not-differentiable',
  Cast: linear(0),
  CastLike: linear(0),
  Ceil: 'not-differentiable',
  Celu: symmetric,
  Clip: clip,
  Cos: symmetric,
  Cosh: symmetric,
  Div: division,
  Elu: symmetric,
  Equal: 'not-differentiable',
  Erf: symmetric,
  Exp: symmetric,
  Floor: 'not-differentiable',
  Gelu: symmetric,
  Greater: 'not-differentiable',
  GreaterOrEqual: 'not-differentiable',
  HardSigmoid: symmetric,
  HardSwish: symmetric,
  Identity: symmetric,
  IsInf: 'not-differentiable',
  IsNaN: 'not-differentiable',
  LeakyRelu: symmetric,
  Less: 'not-differentiable',
  LessOrEqual: 'not-differentiable',
  Log: symmetric,
  Max: extremum,
  // Σ ẋ / n for n inputs
  Mean: (context) => [scale(context.emitter, total(context, context.tangents), 1 / context.node.inputs.length)],
  Min: extremum,
  Mish: symmetric,
  Mod: modulo,
  // ȧ·b + a·ḃ
  Mul: bilinear(),
  Neg: symmetric,
  Not: 'not-differentiable',
  Or: 'not-differentiable',
  PRelu: slopedRelu,
  Pow: power,
  Reciprocal: symmetric,
  Relu: symmetric,
  Round: 'not-differentiable',
  Selu: symmetric,
  Sigmoid: symmetric,
  Sign: 'not-differentiable',
  Sin: symmetric,
  Sinh: symmetric,
  Softplus: symmetric,
  Softsign: symmetric,
  Sqrt: symmetric,
  // ȧ − ḃ
  Sub: (context) => [total(context, [context.tangents[0], term(context, 1, (b) => scale(context.emitter, b, -1))])],
  // Σ ẋ
  Sum: (context) => [total(context, context.tangents)],
  Tan: symmetric,
  Tanh: symmetric,
  ThresholdedRelu: symmetric,
  // ȧ where the condition holds, ḃ where it does not
  Where: linear(1, 2),
  Xor: 'not-differentiable',
};

/**
 * ẋ strictly between the bounds; the lower bound's tangent where x < low < high, the upper one's where max(x, low) >
 * high.
 */
function clip(context: TangentContext): readonly (string | undefined)[] {
  const e = context.emitter;
  return [
    total(context, [
      term(context, 0, () => symmetric(context)[0]),
      term(context, 1, (low) => masked(e, reshape(e, low, []), clippedBelow(context))),
      term(context, 2, (high) => masked(e, reshape(e, high, []), clippedAbove(context))),
    ]),
  ];
}

/** y = a/b: ẏ = (ȧ − y·ḃ) / b */
function division(context: TangentContext): readonly (string | undefined)[] {
  const e = context.emitter;
  const [a, b] = context.tangents;
  const raised = b === undefined ? undefined : mul(e, outputOf(context), b);
  const above = raised === undefined ? (a as string) : a === undefined ? scale(e, raised, -1) : sub(e, a, raised);
  return [div(e, above, inputOf(context, 1))];
}

/** fmod: y = a − b·trunc(a/b): ẏ = ȧ − ḃ·trunc(a/b), and trunc(a/b) = (a − y)/b */
function modulo(context: TangentContext): readonly (string | undefined)[] {
  const e = context.emitter;
  const [a, b] = [inputOf(context, 0), inputOf(context, 1)];
  return [
    total(context, [
      context.tangents[0],
      term(context, 1, (tangent) => mul(e, tangent, apply(e, 'Round', div(e, sub(e, outputOf(context), a), b)))),
    ]),
  ];
}

/** ȧ for a ≥ 0, slope·ȧ below; plus min(a, 0) times the slope's tangent */
function slopedRelu(context: TangentContext): readonly (string | undefined)[] {
  const e = context.emitter;
  const [a, slope] = [inputOf(context, 0), inputOf(context, 1)];
  return [
    total(context, [
      term(context, 0, (tangent) => select(e, compare(e, 'Less', a, 0), mul(e, tangent, slope), tangent)),
      term(context, 1, (tangent) => mul(e, tangent, e.emit('Min', [a, e.scalarLike(a, 0)]))),
    ]),
  ];
}

/** Max and Min: the mean of the tangents of the inputs that equal y */
function extremum(context: TangentContext): readonly (string | undefined)[] {
  const { emitter: e, node, tangents } = context;
  const y = outputOf(context);
  if (node.inputs.length === 1) return [tangents[0]];
  const hits = node.inputs.map((input) => cast(e, e.emit('Equal', [input, y]), e.type(y).type));
  const moved = hits.map((hit, index) => term(context, index, (tangent) => mul(e, hit, tangent)));
  return [div(e, total(context, moved), sum(e, hits))];
}

/** y = xᵖ: ẏ = p·xᵖ⁻¹·ẋ + y·ln(x)·ṗ, the last term where x > 0 (else 0) */
function power(context: TangentContext): readonly (string | undefined)[] {
  const e = context.emitter;
  const [x, p, y] = [inputOf(context, 0), inputOf(context, 1), outputOf(context)];
  const [movedX, movedP] = [
    term(context, 0, (tangent) => {
      const slope = powerSlope(e, { x, p, y });
      return slope && mul(e, slope, tangent);
    }),
    term(context, 1, (tangent) =>
      masked(e, mul(e, mul(e, y, apply(e, 'Log', x)), cast(e, tangent, e.type(y).type)), compare(e, 'Greater', x, 0)),
    ),
  ];
  const terms = [movedX, movedP].filter((moved) => moved !== undefined);
  return terms.length === 0
    ? [undefined]
    : [total(context, [terms.length === 1 ? terms[0] : add(e, terms[0] as string, terms[1] as string)])];
}
