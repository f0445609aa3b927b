// What holds for every operator, on random cases: the type that is inferred is the type of the value; whatever is wrong with a node is
// an InputError that names it, never another error and never a wrong value.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { defined } from '../../assert.ts';
import { InputError } from '../../errors.ts';
import { createRandom, type Random } from '../../random.ts';
import { type OperatorCase, operatorCase } from '../../testing/operator-cases.ts';
import { type Attribute, int, ints, string } from '../graph.ts';
import { elementTypes, isFloat, tensor, tensorBytes } from '../tensor.ts';
import { operators } from './index.ts';
import { zeros } from './indexing.ts';
import type { OperatorName } from './names.ts';

const seed = 20261121;

for (const operator of Object.keys(operators) as OperatorName[]) {
  test(`${operator}: the inferred type, from the declared constants alone, is the value's; inputs stay unchanged`, () => {
    const { infer, evaluate, constantInputs } = operators[operator];
    const property = fc.property(fc.integer(), (word) => {
      const { node, inputs } = operatorCase(operator, word);
      const before = inputs.map((input) => input && tensorBytes(input).slice());
      const types = infer(
        node,
        inputs.map((input) => input && { type: input.type, shape: input.shape }),
        inputs.map((input, index) => (constantInputs.includes(index) ? input : undefined)),
      );
      const outputs = evaluate(node, inputs);
      assert.deepEqual(
        types,
        outputs.map(({ type, shape }) => ({ type, shape })),
      );
      assert.equal(outputs.length, node.outputs.length);
      assert.deepEqual(
        inputs.map((input) => input && tensorBytes(input)),
        before,
      );
    });
    fc.assert(property, { seed, numRuns: 60 });
  });
}

for (const operator of Object.keys(operators) as OperatorName[]) {
  test(`${operator}: a spoilt case is an InputError that names the node, or another valid case`, () => {
    const { infer, evaluate } = operators[operator];
    let refused = 0;
    const property = fc.property(fc.integer(), (word) => {
      const { node, inputs } = spoil(operatorCase(operator, word), createRandom(word, 1));
      try {
        infer(node, inputs, inputs);
        evaluate(node, inputs);
      } catch (error) {
        assert.ok(error instanceof InputError, `${operator} ${String(error)}`);
        assert.match(error.message, new RegExp(`^Node "case ${word}" \\(${operator}\\) .*\\.$`));
        refused++;
      }
    });
    fc.assert(property, { seed, numRuns: 150 });
    assert.ok(refused > 0, 'nothing was refused');
  });
}

/** The case with one thing changed: an input's shape, type, values or presence, an attribute, or the number of outputs. */
function spoil({ node, inputs }: OperatorCase, random: Random): OperatorCase {
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
        node: { ...node, attributes: { ...node.attributes, [name]: spoiltAttribute(defined(node.attributes[name], name), small) } },
        inputs,
      };
    case 3:
      if (input === undefined) break;
      return {
        node,
        inputs: inputs.with(position, zeros(defined(elementTypes[random.integer(elementTypes.length)], 'a type'), input.shape)),
      };
    case 4:
      if (input === undefined || isFloat(input.type)) break;
      return { node, inputs: inputs.with(position, tensor(input.type, input.shape, Array.from({ length: input.data.length }, small))) };
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
