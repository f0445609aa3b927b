// Nets that PyTorch exported, trained by the command over worker processes: PyTorch's losses over 100 steps. In this
// process: families.test.ts.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { defined } from '../assert.ts';
import { jsonLines, runCommand, temporaryFolder } from '../testing/command.ts';
import { familyFixtures } from '../testing/pytorch-fixtures.ts';
import { checkLosses, flagsOf, writePlan } from '../testing/pytorch-training.ts';

const fixtures = familyFixtures();
/** Relative. Seen: 6e-7. */
const tolerance = 1e-3;

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
