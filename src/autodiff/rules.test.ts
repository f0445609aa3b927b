import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { createRandom } from '../random.ts';
import { gradientCases } from '../testing/gradient-cases/all.ts';
import { checkNode } from '../testing/gradient-check.ts';
import { gradientRules } from './rules.ts';

/** Operators with many combinations of attributes get more cases. */
const manyRuns = new Set([
  'AveragePool',
  'Conv',
  'ConvTranspose',
  'MaxPool',
  'Pad',
  'Slice',
  'MatMul',
  'Gemm',
  'Gather',
  'GatherND',
]);
const seed = 20261121;

test('every rule has a gradient check', () => {
  const differentiable = Object.entries(gradientRules).flatMap(([operator, rule]) =>
    rule === 'not-differentiable' ? [] : [operator],
  );
  assert.deepEqual(Object.keys(gradientCases).sort(), differentiable.sort());
});

for (const [operator, { arbitrary, build }] of Object.entries(gradientCases)) {
  test(`the gradient of ${operator} agrees with central differences`, () => {
    fc.assert(
      fc.property(arbitrary, (configuration) => checkNode(build(configuration), createRandom(configuration.seed, 1))),
      { seed, numRuns: manyRuns.has(operator) ? 120 : 40, includeErrorInReport: true },
    );
  });
}
