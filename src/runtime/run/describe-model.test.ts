// What is known of a file before anything runs: also of files that a run refuses.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { create } from '@bufbuild/protobuf';

import {
  AttributeProto_AttributeType,
  AttributeProtoSchema,
  GraphProtoSchema,
} from '../../graph/onnx/generated/onnx_pb.ts';
import { tensor } from '../../graph/tensor.ts';
import { changed, messageOf, onnxModel } from '../../testing/onnx-models.ts';
import { fixtureFolder } from '../../testing/pytorch-fixtures.ts';
import { describeModel } from './describe-model.ts';

const x = { name: 'x', type: 'float32', shape: ['N', 4] } as const;
const w = tensor('float32', [4, 3], [0.1, -0.3, 0.5, 0.2, 0.9, -0.4, 0.3, 0.6, 0.8, -0.7, 0.4, 0.1]);
const gemm = { operator: 'Gemm', inputs: ['x', 'w'], outputs: ['y'] };

test('inputs, outputs, operators, batch, layers, and what is trained or not, with the reason', () => {
  const nodes = [
    gemm,
    { operator: 'Mul', inputs: ['y', 'scale'], outputs: ['z'] },
    { operator: 'Add', inputs: ['z', 'mask'], outputs: ['v'] },
  ].map((node) => (node === gemm ? { ...gemm } : node));
  const initializers = {
    w,
    scale: tensor('float32', [], [0.5]),
    mask: tensor('float32', [3], [0, -1000, 0]),
  };
  const found = describeModel(onnxModel({ opset: 17, inputs: [x], nodes, outputs: ['v'], initializers }));
  assert.deepEqual(
    { ...found, outputs: found.outputs.map(({ name }) => name) },
    {
      producer: 'somebody',
      opset: 17,
      inputs: [{ name: 'x', type: 'float', shape: ['N', 4] }],
      outputs: ['v'],
      operators: { Add: 1, Gemm: 1, Mul: 1 },
      batch: 'any',
      batchAxes: { x: 0 },
      openSizes: [],
      tensors: [
        { name: 'w', shape: [4, 3], count: 12, trained: true, why: 'a weight by its position', sure: true },
        { name: 'scale', shape: [], count: 1, trained: true, why: 'a number that has a name', sure: false },
        { name: 'mask', shape: [3], count: 3, trained: false, why: 'a mask', sure: true },
      ],
      buffers: [],
      layerCount: 1,
      notes: [],
      refused: null,
    },
  );
});

test('a file with open sizes; one with running statistics', () => {
  const open = describeModel(
    onnxModel({
      opset: 17,
      inputs: [{ ...x, shape: ['N', 'time', 4] }],
      nodes: [{ ...gemm, operator: 'MatMul' }],
      outputs: ['y'],
      initializers: { w },
    }),
  );
  assert.deepEqual([open.openSizes, open.layerCount, open.refused], [['time'], null, null]);
  const folder = join(fixtureFolder('exports'), 'unmerged');
  const { buffers, notes, refused } = describeModel(readFileSync(join(folder, 'script.onnx')));
  assert.deepEqual([buffers, refused], [['norm.running_mean', 'norm.running_var'], null]);
  assert.match(notes.join(' '), /1 batch normalizations? use/);
});

test('what a run refuses is described as far as it can be, with the sentence', () => {
  const boxes = describeModel(
    onnxModel({
      opset: 17,
      inputs: [x],
      nodes: [
        { ...gemm, outputs: ['a'] },
        { operator: 'NonMaxSuppression', inputs: ['a'], outputs: ['y'] },
      ],
      outputs: ['y'],
      initializers: { w },
    }),
  );
  assert.match(boxes.refused ?? '', /^Operator NonMaxSuppression .* is not supported/);
  assert.deepEqual(boxes.operators, { Gemm: 1, NonMaxSuppression: 1 });
  const old = describeModel(onnxModel({ opset: 3, inputs: [x], nodes: [gemm], outputs: ['y'], initializers: { w } }));
  assert.match(old.refused ?? '', /^The model uses version 3 of the ONNX operators/);
  assert.deepEqual([old.opset, old.batch, old.tensors], [3, null, []]);
});

test('an output with the batch behind another axis is refused as a run refuses it', () => {
  const turned = onnxModel({
    opset: 17,
    inputs: [x],
    nodes: [gemm, { operator: 'Transpose', inputs: ['y'], outputs: ['t'] }],
    outputs: ['t'],
    initializers: { w },
  });
  assert.match(
    describeModel(turned).refused ?? '',
    /^The model's output t has the shape \[3, N\], with the batch on axis 1: /,
  );
});

test('quantized weights, and weights inside a branch that depends on data, are named', () => {
  const quantized = onnxModel({
    opset: 17,
    inputs: [x],
    nodes: [{ operator: 'MatMulInteger', inputs: ['x', 'q'], outputs: ['y'] }],
    outputs: ['y'],
    initializers: { q: tensor('int8', [4, 3], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]) },
  });
  assert.equal(
    describeModel(quantized).refused,
    'The file holds no weights that could be trained: they are quantized (MatMulInteger); ' +
      'export the model before it is quantized.',
  );
  const body = messageOf(
    onnxModel({ opset: 17, inputs: [x], nodes: [gemm], outputs: ['y'], initializers: { w } }),
  ).graph;
  const sum = {
    operator: 'ReduceSum',
    inputs: ['x'],
    outputs: ['s'],
    attributes: { keepdims: { type: 'int', value: 0 } },
  } as const;
  const branch = changed(
    onnxModel({
      opset: 17,
      inputs: [x],
      nodes: [
        sum,
        { operator: 'Cast', inputs: ['s'], outputs: ['c'], attributes: { to: { type: 'int', value: 9 } } },
        { operator: 'If', inputs: ['c'], outputs: ['y'], name: 'choice' },
      ],
      outputs: ['y'],
    }),
    ({ graph }) => {
      const type = AttributeProto_AttributeType.GRAPH;
      const g = Object.assign(create(GraphProtoSchema), body, { input: [] });
      for (const name of ['then_branch', 'else_branch'])
        graph?.node[2]?.attribute.push(create(AttributeProtoSchema, { name, type, g }));
    },
  );
  assert.equal(
    describeModel(branch).refused,
    'The file holds its weights inside node "choice" (If), which runs as the data decide: ' +
      'export the model without control flow, for the case to be trained.',
  );
});
