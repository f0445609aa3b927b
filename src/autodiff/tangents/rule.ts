// The interface of tangent rules: given the tangents ẋ of a node's inputs, a rule writes nodes that compute the
// tangents ẏ = J·ẋ of its outputs (Jacobian–vector products). Also the rules that many operators share, by the kind of
// their Jacobian.

import { assert, defined } from '../../assert.ts';
import type { Emitter } from '../../graph/emitter.ts';
import { isOperator } from '../../graph/operators/index.ts';
import { tensor } from '../../graph/tensor.ts';
import { expand, full, product, sum } from '../expressions.ts';
import { plainForms } from '../forms.ts';
import { inputShape, type NodeContext, outputOf } from '../rule.ts';
import { gradientRules } from '../rules.ts';

/** The arguments of a tangent rule. */
export interface TangentContext extends NodeContext {
  /** ẋ by input, in the input's shape and type; undefined if it is zero. At least one is defined. */
  readonly tangents: readonly (string | undefined)[];
  /** True: a tangent that uses the gradient of a batch normalization writes it as a deferred node (deferred.ts). */
  readonly deferred: boolean;
}

/**
 * Tangents by output, each in its output's shape and type; undefined for zero. Rules read the node's inputs and outputs
 * by name.
 */
export type TangentRule = (context: TangentContext) => readonly (string | undefined)[];

/**
 * A rule, or 'not-differentiable' if the operator's outputs are integers, booleans or piecewise constant, so that they
 * have no tangent.
 */
export type TangentEntry = TangentRule | 'not-differentiable';

/**
 * The rule of operators that are linear in the inputs at `positions` (together; default: all) while the others are
 * constant: ẏ = f(ẋ), the operator itself with the tangents, or zeros, in their places.
 */
export function linear(...positions: readonly number[]): TangentRule {
  return ({ node, emitter: e, tangents }) => {
    const moves = (index: number): boolean => positions.length === 0 || positions.includes(index);
    const inputs = node.inputs.map((input, index) =>
      input === '' || !moves(index) ? input : (tangents[index] ?? zeros(e, input)),
    );
    return e.emitAll(node.operator, inputs, node.outputs.length, node.attributes);
  };
}

/** Zeros in a value's type and shape. */
export function zeros(e: Emitter, like: string): string {
  const { type, shape } = e.type(like);
  return product(shape) === 1 ? e.constant(tensor(type, shape, [0])) : full(e, type, shape);
}

/**
 * The rule of operators whose Jacobian for the first input is symmetric, as for all functions of one element: J·ẋ =
 * Jᵀ·ẋ, which the gradient rule computes when given ẋ as the gradient of the output. The other inputs must have no
 * tangent.
 */
export const symmetric: TangentRule = (context) => {
  const { node, tangents } = context;
  const rule = isOperator(node.operator) ? gradientRules[node.operator] : undefined;
  assert(typeof rule === 'function', `no gradient rule for ${node.operator}`);
  const needs = node.inputs.map((_, index) => index === 0);
  return [
    rule({
      ...context,
      outputGradients: [tangents[0]],
      needs,
      producer: () => undefined,
      forms: plainForms,
      deferred: false,
    })[0],
  ];
};

/**
 * The rule of operators of two factors and an optional addend: y = f(a, b) + c, f linear in each factor. ẏ = f(ȧ, b) +
 * f(a, ḃ) + ċ. `addend` gives the addend's tangent in y's shape if it is the only one; otherwise f takes it as its
 * third input.
 */
export function bilinear(addend: (context: TangentContext, tangent: string) => string = expanded): TangentRule {
  return (context) => {
    const { node, emitter: e, tangents } = context;
    const [a = '', b = ''] = node.inputs;
    const [movedA, movedB, movedC] = tangents;
    const apply = (...inputs: readonly string[]): string => e.emit(node.operator, inputs, node.attributes);
    // the first factor's tangent goes last, for the order of nodes (arrange.ts): it usually is the activation's
    const [first, second] = [movedB && [a, movedB], movedA && [movedA, b]].filter((factors) => factors !== undefined);
    if (first === undefined) return [addend(context, defined(movedC, `a tangent of an input of ${node.name}`))];
    const terms = [
      apply(...first, ...(movedC === undefined ? [] : [movedC])),
      ...(second === undefined ? [] : [apply(...second)]),
    ];
    return [sum(e, terms)];
  };
}

/**
 * The sum of terms that broadcast to y's shape, in that shape; undefined terms are zero, and at least one is defined.
 */
export function total(context: NodeContext, terms: readonly (string | undefined)[]): string {
  const e = context.emitter;
  return expanded(
    context,
    sum(
      e,
      terms.filter((term) => term !== undefined),
    ),
  );
}

/** A value broadcast to y's shape. */
export function expanded(context: NodeContext, value: string): string {
  return expand(context.emitter, value, context.emitter.shape(outputOf(context)));
}

/** The term f(ẋ) for an input's tangent; undefined if the input has none. */
export function term(
  { tangents }: TangentContext,
  index: number,
  formula: (tangent: string) => string | undefined,
): string | undefined {
  const tangent = tangents[index];
  return tangent === undefined ? undefined : formula(tangent);
}

/** The axes after the first two. */
export function spatialAxes(context: NodeContext): readonly number[] {
  return inputShape(context)
    .map((_, axis) => axis)
    .slice(2);
}
