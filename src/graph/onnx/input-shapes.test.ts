// Open sizes of inputs, as a file has them and as a person gives them.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { changed, onnxModel } from '../../testing/onnx-models.ts';
import { layers } from '../layers.ts';
import { tensor } from '../tensor.ts';
import { type ImportedModel, importModel } from './import.ts';
import { parseInputShape } from './input-shapes.ts';

/** A convolution over images of an open size, then their mean and a classifier. */
function model(shape: readonly (number | string)[], ...given: readonly string[]): ImportedModel {
  const nodes = [
    { operator: 'Conv', inputs: ['x', 'k'], outputs: ['c'] },
    { operator: 'GlobalAveragePool', inputs: ['c'], outputs: ['p'] },
    { operator: 'Flatten', inputs: ['p'], outputs: ['f'] },
    { operator: 'Gemm', inputs: ['f', 'w'], outputs: ['y'] },
  ];
  const initializers = {
    k: tensor('float32', [2, 3, 1, 1], [0.1, 0.5, -0.2, 0.4, 0.3, 0.7]),
    w: tensor('float32', [2, 2], [0.3, -0.1, 0.2, 0.6]),
  };
  const inputs = [{ name: 'x', type: 'float32', shape } as const];
  const bytes = onnxModel({ opset: 17, inputs, nodes, outputs: ['y'], initializers });
  return importModel(
    changed(bytes, () => {}),
    { inputShapes: given.map(parseInputShape) },
  );
}

test('each ? is an unknown of its own, and the first one is the batch', () => {
  for (const unknown of ['?', '*', '-1', '']) {
    assert.deepEqual(model([unknown, 3, unknown, unknown]).graph.inputs[0]?.shape, ['N', 3, 'x.2', 'x.3'], unknown);
  }
  assert.deepEqual(model(['?', 3, 'H', 'H']).graph.inputs[0]?.shape, ['N', 3, 'H', 'H']);
});

test('--input-shape gives the open sizes; the batch stays open', () => {
  for (const given of ['x=N,3,8,6', '5,3,8,6', 'x=N,C,8,6']) {
    const { graph } = model(['?', 3, '?', '?'], given);
    assert.deepEqual(graph.inputs[0]?.shape, ['N', 3, 8, 6], given);
    assert.equal(layers(graph).fixedBatch, undefined);
  }
  assert.deepEqual(model(['batch', 3, 'size', 'size'], 'x=N,3,8,size').graph.inputs[0]?.shape, ['N', 3, 8, 8]);
});

test('a shape that does not fit is one sentence', () => {
  const fails = (given: string, message: string): void => {
    assert.throws(() => model(['N', 3, 'H', 'W'], given), { name: 'InputError', message });
  };
  fails(
    'x=N,3,224',
    "--input-shape x=N,3,224 does not fit the model's input x of the shape [N, 3, H, W]: give the sizes that are open.",
  );
  fails(
    'x=N,4,8,8',
    "--input-shape x=N,4,8,8 does not fit the model's input x of the shape [N, 3, H, W]: give the sizes that are open.",
  );
  fails('image=N,3,8,8', '--input-shape image=N,3,8,8 names no input of the model: the model has x.');
  for (const text of ['x=', '=3', 'x=N,3,-1,8', 'x=N,3,0,8', ''])
    fails(text, `--input-shape ${text} is not of the form NAME=N,3,224,224: give a size for each dimension.`);
});
