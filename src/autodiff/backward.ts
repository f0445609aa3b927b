// Backpropagation: visits the forward nodes in reverse order and lets each operator's rule write its inputs' gradients.

import { assert } from '../assert.ts';
import type { Emitter } from '../graph/emitter.ts';
import type { Node } from '../graph/graph.ts';
import { sameShape } from '../graph/tensor.ts';
import { sum } from './expressions.ts';
import type { ConvolutionForms } from './forms.ts';
import { joinedProducts } from './joined-products.ts';
import { differentiableOperator, type GradientRule } from './rule.ts';
import { gradientRules } from './rules.ts';

/**
 * Writes the gradients of all `varied` values that `seeds` (value → its gradient from outside) reach, and returns them
 * by value. Other values cost nothing. Throws InputError if a gradient reaches an operator without a rule.
 */
export function backpropagate(
  emitter: Emitter,
  {
    varied,
    seeds,
    forms,
    deferred = false,
  }: {
    readonly varied: ReadonlySet<string>;
    readonly seeds: ReadonlyMap<string, string>;
    readonly forms: ConvolutionForms;
    readonly deferred?: boolean;
  },
): ReadonlyMap<string, string> {
  const contributions = new Map<string, string[]>();
  const contribute = (value: string, gradient: string): void => {
    const list = contributions.get(value);
    if (list === undefined) contributions.set(value, [gradient]);
    else list.push(gradient);
  };
  /** The gradient of a value, once all its readers were visited. */
  const total = (value: string): string | undefined => {
    const list = contributions.get(value);
    if (list === undefined) return undefined;
    if (list.length > 1) list.splice(0, list.length, joinedProducts(emitter, list) ?? sum(emitter, [...list]));
    return list[0];
  };
  for (const [value, seed] of seeds) contribute(value, seed);
  const nodes = [...emitter.nodes];
  const producers = new Map(nodes.flatMap((node) => node.outputs.map((output) => [output, node] as const)));
  const producer = (value: string): Node | undefined => producers.get(value);
  for (const node of nodes.reverse()) {
    const needs = node.inputs.map((input) => varied.has(input));
    const outputGradients = node.outputs.map((output) => (varied.has(output) ? total(output) : undefined));
    if (!needs.includes(true) || outputGradients.every((gradient) => gradient === undefined)) continue;
    const gradients = ruleOf(node)({ node, emitter, outputGradients, needs, producer, forms, deferred });
    node.inputs.forEach((input, index) => {
      const gradient = gradients[index];
      if (!needs[index] || gradient === undefined) return;
      checkType(emitter, node, input, gradient);
      contribute(input, gradient);
    });
  }
  const totals = new Map<string, string>();
  for (const value of contributions.keys()) totals.set(value, total(value) as string);
  return totals;
}

function ruleOf(node: Node): GradientRule {
  const rule = gradientRules[differentiableOperator(node)];
  assert(rule !== 'not-differentiable', `a gradient reached ${node.operator}`);
  return rule;
}

function checkType(emitter: Emitter, node: Node, value: string, gradient: string): void {
  const [expected, found] = [emitter.type(value), emitter.type(gradient)];
  const fits = expected.type === found.type && sameShape(expected.shape, found.shape);
  assert(
    fits,
    `the rule of ${node.operator} (node "${node.name}") gave ${found.type}[${found.shape}] for the gradient of ` +
      `${expected.type}[${expected.shape}]`,
  );
}
