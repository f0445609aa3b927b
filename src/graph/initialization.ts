// Initial parameter values: seeded, so that the same name and seed give the same weights on every machine.

import { createRandom, hashString } from '../random.ts';
import { type ElementType, elementCount, lazyTensor, type Tensor, tensor, wrap } from './tensor.ts';

/** A rule for initial values, as data. */
export type Initialization =
  | { readonly kind: 'constant'; readonly value: number }
  /** Uniform in [−bound, bound). */
  | { readonly kind: 'uniform'; readonly bound: number }
  | { readonly kind: 'normal'; readonly standardDeviation: number }
  /** Normal, redrawn beyond two standard deviations. */
  | { readonly kind: 'truncatedNormal'; readonly standardDeviation: number };

/** All elements 0. */
export const zeros: Initialization = { kind: 'constant', value: 0 };
/** All elements 1. */
export const ones: Initialization = { kind: 'constant', value: 1 };
/** Uniform between −bound and bound. */
export const uniform = (bound: number): Initialization => ({ kind: 'uniform', bound });
/** Normal, of mean 0. */
export const normal = (standardDeviation: number): Initialization => ({ kind: 'normal', standardDeviation });
/** Normal, of mean 0; elements beyond two standard deviations are drawn again. */
export const truncatedNormal = (standardDeviation: number): Initialization => ({
  kind: 'truncatedNormal',
  standardDeviation,
});
/** He et al. 2015 for ReLU networks: variance 2 / fan. */
export const heNormal = (fan: number): Initialization => normal(Math.sqrt(2 / fan));
/** The same variance, uniform: within √(6 / fan). */
export const heUniform = (fan: number): Initialization => uniform(Math.sqrt(6 / fan));
/** Glorot and Bengio 2010: variance 2 / (fanIn + fanOut), uniform. */
export const xavierUniform = (fanIn: number, fanOut: number): Initialization =>
  uniform(Math.sqrt(6 / (fanIn + fanOut)));
/** Glorot and Bengio's variance, normal. */
export const xavierNormal = (fanIn: number, fanOut: number): Initialization => normal(Math.sqrt(2 / (fanIn + fanOut)));
/** PyTorch's default for linear and convolution layers, weights and biases: uniform within 1 / √fanIn. */
export const fanInUniform = (fanIn: number): Initialization => uniform(1 / Math.sqrt(fanIn));

/**
 * Fans of a weight in the layout [outputs, inputs, ...kernel] (convolution with inputs per group, or a linear layer's
 * [out, in]).
 */
export function fans(shape: readonly number[]): { fanIn: number; fanOut: number } {
  const kernel = elementCount(shape.slice(2));
  return { fanIn: (shape[1] ?? 1) * kernel, fanOut: (shape[0] ?? 1) * kernel };
}

/** The initial values of the parameter called `name`; random ones are drawn when first read. */
export function initialize(
  name: string,
  shape: readonly number[],
  rule: Initialization,
  options: { seed?: number; type?: ElementType } = {},
): Tensor {
  const { seed = 0, type = 'float32' } = options;
  const make = (): Tensor['data'] => values(name, elementCount(shape), rule, { seed, type });
  return rule.kind === 'constant' ? wrap(type, shape, make()) : lazyTensor(type, shape, make);
}

function values(
  name: string,
  count: number,
  rule: Initialization,
  { seed, type }: { seed: number; type: ElementType },
): Tensor['data'] {
  const data = type === 'float32' ? new Float32Array(count) : new Float64Array(count);
  if (rule.kind === 'constant') data.fill(rule.value);
  else {
    const draw = sampler(name, rule, seed);
    for (let index = 0; index < count; index++) data[index] = draw();
  }
  return type === 'float64' || type === 'float32' ? data : tensor(type, [count], data).data;
}

function sampler(name: string, rule: Exclude<Initialization, { kind: 'constant' }>, seed: number): () => number {
  const random = createRandom(seed, hashString(name));
  switch (rule.kind) {
    case 'uniform':
      return () => (random.uniform() * 2 - 1) * rule.bound;
    case 'normal':
      return () => random.normal() * rule.standardDeviation;
    case 'truncatedNormal':
      return () => {
        let value: number;
        do value = random.normal();
        while (Math.abs(value) > 2);
        return value * rule.standardDeviation;
      };
  }
}
