// The gradient of Clip, and where its bounds are active, which its tangent needs as well. Notation as in
// elementwise.ts.

import { type Tensor, toNumbers } from '../../graph/tensor.ts';
import { gated, masked, mul, range, reduceSum, reshape, sub } from '../expressions.ts';
import {
  gradientOf,
  inputOf,
  type NodeContext,
  optionalInput,
  outputOf,
  type RuleContext,
  whereNeeded,
} from '../rule.ts';

/**
 * dx = g strictly between the bounds, which is where (y − low)(high − y) is not 0; dlow = Σ g where x < low < high;
 * dhigh = Σ g where max(x, low) > high.
 */
export function clip(context: RuleContext): readonly (string | undefined)[] {
  const e = context.emitter;
  const g = gradientOf(context);
  const [low, high] = [finiteBound(context, 1), finiteBound(context, 2)];
  const total = (x: string, like: string): string =>
    reshape(e, reduceSum(e, x, range(e.shape(x).length)), e.shape(like));
  const flat = (bound: string): string => reshape(e, bound, []);
  return whereNeeded(
    context,
    () => {
      const y = outputOf(context);
      const isZero =
        low !== undefined && e.constantValue(low) !== undefined && toNumbers(e.constantValue(low) as Tensor)[0] === 0;
      const above = low === undefined ? undefined : isZero ? y : sub(e, y, flat(low));
      const below = high === undefined ? undefined : sub(e, flat(high), y);
      if (above !== undefined && below !== undefined) return gated(e, g, mul(e, above, below));
      const inside = above ?? below;
      return inside === undefined ? g : gated(e, g, inside);
    },
    () => total(masked(e, g, clippedBelow(context)), inputOf(context, 1)),
    () => total(masked(e, g, clippedAbove(context)), inputOf(context, 2)),
  );
}

/** Bool: where Clip gives its lower bound: x < low < high. The bound must exist. */
export function clippedBelow(context: NodeContext): string {
  const e = context.emitter;
  const [low, high] = [reshape(e, inputOf(context, 1), []), finiteBound(context, 2)];
  const under = e.emit('Less', [inputOf(context), low]);
  return high === undefined ? under : e.emit('And', [under, e.emit('Less', [low, reshape(e, high, [])])]);
}

/** Bool: where Clip gives its upper bound: max(x, low) > high. The bound must exist. */
export function clippedAbove(context: NodeContext): string {
  const e = context.emitter;
  const low = finiteBound(context, 1);
  const raised = low === undefined ? inputOf(context) : e.emit('Max', [inputOf(context), reshape(e, low, [])]);
  return e.emit('Greater', [raised, reshape(e, inputOf(context, 2), [])]);
}

/** A bound of Clip that may be active; undefined if it is absent or infinite. */
function finiteBound(context: NodeContext, index: number): string | undefined {
  const bound = optionalInput(context, index);
  const value = bound === undefined ? undefined : context.emitter.constantValue(bound);
  return value !== undefined && !Number.isFinite(toNumbers(value)[0]) ? undefined : bound;
}
