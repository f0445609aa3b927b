import assert from 'node:assert/strict';
import { test } from 'node:test';
import { modelSettings } from './trained.ts';

test('the settings of a run name its model; damaged ones are one sentence', () => {
  assert.deepEqual(modelSettings('model: net.onnx\nseed: 3\nhead-classes: 5\n', 'config.yaml'), {
    model: 'net.onnx',
    seed: 3,
    headClasses: 5,
  });
  assert.deepEqual(modelSettings('model: digits\nseed: none\n', 'config.yaml'), { model: 'digits', seed: 0 });
  assert.throws(
    () => modelSettings('model: [digits\n', '/r/config.yaml'),
    /^InputError: \/r\/config\.yaml: line \d+, column \d+ is neither JSON nor YAML/,
  );
  assert.throws(
    () => modelSettings('- model\n', '/r/config.yaml'),
    /^InputError: \/r\/config\.yaml does not name the model of the run\.$/,
  );
});
