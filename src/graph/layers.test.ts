import assert from 'node:assert/strict';
import { test } from 'node:test';

import { InputError } from '../errors.ts';
import { attentionModel, depthwiseModel, residualModel } from '../testing/sample-models.ts';
import { GraphBuilder } from './builder.ts';
import { int } from './graph.ts';
import { bufferBytes, cutBytes, layers, parameterBytes } from './layers.ts';
import { int64s } from './tensor.ts';

test('residual: a layer for each convolution, pool and product, with names, bytes and flops', () => {
  const sequence = layers(residualModel());
  assert.deepEqual(
    sequence.layers.map(({ name, outputs, flops }) => [name, outputs.map(({ shape }) => shape.join('x')), flops]),
    [
      // Conv 2·4·27·64, batch normalization and ReLU 256 each.
      ['stem.conv', ['Nx4x8x8'], 2 * 4 * 27 * 64 + 512],
      ['block1.0.conv', ['Nx4x8x8', 'Nx4x8x8'], 2 * 4 * 36 * 64 + 512],
      ['block1.1.conv', ['Nx4x8x8'], 2 * 4 * 36 * 64 + 768],
      ['block2.0.conv', ['Nx4x8x8', 'Nx8x4x4'], 2 * 8 * 36 * 16 + 256],
      ['block2.shortcut.conv', ['Nx8x4x4', 'Nx8x4x4'], 2 * 8 * 4 * 16 + 128],
      ['block2.1.conv', ['Nx8x4x4'], 2 * 8 * 72 * 16 + 384],
      ['globalaveragepool_1', ['Nx8'], 128 + 8],
      ['head', ['Nx5'], 2 * 8 * 5],
    ],
  );
  const first = sequence.layers[0];
  assert.ok(first);
  assert.equal(parameterBytes(sequence, first), (4 * 3 * 9 + 4 + 4) * 4);
  assert.equal(bufferBytes(sequence, first), 8 * 4);
  assert.equal(cutBytes(first.outputs), 4 * 8 * 8 * 4);
  assert.equal(cutBytes(first.outputs, 5), 5 * 4 * 8 * 8 * 4);
  assert.deepEqual(
    sequence.layers.map((layer) => layer.batchDependent),
    [true, true, true, true, true, true, false, false],
  );
});

test('the same block on the same shapes has the same signature, except at another place in the gradient flow', () => {
  const b = new GraphBuilder('chain');
  let x = b.input('x', 'float32', ['N', 4, 8, 8]);
  for (const name of ['a', 'b', 'c', 'd']) {
    x = b.conv2d(x, { name, outChannels: name === 'd' ? 8 : 4, kernel: 3, padding: 1 });
    x = b.relu(x);
  }
  const [first, second, third, last] = layers(b.build([x])).layers.map(({ signature }) => signature);
  assert.notEqual(first, second, "the first layer's input needs no gradient");
  assert.equal(second, third);
  assert.notEqual(third, last);
});

test('attention: norms go to the layer that minimises the cut, the mask travels as far as it is read', () => {
  const sequence = layers(attentionModel());
  assert.deepEqual(
    sequence.layers.map(({ name, outputs }) => [name, outputs.length]),
    [
      ['tokens', 2], // the embedded tokens and the mask
      ['positions', 2],
      ['attention.query', 4], // the residual, the normalized tokens, the mask, the query
      ['attention.key', 5],
      ['matmul_3', 3], // the residual, the normalized tokens and the attention weights
      ['attention.value', 3],
      ['matmul_5', 2],
      ['attention.output', 1],
      ['feedForward.in', 2],
      ['feedForward.out', 1],
      ['head', 1],
    ],
  );
  const query = sequence.layers[2];
  assert.ok(query);
  assert.deepEqual(query.outputs.map(({ differentiable }) => differentiable).sort(), [false, true, true, true]);
  assert.equal(
    sequence.layers.some((layer) => layer.batchDependent),
    false,
  );
});

test('inputs carry no gradient, activations between parameters and the output do', () => {
  const sequence = layers(depthwiseModel());
  assert.deepEqual(
    sequence.inputs.map(({ name, differentiable, batchAxis }) => [name, differentiable, batchAxis]),
    [['x', false, 0]],
  );
  for (const layer of sequence.layers) for (const output of layer.outputs) assert.equal(output.differentiable, true);
});

test('a parameter read in two places keeps everything between them in one layer', () => {
  const b = new GraphBuilder('tied');
  const ids = b.input('ids', 'int64', ['N', 4]);
  const table = b.embedding(ids, { name: 'table', count: 7, width: 4 });
  const hidden = b.linear(table, { name: 'hidden', outFeatures: 4 });
  const scores = b.matMul(hidden, b.transpose('table.weight', [1, 0]));
  const sequence = layers(b.build([b.linear(scores, { name: 'head', outFeatures: 2 })]));
  assert.deepEqual(
    sequence.layers.map(({ name, parameters }) => [name, parameters]),
    [
      ['table', ['table.weight', 'hidden.weight', 'hidden.bias']],
      ['head', ['head.weight', 'head.bias']],
    ],
  );
});

