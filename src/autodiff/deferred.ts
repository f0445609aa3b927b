// Deferred nodes: the gradient of a convolution or a batch normalization, or a sample of an image's channels, as a
// single node, so that lowering can choose its form by the layout of the values around it. write-out.ts gives the plain
// forms. Files and engines never contain these nodes.

import { defined } from '../assert.ts';
import type { Emitter } from '../graph/emitter.ts';
import { float, int, intAttribute, ints, intsAttribute, type Node } from '../graph/graph.ts';
import type { Sliding } from './forms.ts';

export const deferredDomain = 'asteroid';

/**
 * ConvInputGradient(g, w) → dx, ConvWeightGradient(x, g) → dw, BatchNormalizationGradient(g, x, scale, mean, variance)
 * → dx, dscale, dbias, ChannelSample(x) → a number near each channel's mean (see centering.ts).
 */
export type DeferredOperator =
  | 'ConvInputGradient'
  | 'ConvWeightGradient'
  | 'BatchNormalizationGradient'
  | 'ChannelSample';

/** The operator of a deferred node; undefined for other nodes. */
export function deferredOperator(node: Node): DeferredOperator | undefined {
  return node.domain === deferredDomain ? (node.operator as DeferredOperator) : undefined;
}

/** A sample of the channels of x [N, C, H, W]: [C, 1, 1]. */
export function deferChannelSample(e: Emitter, x: string): string {
  const [, channels = 1] = e.shape(x);
  const operator: DeferredOperator = 'ChannelSample';
  return e.emitTyped(operator, [x], { type: e.type(x).type, shape: [channels, 1, 1] }, {}, deferredDomain);
}

/** dx of shape `shape`, from g [N, K, output…] and w [K, C/group, kernel…]. */
export function deferInputGradient(
  e: Emitter,
  { g, w, x, sliding }: { g: string; w: string; x: string; sliding: Sliding },
): string {
  return append(e, 'ConvInputGradient', [g, w], sliding, x);
}

/** dw from x [N, C, input…] and g [N, K, output…]. */
export function deferWeightGradient(
  e: Emitter,
  { g, w, x, sliding }: { g: string; w: string; x: string; sliding: Sliding },
): string {
  return append(e, 'ConvWeightGradient', [x, g], sliding, w);
}

function append(
  e: Emitter,
  operator: DeferredOperator,
  inputs: readonly string[],
  sliding: Sliding,
  like: string,
): string {
  const name = e.fresh(operator);
  const attributes = {
    input: ints(sliding.input),
    output: ints(sliding.output),
    kernel: ints(sliding.kernel),
    strides: ints(sliding.strides),
    dilations: ints(sliding.dilations),
    pads: ints(sliding.padsBegin),
    group: int(sliding.group),
  };
  e.appendTyped({ operator, domain: deferredDomain, name, inputs, outputs: [name], attributes }, [e.type(like)]);
  return name;
}

/** The strides, pads and dilations of a deferred gradient's convolution. */
export function slidingOf(node: Node): Sliding {
  const numbers = (name: string): readonly number[] => defined(intsAttribute(node, name), name);
  return {
    input: numbers('input'),
    output: numbers('output'),
    kernel: numbers('kernel'),
    strides: numbers('strides'),
    dilations: numbers('dilations'),
    padsBegin: numbers('pads'),
    group: intAttribute(node, 'group', 1),
  };
}

/**
 * The gradients of a batch normalization in training mode, with the batch's mean and variance. Absent if not needed.
 */
export interface NormalizationParts {
  readonly g: string;
  readonly x: string;
  readonly scale: string;
  readonly mean: string;
  readonly variance: string;
  readonly epsilon: number;
}

/** [dx, dscale, dbias]; computes only those in `needs`. */
export function deferNormalization(
  e: Emitter,
  parts: NormalizationParts,
  needs: readonly boolean[],
): readonly (string | undefined)[] {
  const name = e.fresh('BatchNormalizationGradient');
  const outputs = ['dx', 'dscale', 'dbias'].map((part, index) => (needs[index] ? `${name}:${part}` : ''));
  const { g, x, scale, mean, variance, epsilon } = parts;
  const node: Node = {
    operator: 'BatchNormalizationGradient',
    domain: deferredDomain,
    name,
    inputs: [g, x, scale, mean, variance],
    outputs,
    attributes: { epsilon: float(epsilon) },
  };
  e.appendTyped(node, [e.type(x), e.type(scale), e.type(scale)]);
  return outputs.map((output) => (output === '' ? undefined : output));
}
