import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { fixtureFolder } from '../../testing/pytorch-fixtures.ts';
import { modelTable } from '../host/models.ts';

test('the table of the digits net, by hand', async () => {
  const { inputBytes, labelBytes, layers } = await modelTable('digits');
  assert.deepEqual([inputBytes, labelBytes], [28 * 28 * 4, 8]);
  assert.deepEqual(
    layers.map(({ name, outputBytes, weightBytes }) => [name, outputBytes, weightBytes]),
    [
      ['conv1', 24 * 28 * 28 * 4, (24 * 9 + 24) * 4],
      ['maxpool_1', 24 * 14 * 14 * 4, 0],
      ['conv2', 48 * 14 * 14 * 4, (48 * 24 * 9 + 48) * 4],
      ['maxpool_2', 48 * 7 * 7 * 4, 0],
      ['hidden', 96 * 4, (96 * 48 * 49 + 96) * 4],
      ['classifier', 10 * 4, (10 * 96 + 10) * 4],
    ],
  );
  const [conv, pool] = layers;
  // The convolution and its Relu write one plane each; its input and the Relu's result are kept.
  assert.deepEqual([conv?.trafficBytes, conv?.savedBytes], [2 * 75_264, 3136 + 75_264]);
  assert.equal(pool?.trafficBytes, 18_816);
  assert.equal(conv?.flops, 2 * 9 * 24 * 784 + 24 * 784, 'multiply-adds count two, the Relu one');
});

test('a file has a table too; so has a model of 632 million parameters, without its weights', async () => {
  const file = await modelTable(join(fixtureFolder('pytorch'), 'mlp', 'opset17-dynamic.onnx'));
  assert.ok(file.layers.length > 1 && file.layers.every((layer) => layer.flops > 0));
  const huge = await modelTable('vit-huge');
  const weightBytes = huge.layers.reduce((sum, layer) => sum + layer.weightBytes, 0);
  // Dosovitskiy et al. 2021, Table 1: 632 M parameters.
  assert.ok(Math.abs(weightBytes / 4 / 632e6 - 1) < 0.01, `${weightBytes}`);
});
