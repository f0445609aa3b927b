import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InputError } from '../../errors.ts';
import { GraphBuilder } from '../../graph/builder.ts';
import type { Graph } from '../../graph/graph.ts';
import { type LayerSequence, layers } from '../../graph/layers.ts';
import { type ElementType, elementCount, tensor } from '../../graph/tensor.ts';
import { createDataset, type Dataset, inputField, labelField } from '../../training/data/dataset.ts';
import { bindToModel, labelCut, sizedByData } from './subject.ts';

/** Input x [N, 4], output [N, …outputShape], by one linear layer. */
function model(outputShape: readonly number[]): LayerSequence {
  const b = new GraphBuilder('model', { seed: 1 });
  const flat = b.linear(b.input('x', 'float32', ['N', 4]), { name: 'head', outFeatures: elementCount(outputShape) });
  return layers(b.build([outputShape.length === 1 ? flat : b.reshape(flat, ['N', ...outputShape])]));
}

/** Two samples; labels count up from 0. */
function data(labelShape: readonly number[], labelType: ElementType = 'int64', first = 0): Dataset {
  const inputs = inputField('x', tensor('float32', [2, 4], [1, 2, 3, 4, 5, 6, 7, 8]), 'x.npy');
  const count = 2 * elementCount(labelShape);
  const labels = tensor(
    labelType,
    [2, ...labelShape],
    Array.from({ length: count }, (_, index) => index + first),
  );
  return createDataset('data', [inputs], labelField(labels, 'y.npy'));
}

test('class labels become int64 and must be below the output’s number of classes', () => {
  const bound = bindToModel(data([], 'uint8'), model([2]), { loss: 'cross-entropy' });
  assert.deepEqual([bound.labels.type, bound.inputs[0]?.type], ['int64', 'float32']);
  assert.deepEqual(labelCut(bound), {
    name: 'label',
    type: 'int64',
    shape: ['N'],
    batchAxis: 0,
    differentiable: false,
  });
  assert.throws(
    () => bindToModel(data([], 'int64', 2), model([3]), { loss: 'cross-entropy' }),
    (error) =>
      error instanceof InputError &&
      error.message ===
        'The label 3 at row 1 of y.npy is outside 0…2: the model has 3 outputs; correct the labels, take a model ' +
          'with more outputs, or leave such labels out with --ignore-label 3.',
  );
  assert.throws(
    () => bindToModel(data([], 'int64', -1), model([3]), { loss: 'cross-entropy' }),
    /The label -1 at row 0 of y\.npy is outside 0…2/,
  );
});

test('a label for each position: classes are axis 1, or else the last axis; axis 1 if both fit', () => {
  // Labels 0…9: the message says how many classes were found.
  const classes = (labelShape: readonly number[], outputShape: readonly number[]): number => {
    try {
      bindToModel(data(labelShape), model(outputShape), { loss: 'cross-entropy' });
    } catch (error) {
      assert.ok(error instanceof InputError);
      return Number(/the model has (\d+) outputs/.exec(error.message)?.[1]);
    }
    return Number.NaN;
  };
  assert.equal(classes([5], [3, 5]), 3);
  assert.equal(classes([5], [5, 3]), 3);
  assert.equal(classes([5], [5, 5]), 5);
  assert.equal(classes([2, 3], [4, 2, 3]), 4);
  assert.equal(classes([2, 3], [2, 3, 4]), 4);
  assert.deepEqual(labelCut(bindToModel(data([5]), model([5, 10]), { loss: 'cross-entropy' })).shape, ['N', 5]);
});

test('labels that fit no class axis are named with both shapes', () => {
  assert.throws(
    () => bindToModel(data([7]), model([3, 5]), { loss: 'cross-entropy' }),
    (error) =>
      error instanceof InputError &&
      error.message ===
        "y.npy has labels of the shape [N, 7], which do not fit the model's output [N, 3, 5]: cross-entropy " +
          'takes one label for each position that is not the class axis; choose another model, another of its ' +
          'outputs (--output), or another loss.',
  );
  assert.throws(
    () => bindToModel(data([]), model([3, 5]), { loss: 'cross-entropy' }),
    /has labels of the shape \[N\], which do not fit/,
  );
});