test('work on parameters alone happens next to its reader, so that it forbids no cut', () => {
  const b = new GraphBuilder('early');
  const x = b.input('x', 'float32', ['N', 4]);
  const late = b.transpose(b.parameter('late.weight', [4, 4], { kind: 'normal', standardDeviation: 1 }), [1, 0]);
  const first = b.linear(x, { name: 'first', outFeatures: 4 });
  const sequence = layers(b.build([b.matMul(b.linear(first, { name: 'second', outFeatures: 4 }), late)]));
  assert.deepEqual(
    sequence.layers.map(({ name, nodes }) => [name, nodes]),
    [
      ['first', ['Gemm_1']],
      ['second', ['Gemm_2']],
      ['late', ['Transpose_1', 'MatMul_1']],
    ],
  );
});

test('a batch on another axis travels, too; one merged with another dimension does not', () => {
  const b = new GraphBuilder('sequence first');
  const x = b.transpose(b.linear(b.input('x', 'float32', ['N', 3, 4]), { name: 'in', outFeatures: 4 }), [1, 0, 2]);
  const merged = b.reshape(b.linear(x, { name: 'middle', outFeatures: 4 }), [-1, 4]);
  const product = b.linear(merged, { name: 'merged', outFeatures: 4 });
  const split = b.node('Reshape', [product, b.constant(int64s([3, -1, 4]))]);
  const y = b.linear(b.transpose(split, [1, 0, 2]), { name: 'out', outFeatures: 2 });
  assert.deepEqual(
    layers(b.build([y])).layers.map(({ name, outputs }) => [
      name,
      outputs.map(({ shape, batchAxis }) => [shape.join('x'), batchAxis]),
    ]),
    [
      ['in', [['3xNx4', 1]]],
      ['middle', [['3xNx4', 1]]],
      ['merged', [['Nx3x4', 0]]],
      ['out', [['Nx3x2', 0]]],
    ],
  );
});

test('layers that mix samples are marked', () => {
  const build = (mix: (b: GraphBuilder, x: string) => string): boolean => {
    const b = new GraphBuilder('mix');
    return layers(b.build([mix(b, b.input('x', 'float32', ['N', 4]))])).layers.some((layer) => layer.batchDependent);
  };
  assert.equal(
    build((b, x) => b.softmax(x, 1)),
    false,
  );
  assert.equal(
    build((b, x) => b.softmax(x, 0)),
    true,
  );
  assert.equal(
    build((b, x) => b.node('Sub', [x, b.node('ReduceMean', [x, b.constant(int64s([0]))], { keepdims: int(1) })])),
    true,
  );
  assert.equal(
    build((b, x) => b.node('Sub', [x, b.node('ReduceMean', [x, b.constant(int64s([1]))], { keepdims: int(1) })])),
    false,
  );
  assert.equal(
    build((b, x) => b.matMul(b.matMul(x, b.transpose(x, [1, 0])), x)),
    true,
  );
});

test('an input or first output without a batch is one clear error', () => {
  const withInput = new GraphBuilder('model');
  const x = withInput.input('x', 'float32', ['N', 4]);
  assert.throws(
    () => layers(withInput.build([withInput.add(x, withInput.input('shift', 'float32', [4]))])),
    new InputError(
      'Input "shift" of model "model" has shape [4] without a batch dimension; every input and the first ' +
        'output need one.',
    ),
  );
  const loss = new GraphBuilder('model');
  assert.throws(
    () => layers(loss.build([loss.node('ReduceMean', [loss.input('x', 'float32', ['N', 4])], { keepdims: int(0) })])),
    InputError,
  );
});

test('a first output independent of the inputs is refused, even with as many rows as the batch', () => {
  const b = new GraphBuilder('model');
  b.input('x', 'float32', ['N', 4]);
  const graph = b.build([b.parameter('w', [2, 3], { kind: 'constant', value: 0 })]);
  const message =
    'The first output of model "model", "w", is the same for all inputs; export the model with its result as ' +
    'the first output.';
  assert.throws(() => layers(graph), new InputError(message));
  assert.throws(() => layers({ ...graph, fixedBatch: 2 }), new InputError(message));
});

test('only the first output counts', () => {
  const b = new GraphBuilder('two outputs');
  const trunk = b.linear(b.input('x', 'float32', ['N', 4]), { name: 'trunk', outFeatures: 4 });
  const head = b.linear(trunk, { name: 'head', outFeatures: 2 });
  const other = b.linear(trunk, { name: 'other', outFeatures: 3 });
  const sequence = layers(b.build([head, other]));
  assert.deepEqual(
    sequence.layers.map(({ name, outputs }) => [name, outputs.length]),
    [
      ['trunk', 1],
      ['head', 1],
    ],
  );
  assert.deepEqual(sequence.graph.parameters, ['trunk.weight', 'trunk.bias', 'head.weight', 'head.bias']);
});
