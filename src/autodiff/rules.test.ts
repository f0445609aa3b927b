import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { createRandom } from '../random.ts';
import { checkNode } from '../testing/gradient-check.ts';
import type { CaseGenerator } from '../testing/gradient-cases/case.ts';
import { elementwiseCases } from '../testing/gradient-cases/elementwise.ts';
import { neuralCases } from '../testing/gradient-cases/neural.ts';
import { reductionCases } from '../testing/gradient-cases/reductions.ts';
import { shapeCases } from '../testing/gradient-cases/shapes.ts';
import { gradientRules } from './rules.ts';

const generators: Readonly<Record<string, CaseGenerator>> = { ...elementwiseCases, ...reductionCases, ...shapeCases, ...neuralCases };
/** Operators with many combinations of attributes get more cases. */
const manyRuns = new Set(['AveragePool', 'Conv', 'ConvTranspose', 'MaxPool', 'Pad', 'Slice', 'MatMul', 'Gemm', 'Gather', 'GatherND']);
const seed = 20261121;

test('every rule has a gradient check', () => {
  const differentiable = Object.entries(gradientRules).flatMap(([operator, rule]) => (rule === 'not-differentiable' ? [] : [operator]));
  assert.deepEqual(Object.keys(generators).sort(), differentiable.sort());
});

for (const [operator, { arbitrary, build }] of Object.entries(generators)) {
  test(`the gradient of ${operator} agrees with central differences`, () => {
    fc.assert(
      fc.property(arbitrary, (configuration) => {
        const gradientCase = build(configuration);
        checkNode(gradientCase, createRandom(configuration.seed, 1));
      }),
      { seed, numRuns: manyRuns.has(operator) ? 120 : 40, includeErrorInReport: true },
    );
  });
}
