import assert from 'node:assert/strict';
import { test } from 'node:test';

import { changed, messageOf, onnxModel } from '../../testing/onnx-models.ts';
import type { ValueInfo } from '../graph.ts';
import { layers } from '../layers.ts';
import { type Tensor, tensor, toNumbers } from '../tensor.ts';
import { exportModel } from './export.ts';
import { importModel } from './import.ts';

const x: ValueInfo = { name: 'x', type: 'float32', shape: ['N', 2] };
const w = tensor('float32', [2, 2], [1, 2, 3, 4]);
const v = tensor('float32', [2, 2], [5, 6, 7, 8]);

/** Two linear layers that share their bias, directly or through an Identity with the bias's own name. */
function shared(bias: Tensor, through?: string): Uint8Array {
  const identity = through === undefined ? [] : [{ operator: 'Identity', inputs: ['bias'], outputs: [through] }];
  const nodes = [
    ...identity,
    { operator: 'Gemm', inputs: ['x', 'w', 'bias'], outputs: ['a'] },
    { operator: 'Gemm', inputs: ['a', 'v', through ?? 'bias'], outputs: ['y'] },
  ];
  return onnxModel({ opset: 17, inputs: [x], nodes, outputs: ['y'], initializers: { w, bias, v } });
}

test('a bias of zeros stored once becomes a bias for each layer', () => {
  const zeros = tensor('float32', [2], [0, 0]);
  const direct = importModel(shared(zeros));
  assert.deepEqual(direct.graph.parameters, ['w', 'bias', 'v', 'bias_2']);
  assert.deepEqual(direct.notes, [
    'The exporter had stored equal vectors once; 1 of them is a weight of its own again.',
  ]);
  assert.deepEqual(
    importModel(
      changed(shared(zeros), (model) => {
        model.producerName = 'asteroid';
      }),
    ).graph.parameters,
    ['w', 'bias', 'v'],
  );
  assert.equal(layers(direct.graph).layers.length, 2);
  const named = importModel(shared(zeros, 'second.bias'));
  assert.deepEqual(named.graph.parameters, ['w', 'bias', 'v', 'second.bias']);
  assert.deepEqual(
    named.graph.nodes.map(({ operator }) => operator),
    ['Gemm', 'Gemm'],
  );
  const trained = exportModel(named, new Map([['second.bias', tensor('float32', [2], [3, 4])]]));
  const read = importModel(trained).graph;
  assert.deepEqual(
    ['bias', 'second.bias'].map((name) => toNumbers(read.initializers.get(name) as Tensor)),
    [
      [0, 0],
      [3, 4],
    ],
  );
});

test('random weights that are read twice are tied on purpose', () => {
  const bytes = shared(tensor('float32', [2], [0.1, 0.2]));
  assert.deepEqual(importModel(bytes).graph.parameters, ['w', 'bias', 'v']);
  assert.deepEqual(messageOf(exportModel(importModel(bytes), new Map())), messageOf(bytes));
});

test('numbers of a formula and graph outputs stay shared', () => {
  const half = tensor('float32', [1], [0.5]);
  const nodes = [
    { operator: 'Mul', inputs: ['x', 'half'], outputs: ['a'] },
    { operator: 'Mul', inputs: ['a', 'half'], outputs: ['y'] },
  ];
  const scale = (initializer: Tensor, outputs: string[]): readonly string[] =>
    importModel(onnxModel({ opset: 17, inputs: [x], nodes, outputs, initializers: { half: initializer } })).graph
      .parameters;
  assert.deepEqual(scale(half, ['y']), ['half']);
  assert.deepEqual(scale(tensor('float32', [2], [1, 1]), ['y']), ['half', 'half_2']);
  assert.deepEqual(scale(tensor('float32', [2], [1, 1]), ['y', 'half']), ['half']);
});

test('running statistics and biases that share their zeros are separated, too', () => {
  const [zero, one] = [tensor('float32', [2], [0, 0]), tensor('float32', [2], [1, 1])];
  const nodes = [
    { operator: 'BatchNormalization', inputs: ['x', 'one', 'zero', 'zero', 'one'], outputs: ['a'] },
    { operator: 'BatchNormalization', inputs: ['a', 'one', 'zero', 'zero', 'one'], outputs: ['y'] },
  ];
  const { graph } = importModel(
    onnxModel({ opset: 17, inputs: [x], nodes, outputs: ['y'], initializers: { one, zero } }),
  );
  assert.deepEqual(graph.parameters.length, 4);
  assert.deepEqual(graph.buffers.length, 4);
  assert.equal(new Set(graph.nodes.flatMap(({ inputs }) => inputs.slice(1))).size, 8);
});

test('layer scales of shape [C, 1, 1] are separate; so are clipped logarithms of scales read for their type', () => {
  const image: ValueInfo = { name: 'x', type: 'float32', shape: ['N', 2, 3, 3] };
  const scale = tensor('float32', [2, 1, 1], [1e-6, 1e-6]);
  const nodes = [
    { operator: 'Mul', inputs: ['scale', 'x'], outputs: ['a'] },
    { operator: 'Mul', inputs: ['scale', 'a'], outputs: ['b'] },
    { operator: 'CastLike', inputs: ['limit', 'log'], outputs: ['most'] },
    { operator: 'Clip', inputs: ['log', '', 'most'], outputs: ['c'] },
    { operator: 'Mul', inputs: ['b', 'c'], outputs: ['d'] },
    { operator: 'Exp', inputs: ['log'], outputs: ['e'] },
    { operator: 'Mul', inputs: ['d', 'e'], outputs: ['y'] },
  ];
  const initializers = { scale, log: tensor('float32', [2, 1, 1], [2.3, 2.3]), limit: tensor('float32', [], [4.6]) };
  const bytes = onnxModel({ opset: 18, inputs: [image], nodes, outputs: ['y'], initializers });
  assert.deepEqual(importModel(bytes).graph.parameters, ['scale', 'log', 'scale_2', 'log_2']);
  const table = { ...initializers, scale: tensor('float32', [2, 3, 1], new Array<number>(6).fill(1)) };
  assert.deepEqual(
    importModel(onnxModel({ opset: 18, inputs: [image], nodes, outputs: ['y'], initializers: table })).graph.parameters,
    ['scale', 'log', 'log_2'],
  );
});

test('matrices of equal elements that several nodes read are separated, random ones are tied on purpose', () => {
  const nodes = [
    { operator: 'MatMul', inputs: ['x', 'w'], outputs: ['a'] },
    { operator: 'MatMul', inputs: ['a', 'w'], outputs: ['y'] },
  ];
  const parameters = (w: Tensor): readonly string[] =>
    importModel(onnxModel({ opset: 17, inputs: [x], nodes, outputs: ['y'], initializers: { w } })).graph.parameters;
  assert.deepEqual(parameters(tensor('float32', [2, 2], [0, 0, 0, 0])), ['w', 'w_2']);
  assert.deepEqual(parameters(tensor('float32', [2, 2], [0, 0.1, 0, 0])), ['w']);
});
