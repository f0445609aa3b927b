// Gradients of matrix products. Products of two matrices are written as Gemm, whose flags transpose without a copy.

import type { Emitter } from '../../graph/emitter.ts';
import { type Attributes, float, floatAttribute, int, intAttribute } from '../../graph/graph.ts';
import { product, reshape, scale, sumTo, transposeLast } from '../expressions.ts';
import { gradientOf, inputOf, inputShape, type RuleContext, whereNeeded } from '../rule.ts';

/** Which factors of `matrixProduct` are transposed, and a scalar factor. */
export interface Transposed {
  readonly a?: boolean;
  readonly b?: boolean;
  /** Scalar factor. Default 1. */
  readonly alpha?: number;
}

/** alpha · a′ · b′ for two matrices. */
export function matrixProduct(
  e: Emitter,
  a: string,
  b: string,
  { a: transA = false, b: transB = false, alpha = 1 }: Transposed = {},
): string {
  const attributes: Attributes = {
    ...(transA ? { transA: int(1) } : {}),
    ...(transB ? { transB: int(1) } : {}),
    ...(alpha === 1 ? {} : { alpha: float(alpha) }),
  };
  return e.emit('Gemm', [a, b], attributes);
}

/** Y = α·A′·B′ + β·C, A′ = Aᵀ with transA: dA′ = α·G·B′ᵀ, dB′ = α·A′ᵀ·G, dC = β·G summed to C's shape. */
export function gemm(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  const [a, b] = [inputOf(context, 0), inputOf(context, 1)];
  const alpha = floatAttribute(node, 'alpha', 1);
  const transA = intAttribute(node, 'transA', 0) !== 0;
  const transB = intAttribute(node, 'transB', 0) !== 0;
  return whereNeeded(
    context,
    () =>
      transA ? matrixProduct(e, b, g, { a: transB, b: true, alpha }) : matrixProduct(e, g, b, { b: !transB, alpha }),
    () =>
      transB ? matrixProduct(e, g, a, { a: true, b: transA, alpha }) : matrixProduct(e, a, g, { a: !transA, alpha }),
    () => sumTo(e, scale(e, g, floatAttribute(node, 'beta', 1)), inputShape(context, 2)),
  );
}

/**
 * Y = A·B over the last two axes, the others broadcast; a vector counts as a matrix of one row (A) or column (B). dA =
 * G·Bᵀ and dB = Aᵀ·G, summed over the broadcast axes. If B is a plain matrix, A's leading axes are rows: one product
 * each.
 */
export function matMul(context: RuleContext): readonly (string | undefined)[] {
  const e = context.emitter;
  const [aShape, bShape] = [inputShape(context, 0), inputShape(context, 1)];
  const matrixA = aShape.length === 1 ? [1, ...aShape] : aShape;
  const matrixB = bShape.length === 1 ? [...bShape, 1] : bShape;
  const [inner, columns] = matrixB.slice(-2) as [number, number];
  const a = reshape(e, inputOf(context, 0), matrixA);
  const b = reshape(e, inputOf(context, 1), matrixB);
  const batch = e.shape(gradientOf(context)).slice(0, Math.max(matrixA.length, matrixB.length) - 2);
  const g = reshape(e, gradientOf(context), [...batch, matrixA.at(-2) as number, columns]);
  if (matrixB.length === 2) {
    const rows = product(matrixA.slice(0, -1));
    const flatG = reshape(e, g, [rows, columns]);
    return whereNeeded(
      context,
      () => reshape(e, matrixProduct(e, flatG, b, { b: true }), aShape),
      () => reshape(e, matrixProduct(e, reshape(e, a, [rows, inner]), flatG, { a: true }), bShape),
    );
  }
  return whereNeeded(
    context,
    () => reshape(e, sumTo(e, e.emit('MatMul', [g, transposeLast(e, b)]), matrixA), aShape),
    () => reshape(e, sumTo(e, e.emit('MatMul', [transposeLast(e, a), g]), matrixB), bShape),
  );
}
