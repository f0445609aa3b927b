// One net of each family that PyTorch exports, trained for 100 steps over the same batches: every loss is PyTorch's
// within 1e-3, relative, and what is trained are PyTorch's parameters. The nets and how they were chosen:
// test/fixtures/pytorch/families/make_families.py.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { importModel } from '../graph/onnx/import.ts';
import { familyFixtures } from '../testing/pytorch-fixtures.ts';
import { checkLosses, checkWeights, trainInProcess } from '../testing/pytorch-training.ts';

const fixtures = familyFixtures();
/**
 * What is accepted. Seen: 6e-7; 2e-5 where rounding alone moves PyTorch's own losses by as much (mnasnet,
 * unet-transpose).
 */
const tolerance = 1e-3;

/**
 * Of a net that was exported in several ways, the first file is trained for all steps; the others, which hold the same
 * net in other operators, for these.
 */
const fewSteps = 20;

for (const [index, whole] of fixtures.entries()) {
  const isFirst = whole.net !== fixtures[index - 1]?.net;
  const fixture = isFirst ? whole : { ...whole, stepCount: fewSteps, losses: whole.losses.slice(0, fewSteps) };
  test(`${fixture.name}: PyTorch's losses over ${fixture.stepCount} steps`, async (context) => {
    const { losses, file } = await trainInProcess(fixture);
    const expected = new Set(Object.values(fixture.finalWeights).map(({ initializer }) => initializer));
    assert.deepEqual(new Set(importModel(file).graph.parameters), expected, 'what is trained is what PyTorch trains');
    const comparison = { how: 'in this process', tolerance };
    context.diagnostic(`largest relative difference ${checkLosses(losses, fixture, comparison).toExponential(1)}`);
    if (isFirst) checkWeights(file, fixture, comparison);
  });
}
