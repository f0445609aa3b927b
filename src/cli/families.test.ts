// One net of each family that PyTorch exports, trained for 100 steps over the same batches: every loss is PyTorch's
// within 1e-3, relative, and what is trained are PyTorch's parameters. The nets and how they were chosen:
// test/fixtures/pytorch/families/make_families.py.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';

import { defined } from '../assert.ts';
import { importModel } from '../graph/onnx/import.ts';
import { jsonLines, runCommand, temporaryFolder } from '../testing/command.ts';
import { familyFixtures } from '../testing/pytorch-fixtures.ts';
import { checkLosses, checkWeights, flagsOf, trainInProcess, writePlan } from '../testing/pytorch-training.ts';

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

const cwd = temporaryFolder();
/** By the command, over worker processes: what part of a batch the devices of each stage have. */
const overWorkers: Readonly<Record<string, readonly (readonly number[])[]>> = {
  'mobilenet-v3/opset17-dynamic': [[1], [1]],
  'bert/opset18-dynamic-dynamo': [[0.25, 0.75]],
};

for (const [name, parts] of Object.entries(overWorkers)) {
  test(`asteroid train --workers 2, ${name}: PyTorch's losses over 100 steps`, async () => {
    const fixture = defined(
      fixtures.find((candidate) => candidate.name === name),
      name,
    );
    const out = join(cwd, name.replace('/', '-'));
    const plan = parts.map((shares) => shares.map((part) => part * fixture.batchSize));
    const flags = Object.entries(flagsOf(fixture)).flatMap(([flag, value]) => [`--${flag}`, value]);
    flags.push('--plan', await writePlan(fixture, plan, cwd));
    const end = await runCommand(['train', ...flags, '--no-shuffle', '--use-all', '--workers', '2', '--out', out], {
      cwd,
    });
    assert.equal(end.code, 0, end.stderr);
    const metrics = await jsonLines(join(out, 'metrics.jsonl'));
    checkLosses(
      metrics.map(({ loss }) => loss),
      fixture,
      { how: 'over 2 workers', tolerance },
    );
  });
}
