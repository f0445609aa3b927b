// Valid applications of operators with one thing made wrong, or at least different.

import { defined } from '../assert.ts';
import { type Attribute, int, ints, string } from '../graph/graph.ts';
import { zeros } from '../graph/operators/indexing.ts';
import { elementTypes, isFloat, tensor } from '../graph/tensor.ts';
import type { Random } from '../random.ts';
import type { OperatorCase } from './operator-cases.ts';

/**
 * The case with one thing changed: an input's shape, type, values or presence, an attribute, or the number of outputs.
 */
export function spoil({ node, inputs }: OperatorCase, random: Random): OperatorCase {
  const position = random.integer(Math.max(1, inputs.length));
  const input = inputs[position];
  const names = Object.keys(node.attributes);
  const name = names[random.integer(Math.max(1, names.length))];
  const small = (): number => random.integer(9) - 3;
  switch (random.integer(7)) {
    case 0:
      return { node: { ...node, outputs: [...node.outputs, 'extra'] }, inputs };
    case 1:
      if (inputs.length === 0) break;
      return { node: { ...node, inputs: node.inputs.with(position, '') }, inputs: inputs.with(position, undefined) };
    case 2:
      if (name === undefined) break;
      return {
        node: {
          ...node,
          attributes: { ...node.attributes, [name]: spoiltAttribute(defined(node.attributes[name], name), small) },
        },
        inputs,
      };
    case 3:
      if (input === undefined) break;
      return {
        node,
        inputs: inputs.with(
          position,
          zeros(defined(elementTypes[random.integer(elementTypes.length)], 'a type'), input.shape),
        ),
      };
    case 4:
      if (input === undefined || isFloat(input.type)) break;
      return {
        node,
        inputs: inputs.with(
          position,
          tensor(input.type, input.shape, Array.from({ length: input.data.length }, small)),
        ),
      };
    default:
      if (input === undefined) break;
      return { node, inputs: inputs.with(position, zeros(input.type, spoiltShape(input.shape, random))) };
  }
  return { node: { ...node, attributes: { ...node.attributes, surprise: int(1) } }, inputs };
}

function spoiltShape(shape: readonly number[], random: Random): readonly number[] {
  const axis = random.integer(Math.max(1, shape.length));
  switch (random.integer(3)) {
    case 0:
      return shape.toSpliced(axis, 1);
    case 1:
      return shape.toSpliced(axis, 0, random.integer(4));
    default:
      return shape.length === 0 ? [2] : shape.with(axis, random.integer(6));
  }
}

function spoiltAttribute(attribute: Attribute, small: () => number): Attribute {
  switch (attribute.type) {
    case 'int':
      return int(small());
    case 'ints':
      return ints(small() > 0 ? attribute.value.map(small) : [...attribute.value, small()]);
    case 'string':
      return string('nonsense');
    case 'float':
      return int(1);
    default:
      return ints([]);
  }
}
