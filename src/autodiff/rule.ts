// The interface of gradient rules: given the gradients of a node's outputs, a rule writes nodes that compute the
// gradients of its inputs (vector–Jacobian products). Rules may read the node's inputs and outputs by name; the forward
// pass saves what they read.

import { defined } from '../assert.ts';
import { InputError } from '../errors.ts';
import type { Emitter } from '../graph/emitter.ts';
import type { Node } from '../graph/graph.ts';
import { fail } from '../graph/operators/define.ts';
import { isOperator } from '../graph/operators/index.ts';
import type { OperatorName } from '../graph/operators/names.ts';
import { toNumbers } from '../graph/tensor.ts';
import type { ConvolutionForms } from './forms.ts';

/** A node of the forward pass, and the emitter a rule writes to. */
export interface NodeContext {
  readonly node: Node;
  /** Holds the forward values' types and constants; the rule writes its nodes here. */
  readonly emitter: Emitter;
}

/** The arguments of a gradient rule. */
export interface RuleContext extends NodeContext {
  /**
   * dL/d(output), in the output's shape and type; undefined for an output that the loss does not depend on. At least
   * one is defined.
   */
  readonly outputGradients: readonly (string | undefined)[];
  /** Which inputs need a gradient; others need not be computed. At least one does. */
  readonly needs: readonly boolean[];
  /** The forward node that computes a value; undefined for inputs and constants. */
  readonly producer: (value: string) => Node | undefined;
  /** Chooses among the forms of convolutions. */
  readonly forms: ConvolutionForms;
  /** True: gradients of convolutions and batch normalizations are written as deferred nodes (deferred.ts). */
  readonly deferred: boolean;
}

/** Gradients by input, each in its input's shape and type; undefined for zero or not needed. */
export type GradientRule = (context: RuleContext) => readonly (string | undefined)[];

/**
 * A rule, or 'not-differentiable' if the operator's outputs are integers, booleans or piecewise constant, so that no
 * gradient passes.
 */
export type RuleEntry = GradientRule | 'not-differentiable';

/**
 * The operator of a node that a derivative has to pass. Throws InputError if it is not built in; built-in ones have
 * rules.
 */
export function differentiableOperator(node: Node): OperatorName {
  if (node.domain === '' && isOperator(node.operator)) return node.operator;
  const operator = node.domain === '' ? node.operator : `${node.domain}.${node.operator}`;
  throw new InputError(
    `Node "${node.name}" uses the operator ${operator}, which has no gradient rule; train only layers after ` +
      'it, or express it by operators that have one.',
  );
}

/** The gradient of output `index`, which must be defined. */
export function gradientOf({ outputGradients, node }: RuleContext, index = 0): string {
  return defined(outputGradients[index], `the gradient of output ${index} of ${node.name}`);
}

/** The name of input `index`, or undefined if it is absent. */
export function optionalInput({ node }: NodeContext, index: number): string | undefined {
  const name = node.inputs[index];
  return name === undefined || name === '' ? undefined : name;
}

/** The name of an input that the operator requires. */
export function inputOf(context: NodeContext, index = 0): string {
  return defined(optionalInput(context, index), `input ${index} of ${context.node.name}`);
}

/** The name of output `index`. */
export function outputOf({ node }: NodeContext, index = 0): string {
  const name = node.outputs[index];
  return defined(name === '' ? undefined : name, `output ${index} of ${node.name}`);
}

/** The static shape of input `index`. */
export function inputShape(context: NodeContext, index = 0): readonly number[] {
  return context.emitter.shape(inputOf(context, index));
}

/** The numbers in a constant input; undefined if the input is absent. Throws InputError if it is not constant. */
export function constantInput(context: NodeContext, index: number): readonly number[] | undefined {
  const name = optionalInput(context, index);
  if (name === undefined) return undefined;
  const value = context.emitter.constantValue(name);
  return value
    ? toNumbers(value)
    : fail(context.node, `has no gradient while its input "${name}" is computed at run time; make it an initializer`);
}

/** An axis that may count from the end, converted to [0, rank). */
export function positiveAxis(axis: number, rank: number): number {
  return axis < 0 ? axis + rank : axis;
}

/** Gradients for inputs that need them: `make[i]` is called only if `needs[i]`. */
export function whereNeeded(
  { needs }: RuleContext,
  ...make: readonly (() => string | undefined)[]
): readonly (string | undefined)[] {
  return make.map((gradient, index) => (needs[index] ? gradient() : undefined));
}
