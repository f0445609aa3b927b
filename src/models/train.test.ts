// The zoo from the user's point of view: the real command trains built-in models on synthetic data, and every model's
// training graphs can be written.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { differentiate } from '../autodiff/differentiate.ts';
import { instantiate } from '../graph/static.ts';
import { jsonLines, runCommand, temporaryFolder } from '../testing/command.ts';
import { buildModel, zoo } from './zoo.ts';

const cwd = temporaryFolder();

test('asteroid train --model NAME:OPTIONS --data synthetic:SHAPE trains, saves and tests', async () => {
  const model = ['--model', 'mobilenet-v2:input=32,classes=4', '--data', 'synthetic:3x32x32:4:32', '--out', 'run'];
  const { code, stderr } = await runCommand(
    ['train', ...model, '--batch', '8', '--steps', '2', '--workers', '0', '--json'],
    {
      cwd,
    },
  );
  assert.equal(code, 0, stderr);
  const rounds = await jsonLines(join(cwd, 'run', 'metrics.jsonl'));
  assert.equal(rounds.length, 2);
  for (const { loss } of rounds)
    assert.ok(Math.abs(Number(loss) - Math.log(4)) < 0.5, `${loss} is near that of guessing among four`);
});

describe('every model has its training graphs: all parameters get gradients', () => {
  for (const { name } of zoo) {
    test(name, () => {
      const { graph } = buildModel(name, { initialize: false });
      const { withoutGradient, parameterGradients } = differentiate(instantiate(graph, 2), { inputs: [] });
      assert.deepEqual(withoutGradient, []);
      assert.deepEqual(parameterGradients, graph.parameters);
    });
  }
});
