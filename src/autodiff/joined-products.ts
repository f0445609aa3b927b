// A weight that is read many times (at each step of a sequence) has a sum of products AᵢᵀBᵢ as its gradient. With the
// factors stacked it is one product, which saves summing matrices of the weight's size; that would take longer than the
// products.

import type { Emitter } from '../graph/emitter.ts';
import { floatAttribute, intAttribute, type Node } from '../graph/graph.ts';
import { concat } from './expressions.ts';
import { matrixProduct } from './rules/products.ts';

/** The number of terms from which joining pays. */
const leastTerms = 4;

/** Σ of the terms as one product, if all of them are products Aᵀ·B; otherwise undefined. */
export function joinedProducts(e: Emitter, terms: readonly string[]): string | undefined {
  if (terms.length < leastTerms) return undefined;
  const wanted = new Set(terms);
  const makers = e.nodes.filter(({ outputs }) => outputs.some((output) => wanted.has(output)));
  if (makers.length !== terms.length || !makers.every(isTransposedProduct)) return undefined;
  const stacked = (index: number): string =>
    concat(
      e,
      makers.map(({ inputs }) => inputs[index] as string),
      0,
    );
  return matrixProduct(e, stacked(0), stacked(1), { a: true });
}

function isTransposedProduct(node: Node): boolean {
  const plain =
    node.operator === 'Gemm' &&
    node.domain === '' &&
    node.inputs.length === 2 &&
    floatAttribute(node, 'alpha', 1) === 1;
  return plain && intAttribute(node, 'transA', 0) === 1 && intAttribute(node, 'transB', 0) === 0;
}
