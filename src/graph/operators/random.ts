// Operators with random results. Training replaces them by inputs derived from its seed (autodiff/dropout.ts); this
// reference draws from a stream seeded by the node's name, so that a graph's values are reproducible.

import { createRandom, hashString, type Random } from '../../random.ts';
import { floatAttribute, intAttribute, intsAttribute, type Node } from '../graph.ts';
import { elementCount, type Tensor, type ValueType } from '../tensor.ts';
import { elementTypeAttribute } from './data-types.ts';
import { check, define, fail, floatTypes, required, type Specification, shapeText } from './define.ts';
import type { OperatorDefinition } from './definition.ts';
import type { RandomName } from './names.ts';
import { numbers, store } from './numbers.ts';

export const randoms: Readonly<Record<RandomName, OperatorDefinition>> = {
  // 1 with the probability given by the input's element
  Bernoulli: define({
    inputs: [1, 1],
    types: [floatTypes],
    attributes: { dtype: 'int', seed: 'float' },
    infer: (node, inputs) => [{ type: typeOf(node, required(inputs, 0).type), shape: required(inputs, 0).shape }],
    evaluate(node, inputs, [result]) {
      const chances = numbers(required(inputs, 0));
      return [
        drawn(node, result as ValueType, (random, index) => Number(random.uniform() < (chances[index] as number))),
      ];
    },
  }),
  RandomNormal: fromShape({ mean: 'float', scale: 'float' }, normal),
  RandomNormalLike: like({ mean: 'float', scale: 'float' }, normal),
  RandomUniform: fromShape({ high: 'float', low: 'float' }, uniform),
  RandomUniformLike: like({ high: 'float', low: 'float' }, uniform),
};

type Draw = (node: Node, random: Random) => number;

function like(attributes: Specification['attributes'], draw: Draw): OperatorDefinition {
  return define({
    inputs: [1, 1],
    attributes: { ...attributes, dtype: 'int', seed: 'float' },
    infer: (node, inputs) => [{ type: typeOf(node, required(inputs, 0).type), shape: required(inputs, 0).shape }],
    evaluate: (node, _inputs, [result]) => [drawn(node, result as ValueType, (random) => draw(node, random))],
  });
}

function fromShape(attributes: Specification['attributes'], draw: Draw): OperatorDefinition {
  return define({
    inputs: [0, 0],
    attributes: { ...attributes, dtype: 'int', seed: 'float', shape: 'ints' },
    infer(node) {
      const shape = intsAttribute(node, 'shape');
      const stated = shape ?? fail(node, 'needs the attribute "shape"');
      check(
        stated.every((size) => size >= 0),
        node,
        () => `has the shape ${shapeText(stated)}`,
      );
      return [{ type: typeOf(node, 'float32'), shape: stated }];
    },
    evaluate: (node, _inputs, [result]) => [drawn(node, result as ValueType, (random) => draw(node, random))],
  });
}

function typeOf(node: Node, fallback: ValueType['type']): ValueType['type'] {
  return node.attributes['dtype'] === undefined
    ? fallback
    : elementTypeAttribute(node, 'dtype', intAttribute(node, 'dtype', 1));
}

function drawn(node: Node, { type, shape }: ValueType, draw: (random: Random, index: number) => number): Tensor {
  const random = createRandom(hashString(node.name));
  return store(
    type,
    shape,
    Float64Array.from({ length: elementCount(shape) }, (_, index) => draw(random, index)),
  );
}

function uniform(node: Node, random: Random): number {
  const [low, high] = [floatAttribute(node, 'low', 0), floatAttribute(node, 'high', 1)];
  return low + (high - low) * random.uniform();
}

function normal(node: Node, random: Random): number {
  return floatAttribute(node, 'mean', 0) + floatAttribute(node, 'scale', 1) * random.normal();
}
