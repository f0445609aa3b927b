import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { createRandom } from '../random.ts';
import { gradientCases } from '../testing/gradient-cases/all.ts';
import { checkNodeTangents } from '../testing/tangent-check.ts';
import { gradientRules } from './rules.ts';
import { tangentRules } from './tangents.ts';

const seed = 20261124;

test('tangents pass exactly the operators that gradients pass', () => {
  const passed = (rules: Readonly<Record<string, unknown>>): readonly string[] =>
    Object.keys(rules).filter((operator) => rules[operator] !== 'not-differentiable');
  assert.deepEqual(passed(tangentRules).toSorted(), passed(gradientRules).toSorted());
});

for (const [operator, { arbitrary, build }] of Object.entries(gradientCases)) {
  test(`the tangent of ${operator} agrees with central differences and with its gradient`, () => {
    fc.assert(
      fc.property(arbitrary, (configuration) =>
        checkNodeTangents(build(configuration), createRandom(configuration.seed, 3)),
      ),
      { seed, numRuns: 40, includeErrorInReport: true },
    );
  });
}
