// Which tensors of a file are weights: by the exporter's declarations or, without any, by names and positions.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { create } from '@bufbuild/protobuf';

import { changed, onnxModel } from '../../testing/onnx-models.ts';
import type { ValueInfo } from '../graph.ts';
import { tensor } from '../tensor.ts';
import { StringStringEntryProtoSchema, ValueInfoProtoSchema } from './generated/onnx_pb.ts';
import { importModel } from './import.ts';

const x: ValueInfo = { name: 'x', type: 'float32', shape: ['N', 2, 2] };
const vector = tensor('float32', [2], [0.5, -1]);
const table = tensor('float32', [2, 2], [0.5, -1, 0.25, 3]);
const matrix = tensor('float32', [2, 2], [1, 2, 3, 4]);

/**
 * (((x · w + shift) · val_3) ⊙ unsqueeze_14 + embedding_1) ⊙ table, with the exporter's declarations of some of them.
 */
function model(kinds: Readonly<Record<string, string>>): Uint8Array {
  const nodes = [
    { operator: 'MatMul', inputs: ['x', 'w'], outputs: ['a'] },
    { operator: 'Add', inputs: ['a', 'shift'], outputs: ['b'] },
    { operator: 'MatMul', inputs: ['b', 'val_3'], outputs: ['c'] },
    { operator: 'Mul', inputs: ['c', 'unsqueeze_14'], outputs: ['d'] },
    { operator: 'Add', inputs: ['d', 'embedding_1'], outputs: ['e'] },
    { operator: 'Mul', inputs: ['e', 'table'], outputs: ['f'] },
    { operator: 'Mul', inputs: ['f', 'val_9'], outputs: ['y'] },
  ];
  const initializers = {
    w: matrix,
    shift: vector,
    val_3: matrix,
    unsqueeze_14: table,
    embedding_1: table,
    table,
    val_9: table,
  };
  return changed(onnxModel({ opset: 18, inputs: [x], nodes, outputs: ['y'], initializers }), ({ graph }) => {
    for (const [name, value] of Object.entries(kinds)) {
      const metadataProps = [
        create(StringStringEntryProtoSchema, { key: 'pkg.torch.export.graph_signature.InputSpec.kind', value }),
      ];
      graph?.valueInfo.push(create(ValueInfoProtoSchema, { name, metadataProps }));
    }
  });
}

test('declarations decide; what was computed ahead is taken for a weight where it meets what weights compute', () => {
  const { graph, choices } = importModel(model({ w: 'PARAMETER', shift: 'PARAMETER', table: 'BUFFER' }));
  assert.deepEqual(graph.parameters, ['w', 'shift', 'val_3', 'unsqueeze_14', 'embedding_1', 'val_9']);
  const guesses = choices.filter(({ isSure }) => !isSure).map(({ name }) => name);
  assert.deepEqual(guesses, ['unsqueeze_14', 'embedding_1', 'val_9']);
});

test('without declarations, source names are weights anywhere, made-up names beside what weights compute', () => {
  assert.deepEqual(importModel(model({})).graph.parameters, [
    'w',
    'shift',
    'val_3',
    'unsqueeze_14',
    'embedding_1',
    'table',
    'val_9',
  ]);
});

test('vectors with made-up names are weights if they scale or shift results of weights; neutral scales are not', () => {
  const image: ValueInfo = { name: 'x', type: 'float32', shape: ['N', 2, 3, 3] };
  const nodes = [
    { operator: 'Sub', inputs: ['x', 'onnx::Sub_1'], outputs: ['shifted'] },
    { operator: 'Mul', inputs: ['shifted', 'onnx::Mul_2'], outputs: ['scaled'] },
    { operator: 'Conv', inputs: ['scaled', 'conv.weight'], outputs: ['a'] },
    { operator: 'InstanceNormalization', inputs: ['a', 'onnx::Ones', 'onnx::Zeros'], outputs: ['b'] },
    { operator: 'Mul', inputs: ['b', 'onnx::Mul_3'], outputs: ['c'] },
    { operator: 'Add', inputs: ['onnx::Add_4', 'c'], outputs: ['d'] },
    { operator: 'Mul', inputs: ['d', 'onnx::Mul_5'], outputs: ['y'] },
  ];
  const channels = tensor('float32', [2, 1, 1], [0.5, -1]);
  const initializers = {
    'onnx::Sub_1': channels,
    'onnx::Mul_2': channels,
    'conv.weight': tensor('float32', [2, 2, 1, 1], [1, 2, 3, 4]),
    'onnx::Ones': tensor('float32', [2], [1, 1]),
    'onnx::Zeros': tensor('float32', [2], [0, 0]),
    'onnx::Mul_3': channels,
    'onnx::Add_4': channels,
    'onnx::Mul_5': tensor('float32', [1], [2]),
  };
  const { graph } = importModel(onnxModel({ opset: 17, inputs: [image], nodes, outputs: ['y'], initializers }));
  assert.deepEqual(graph.parameters, ['conv.weight', 'onnx::Mul_3', 'onnx::Add_4']);
});

test('if all names are generated, all tensors that a gradient reaches are weights', () => {
  const nodes = [
    { operator: 'MatMul', inputs: ['x', '1'], outputs: ['a'] },
    { operator: 'Add', inputs: ['a', '2'], outputs: ['y'] },
  ];
  const initializers = { '1': matrix, '2': vector };
  assert.deepEqual(
    importModel(onnxModel({ opset: 12, inputs: [x], nodes, outputs: ['y'], initializers })).graph.parameters,
    ['1', '2'],
  );
});

test('zeros that a recurrent layer begins with are no parameter; other initial states are', () => {
  const random = (...shape: number[]) =>
    tensor(
      'float32',
      shape,
      Array.from({ length: shape.reduce((size, length) => size * length, 1) }, (_, index) => Math.sin(index + 1)),
    );
  const gru = (state: number[]): readonly string[] => {
    const nodes = [{ operator: 'GRU', inputs: ['x', 'w', 'r', '', '', 'h0'], outputs: ['y'], attributes: size }];
    const initializers = { w: random(1, 6, 2), r: random(1, 6, 2), h0: tensor('float32', [1, 1, 2], state) };
    const given: ValueInfo = { name: 'x', type: 'float32', shape: [3, 1, 2] };
    return importModel(onnxModel({ opset: 18, inputs: [given], nodes, outputs: ['y'], initializers })).graph.parameters;
  };
  const size = { hidden_size: { type: 'int', value: 2 } } as const;
  assert.deepEqual(gru([0, 0]), ['w', 'r']);
  assert.deepEqual(gru([0.5, -1]), ['w', 'r', 'h0']);
});
