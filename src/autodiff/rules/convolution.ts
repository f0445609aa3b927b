// Gradients of Conv and ConvTranspose, which are each other's adjoint: both rules consist of the same three maps
// (forward, input gradient, weight gradient), whose fast forms are in convolution-forms.ts.

import { intAttribute, intsAttribute, type Node, stringAttribute } from '../../graph/graph.ts';
import { explicitPads, splitPadding, windowOf, windowSteps } from '../../graph/operators/windows.ts';
import { deferInputGradient, deferWeightGradient } from '../deferred.ts';
import { range, reduceSum } from '../expressions.ts';
import type { ConvolutionSize, Sliding } from '../forms.ts';
import { gradientOf, inputOf, inputShape, outputOf, type RuleContext, whereNeeded } from '../rule.ts';
import { convolve, inputGradient, weightGradient } from './convolution-forms.ts';

/**
 * y = x ∗ w + b: dx = the transposed convolution of g with w, dw[k, c, tap] = Σ g[n, k, o] · x[n, c, o·s + tap·d − p],
 * db = Σ g
 */
export function conv(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  const [x, w] = [inputOf(context, 0), inputOf(context, 1)];
  const window = windowOf(node, e.shape(x).slice(2), e.shape(w).slice(2));
  const sliding: Sliding = { ...window, group: intAttribute(node, 'group', 1) };
  // A bias, and a convolution of anything but images, has no other form.
  if (context.deferred && sliding.input.length === 2) {
    return whereNeeded(
      context,
      () => deferInputGradient(e, { g, w, x, sliding }),
      () => deferWeightGradient(e, { g, w, x, sliding }),
      () => biasGradient(context),
    );
  }
  return whereNeeded(
    context,
    () => inputGradient(e, { g, w, sliding, form: context.forms.inputGradient(sizeOf(context, x, g, sliding)) }),
    () => weightGradient(e, { x, g, sliding, form: context.forms.weightGradient(sizeOf(context, x, g, sliding)) }),
    () => biasGradient(context),
  );
}

/**
 * y is what the convolution with w would map to x: dx = g ∗ w, dw = as for Conv with g for its input and x for its
 * output's gradient.
 */
export function convTranspose(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const g = gradientOf(context);
  const [x, w] = [inputOf(context, 0), inputOf(context, 1)];
  const sliding = transposedSliding(
    node,
    e.shape(x).slice(2),
    e.shape(w).slice(2),
    e.shape(outputOf(context)).slice(2),
  );
  return whereNeeded(
    context,
    () => convolve(e, { x: g, w, sliding }),
    () =>
      weightGradient(e, { x: g, g: x, sliding, form: context.forms.weightGradient(sizeOf(context, g, x, sliding)) }),
    () => biasGradient(context),
  );
}

function sizeOf({ emitter: e }: RuleContext, x: string, g: string, sliding: Sliding): ConvolutionSize {
  const [samples = 1, channels = 1] = e.shape(x);
  return { sliding, samples, channels, outputChannels: e.shape(g)[1] as number };
}

function biasGradient(context: RuleContext): string {
  const rank = inputShape(context).length;
  return reduceSum(
    context.emitter,
    gradientOf(context),
    range(rank).filter((axis) => axis !== 1),
    false,
  );
}

/**
 * The convolution of which a ConvTranspose is the adjoint: it slides over `input` (the node's output) and has `output`
 * places.
 */
function transposedSliding(
  node: Node,
  output: readonly number[],
  kernel: readonly number[],
  input: readonly number[],
): Sliding {
  const { strides, dilations, autoPad } = windowSteps(node, kernel);
  const group = intAttribute(node, 'group', 1);
  const steps = { input, output, kernel, strides, dilations, group };
  if (!intsAttribute(node, 'output_shape') && !autoPad.startsWith('SAME'))
    return { ...steps, padsBegin: explicitPads(node, kernel.length)[0] };
  const extra = intsAttribute(node, 'output_padding') ?? kernel.map(() => 0);
  const totals = input.map((size, axis) => {
    const covered =
      ((output[axis] as number) - 1) * (strides[axis] as number) +
      (extra[axis] as number) +
      ((kernel[axis] as number) - 1) * (dilations[axis] as number) +
      1;
    return Math.max(0, covered - size);
  });
  return {
    ...steps,
    padsBegin: splitPadding(
      totals,
      stringAttribute(node, 'auto_pad', 'NOTSET') === 'SAME_UPPER' ? 'SAME_UPPER' : 'SAME_LOWER',
    )[0],
  };
}