test('targets of mse, and distributions over classes, have the output’s own shape and are float32', () => {
  const targets = bindToModel(data([3], 'int64'), model([3]), { loss: 'mse' });
  assert.deepEqual(labelCut(targets), {
    name: 'label',
    type: 'float32',
    shape: ['N', 3],
    batchAxis: 0,
    differentiable: false,
  });
  const oneHot = labelField(tensor('float64', [2, 3], [0, 1, 0, 0.5, 0, 0.5]), 'y.npy');
  const distributions = { ...data([]), labels: oneHot };
  assert.deepEqual(labelCut(bindToModel(distributions, model([3]), { loss: 'cross-entropy' })).shape, ['N', 3]);
  assert.throws(
    () => bindToModel(data([2], 'float32'), model([3]), { loss: 'mse' }),
    /y\.npy has the shape \[N, 2\], but the loss takes \[N, 3\]/,
  );
  assert.throws(
    () => bindToModel(data([2], 'float32'), model([3]), { loss: 'cross-entropy' }),
    /y\.npy has labels of the shape \[N, 2\], which do not fit the model's output \[N, 3\]/,
  );
});

test('a model that does not have its batch first is refused: data and labels come that way', () => {
  const transposed = new GraphBuilder('input', { seed: 1 });
  const x = transposed.transpose(transposed.input('x', 'float32', [4, 'N', 2]), [1, 0, 2]);
  const input = layers(transposed.build([transposed.linear(transposed.flatten(x), { name: 'head', outFeatures: 3 })]));
  const samples = createDataset(
    'data',
    [inputField('x', tensor('float32', [4, 4, 2], new Array(32).fill(0)), 'x.npy')],
    labelField(tensor('int64', [4], [0, 1, 2, 0]), 'y.npy'),
  );
  assert.throws(
    () => bindToModel(samples, input, { loss: 'cross-entropy' }),
    (error) =>
      error instanceof InputError &&
      error.message ===
        "The model's input x has the shape [4, N, 2], with the batch on axis 1: export it with the batch first.",
  );
  const output = new GraphBuilder('output', { seed: 1 });
  const y = output.reshape(output.linear(output.input('x', 'float32', ['N', 4]), { name: 'head', outFeatures: 6 }), [
    'N',
    2,
    3,
  ]);
  assert.throws(
    () => bindToModel(data([2]), layers(output.build([output.transpose(y, [1, 0, 2])])), { loss: 'cross-entropy' }),
    /^InputError: The model's output \S+ has the shape \[2, N, 3\], .* axis 1: export it with the batch first\.$/,
  );
});

test('sizes that a model leaves open are those of the data, the batch and sizes it gives are not touched', () => {
  const b = new GraphBuilder('open', { seed: 1 });
  const closed = b.build([b.relu(b.input('x', 'float32', ['N', 3, 5, 7]))]);
  const graph: Graph = { ...closed, inputs: [{ name: 'x', type: 'float32', shape: ['N', 'channels', 'height', 7] }] };
  const images = inputField('pictures', tensor('float32', [1, 3, 5, 6], new Array(90).fill(0)), 'x.npy');
  const dataset = createDataset('data', [images], labelField(tensor('int64', [1], [0]), 'y.npy'));
  assert.deepEqual(sizedByData(graph, dataset).inputs, [{ name: 'x', type: 'float32', shape: ['N', 3, 5, 7] }]);
  const flat = createDataset(
    'data',
    [inputField('x', tensor('float32', [1, 90], new Array(90).fill(0)), 'x.npy')],
    dataset.labels,
  );
  assert.deepEqual(sizedByData(graph, flat).inputs[0]?.shape, ['N', 'channels', 'height', 7]);
});
