// What the cases of the operators are made of: arbitrary shapes and values that keep away from kinks.

import fc from 'fast-check';
import type { Attributes, Node } from '../../graph/graph.ts';
import { elementCount, type Tensor, tensor } from '../../graph/tensor.ts';
import { createRandom, permutation, type Random } from '../../random.ts';
import type { GradientCase } from '../gradient-check.ts';

/** Random cases of one operator: a plain configuration (which a failing test prints) and the case built from it. */
export interface CaseGenerator {
  readonly arbitrary: fc.Arbitrary<Configuration>;
  readonly build: (configuration: Configuration) => GradientCase;
}

/** The configuration with the seed of the case's values. */
export interface Configuration {
  readonly seed: number;
  readonly config: unknown;
}

/** A generator from an arbitrary configuration and a function that builds its case. */
export function cases<T>(
  arbitrary: fc.Arbitrary<T>,
  build: (config: T, random: Random) => GradientCase,
): CaseGenerator {
  return {
    arbitrary: fc.record({ seed: fc.nat(999_999), config: arbitrary }),
    build: ({ seed, config }) => build(config as T, createRandom(seed)),
  };
}

/** A node with outputs y0, y1, … */
export function nodeOf(
  operator: string,
  inputs: readonly string[],
  attributes: Attributes = {},
  outputCount = 1,
): Node {
  return {
    operator,
    domain: '',
    name: operator.toLowerCase(),
    inputs,
    outputs: Array.from({ length: outputCount }, (_, index) => `y${index}`),
    attributes,
  };
}

/** A dimension of 1 to `most`. */
export function dimension(most = 3): fc.Arbitrary<number> {
  return fc.integer({ min: 1, max: most });
}

/** A shape of `least` to `most` dimensions of 1 to 3 each. */
export function shapes(least: number, most: number): fc.Arbitrary<number[]> {
  return fc.array(dimension(), { minLength: least, maxLength: most });
}

/**
 * `count` shapes that broadcast together: each is a common shape with some dimensions 1 and some leading ones left out.
 */
export function broadcastShapes(count: number, most = 3): fc.Arbitrary<number[][]> {
  return shapes(0, most).chain((common) =>
    fc.tuple(
      ...Array.from({ length: count }, () =>
        fc
          .tuple(fc.nat(common.length), fc.array(fc.boolean(), { minLength: common.length, maxLength: common.length }))
          .map(([dropped, ones]) => common.map((size, axis) => (ones[axis] ? 1 : size)).slice(dropped)),
      ),
    ),
  );
}

/** Uniform float64 values between two bounds; where `accepts` is given, only those that it accepts. */
export function between(
  random: Random,
  shape: readonly number[],
  low: number,
  high: number,
  accepts: (value: number) => boolean = () => true,
): Tensor {
  const draw = (): number => {
    for (;;) {
      const value = low + (high - low) * random.uniform();
      if (accepts(value)) return value;
    }
  };
  return tensor('float64', shape, Array.from({ length: elementCount(shape) }, draw));
}

/** Values of both signs in [−2, 2], none nearer to 0 than 0.1. */
export function awayFromZero(random: Random, shape: readonly number[]): Tensor {
  return between(random, shape, -2, 2, (value) => Math.abs(value) > 0.1);
}

/** Values for several shapes of which no two are nearer than 0.03 to each other. */
export function distinct(random: Random, ...wanted: readonly (readonly number[])[]): Tensor[] {
  const total = wanted.reduce((sum, shape) => sum + elementCount(shape), 0);
  const order = permutation(total, random);
  let next = 0;
  return wanted.map((shape) =>
    tensor(
      'float64',
      shape,
      Array.from(
        { length: elementCount(shape) },
        () => 0.05 * ((order[next++] as number) - total / 2) + 0.01 * random.uniform(),
      ),
    ),
  );
}

/** A vector or tensor of int64. */
export function indices(
  shape: readonly number[],
  values: readonly number[],
  type: 'int64' | 'int32' = 'int64',
): Tensor {
  return tensor(type, shape, values);
}
