// The gradient of Pow, and its slope, which its tangent needs as well. Notation as in elementwise.ts.

import type { Emitter } from '../../graph/emitter.ts';
import { elementCount, toNumbers } from '../../graph/tensor.ts';
import { apply, cast, compare, div, masked, mul, scale, select, shift, square, sumTo } from '../expressions.ts';
import { gradientOf, inputOf, outputOf, type RuleContext, whereNeeded } from '../rule.ts';

/** y = xᵖ: dx = g · p · xᵖ⁻¹ (0 where p = 0), dp = g · y · ln x where x > 0 (else 0) */
export function power(context: RuleContext): readonly (string | undefined)[] {
  const e = context.emitter;
  const g = gradientOf(context);
  const [x, p, y] = [inputOf(context, 0), inputOf(context, 1), outputOf(context)];
  return whereNeeded(
    context,
    () => {
      const slope = powerSlope(e, { x, p, y });
      return slope && sumTo(e, mul(e, g, slope), e.shape(x));
    },
    () => {
      const perElement = masked(e, mul(e, g, mul(e, y, apply(e, 'Log', x))), compare(e, 'Greater', x, 0));
      return cast(e, sumTo(e, perElement, e.shape(p)), e.type(p).type);
    },
  );
}

/** p · xᵖ⁻¹, without Pow for the exponents that models use; undefined for zero. */
export function powerSlope(
  e: Emitter,
  { x, p, y }: { readonly x: string; readonly p: string; readonly y: string },
): string | undefined {
  const value = e.constantValue(p);
  const constant = value && elementCount(value.shape) === 1 ? toNumbers(value)[0] : undefined;
  if (constant === undefined) {
    const exponent = cast(e, p, e.type(x).type);
    const slope = mul(e, exponent, e.emit('Pow', [x, shift(e, exponent, -1)]));
    return select(e, compare(e, 'Equal', exponent, 0), e.scalarLike(x, 0), slope);
  }
  if (constant === 0) return undefined;
  if (constant === 1) return e.scalarLike(x, 1);
  if (constant === 2) return scale(e, x, 2);
  if (constant === 3) return scale(e, square(e, x), 3);
  if (constant === 0.5) return div(e, e.scalarLike(y, 0.5), y);
  if (constant === -1) return scale(e, square(e, y), -1);
  return scale(e, e.emit('Pow', [x, e.scalarLike(x, constant - 1)]), constant);
}
