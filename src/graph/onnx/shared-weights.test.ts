import assert from 'node:assert/strict';
import { test } from 'node:test';

import { onnxModel } from '../../testing/onnx-models.ts';
import type { ValueInfo } from '../graph.ts';
import { tensor } from '../tensor.ts';
import { importModel } from './import.ts';

const x: ValueInfo = { name: 'x', type: 'float32', shape: ['N', 2] };
const w = tensor('float32', [2, 2], [1, 2, 3, 4]);
const v = tensor('float32', [2, 2], [5, 6, 7, 8]);

test('a matrix that two layers read is one weight, and a note says what it may have been', () => {
  const nodes = [
    { operator: 'MatMul', inputs: ['x', 'layers.0.w'], outputs: ['a'] },
    { operator: 'Identity', inputs: ['layers.0.w'], outputs: ['layers.1.w'] },
    { operator: 'MatMul', inputs: ['a', 'layers.1.w'], outputs: ['b'] },
    { operator: 'MatMul', inputs: ['b', 'v'], outputs: ['y'] },
  ];
  const { graph, notes } = importModel(
    onnxModel({ opset: 17, inputs: [x], nodes, outputs: ['y'], initializers: { 'layers.0.w': w, v } }),
  );
  assert.deepEqual(graph.parameters, ['layers.0.w', 'v']);
  assert.deepEqual(notes, [
    'Weight "layers.0.w" is used by 2 nodes and trained as one; if these are layers that only began equal, ' +
      'export the model in training mode.',
  ]);
});

test('no note for an embedding that is also the classifier, and for weights read once', () => {
  const tokens: ValueInfo = { name: 'x', type: 'int64', shape: ['N'] };
  const nodes = [
    { operator: 'Gather', inputs: ['w', 'x'], outputs: ['a'] },
    { operator: 'MatMul', inputs: ['a', 'v'], outputs: ['b'] },
    { operator: 'Gemm', inputs: ['b', 'w'], outputs: ['y'] },
  ];
  assert.deepEqual(
    importModel(onnxModel({ opset: 17, inputs: [tokens], nodes, outputs: ['y'], initializers: { w, v } })).notes,
    [],
  );
});
