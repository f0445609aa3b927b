// The fixtures are complete and say what the acceptance asks of them; what our code makes of them is tested in
// runtime/.

import assert from 'node:assert/strict';
import { readFileSync, statSync } from 'node:fs';
import test from 'node:test';
import { pytorchFixtures } from './pytorch-fixtures.ts';

test('the fixtures cover opsets 13 to 17 in training mode for the residual net, and seven kinds of net', () => {
  const fixtures = pytorchFixtures();
  const nets = [...new Set(fixtures.map((fixture) => fixture.net))].sort();
  assert.deepEqual(nets, [
    'depthwise',
    'gpt',
    'gpt-tied',
    'grouped',
    'mlp',
    'residual',
    'residual-folded',
    'transformer',
    'vit',
  ]);
  const residual = fixtures.filter((fixture) => fixture.net === 'residual' && fixture.mode === 'training');
  assert.deepEqual([...new Set(residual.map((fixture) => fixture.opset))], [13, 14, 15, 16, 17]);
  assert.deepEqual(
    [...new Set(fixtures.map((fixture) => `${fixture.batch} ${fixture.mode} ${fixture.exporter}`))].sort(),
    [
      'dynamic eval torchscript',
      'dynamic training dynamo',
      'dynamic training torchscript',
      'fixed training torchscript',
    ],
  );
});

test('every fixture has its files, six finite losses that move, and weights that are in the file', () => {
  for (const fixture of pytorchFixtures()) {
    assert.equal(fixture.losses.length, 6, fixture.name);
    const first = fixture.losses[0] ?? Number.NaN;
    const movement = Math.max(...fixture.losses.map((loss) => Math.abs(loss - first) / first));
    assert.ok(movement > 0.05 && movement < 1, `${fixture.name} moves by ${movement}`);
    for (const path of [fixture.inputsPath, fixture.labelsPath])
      assert.equal(readFileSync(path).subarray(1, 6).toString(), 'NUMPY', path);
    assert.ok(statSync(fixture.modelPath).size < 200_000, fixture.modelPath);
    const model = readFileSync(fixture.modelPath, 'latin1');
    for (const weight of Object.values(fixture.finalWeights)) {
      assert.ok(model.includes(weight.initializer), `${fixture.name} has no ${weight.initializer}`);
      assert.ok(weight.sumOfSquares > 0, weight.initializer);
    }
  }
});
