// Properties of every operator, on random cases: the inferred type is the type of the value; an invalid node gives an
// InputError that names it, never another error and never a wrong value.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { InputError } from '../../errors.ts';
import { createRandom } from '../../random.ts';
import { operatorCase } from '../../testing/operator-cases.ts';
import { spoil } from '../../testing/spoilt-cases.ts';
import { tensorBytes } from '../tensor.ts';
import { operators } from './index.ts';
import type { OperatorName } from './names.ts';

const seed = 20261121;

for (const operator of Object.keys(operators) as OperatorName[]) {
  test(`${operator}: the type inferred from the declared constants is the value's; inputs stay unchanged`, () => {
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
  test(`${operator}: a corrupted case is an InputError that names the node, or another valid case`, () => {
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
