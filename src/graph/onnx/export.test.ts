import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

import { changed, messageOf, onnxModel } from '../../testing/onnx-models.ts';
import { pytorchFixtures } from '../../testing/pytorch-fixtures.ts';
import { attentionModel, depthwiseModel, residualModel } from '../../testing/sample-models.ts';
import { float, type Graph, int, ints, string, tensorAttribute, type ValueInfo } from '../graph.ts';
import { instantiate } from '../static.ts';
import { scalar, type Tensor, tensor, toNumbers } from '../tensor.ts';
import { exportGraph, exportModel } from './export.ts';
import { importModel } from './import.ts';
import { inferenceMode } from './modes.ts';

const x: ValueInfo = { name: 'x', type: 'float32', shape: ['N', 2] };

function sorted(graph: Graph): Graph {
  return { ...graph, initializers: new Map([...graph.initializers].sort(([a], [b]) => (a < b ? -1 : 1))) };
}

for (const graph of [residualModel(), depthwiseModel(), attentionModel()]) {
  test(`${graph.name}: a graph is the same after export and import`, () => {
    assert.deepEqual(sorted(importModel(exportGraph(graph)).graph), sorted(graph));
  });

  test(`${graph.name}: the file is written the same again`, () => {
    const bytes = exportGraph(graph);
    const imported = importModel(bytes);
    assert.deepEqual(messageOf(exportModel(imported, new Map(), { mode: 'as-imported' })), messageOf(bytes));
    assert.deepEqual(exportGraph(imported.graph), bytes);
  });

  test(`${graph.name}: a static graph is a model too`, () => {
    const { graph: fixed } = instantiate(graph, 3);
    const read = importModel(exportGraph({ ...fixed, fixedBatch: 3 })).graph;
    assert.deepEqual(sorted(read), sorted({ ...fixed, fixedBatch: 3 }));
  });
}

test('constants stay constants in a file', () => {
  const graph: Graph = {
    name: 'normalized',
    inputs: [x],
    outputs: [{ name: 'y', type: 'float32', shape: ['N', 2] }],
    initializers: new Map([
      ['mean', tensor('float32', [2], [1, 2])],
      ['bias', tensor('float32', [2], [3, 4])],
    ]),
    parameters: ['bias'],
    buffers: [],
    nodes: [
      { operator: 'Sub', domain: '', name: 'center', inputs: ['x', 'mean'], outputs: ['a'], attributes: {} },
      { operator: 'Add', domain: '', name: 'add', inputs: ['a', 'bias'], outputs: ['y'], attributes: {} },
    ],
  };
  assert.deepEqual(importModel(exportGraph(graph)).graph.parameters, ['bias']);
});

test('every kind of attribute, absent inputs and other domains are written', () => {
  const attributes = {
    a: int(-3),
    b: float(0.5),
    c: string('gelu'),
    d: ints([1, -1]),
    e: { type: 'floats', value: [0.25] },
    f: { type: 'strings', value: ['x', 'ü'] },
    g: tensorAttribute(tensor('int8', [2], [1, -1])),
  } as const;
  const node = {
    operator: 'Fused',
    domain: 'com.microsoft.nchwc',
    name: 'n',
    inputs: ['x', '', 'x'],
    outputs: ['', 'y'],
    attributes,
  };
  const graph: Graph = {
    name: 'g',
    inputs: [x],
    outputs: [{ name: 'y', type: 'float32', shape: ['N'] }],
    initializers: new Map(),
    parameters: [],
    buffers: [],
    nodes: [node],
  };
  const bytes = exportGraph(graph);
  assert.deepEqual(importModel(bytes).graph.nodes, [node]);
  const { opsetImport, irVersion, producerName } = messageOf(bytes);
  assert.deepEqual(
    [opsetImport.map(({ domain, version }) => [domain, version]), irVersion, producerName],
    [
      [
        ['', 21n],
        ['com.microsoft.nchwc', 1n],
      ],
      10n,
      'asteroid',
    ],
  );
});

test('trained weights replace the values, in initializers and in Constant nodes; all else stays', () => {
  const bytes = changed(
    onnxModel({
      opset: 12,
      inputs: [x],
      nodes: [
        { operator: 'MatMul', inputs: ['x', 'w'], outputs: ['a'], name: 'first' },
        { operator: 'Gemm', inputs: ['a', 'v', 'b'], outputs: ['y'], name: 'second', attributes: { transB: int(1) } },
      ],
      outputs: ['y'],
      initializers: { v: tensor('float32', [1, 2], [1, 2]), b: tensor('float32', [1], [3]) },
      constants: { w: tensor('float32', [2, 2], [1, 2, 3, 4]) },
    }),
    (model) => {
      model.producerName = 'somebody';
      model.docString = 'a model';
      if (model.graph?.initializer[0] !== undefined) model.graph.initializer[0].docString = 'the weight';
    },
  );
  const imported = importModel(bytes);
  assert.deepEqual(imported.graph.parameters, ['v', 'b', 'w']);
  const trained = new Map([
    ['w', tensor('float32', [2, 2], [5, 6, 7, 8])],
    ['b', tensor('float32', [1], [9])],
  ]);
  const before = messageOf(exportModel(imported, new Map()));
  assert.deepEqual(before, messageOf(bytes), 'nothing trained: the same model');
  const after = exportModel(imported, trained);
  const restored = exportModel(
    importModel(after),
    new Map([...trained.keys()].map((name) => [name, imported.graph.initializers.get(name) as Tensor])),
  );
  assert.deepEqual(messageOf(restored), messageOf(bytes), 'with the old values back: the same model');
  const read = importModel(after).graph;
  assert.deepEqual(
    ['v', 'b', 'w'].map((name) => toNumbers(read.initializers.get(name) as Tensor)),
    [[1, 2], [9], [5, 6, 7, 8]],
  );
  assert.equal(messageOf(after).opsetImport[0]?.version, 12n);
  assert.equal(messageOf(after).graph?.initializer[0]?.docString, 'the weight');
  assert.deepEqual(
    toNumbers(imported.graph.initializers.get('w') as Tensor),
    [1, 2, 3, 4],
    'what was imported is not changed',
  );
});

test('a shape or type that training must not change is an internal error', () => {
  const imported = importModel(exportGraph(residualModel()));
  assert.throws(
    () => exportModel(imported, new Map([['head.bias', tensor('float32', [4], [1, 2, 3, 4])]])),
    /Asteroid made a mistake: "head.bias" was trained with shape \[4\]/,
  );
  assert.throws(
    () => exportModel(imported, new Map([['head.bias', tensor('float64', [5], [1, 2, 3, 4, 5])]])),
    /was trained as float64/,
  );
  assert.throws(
    () => exportModel(imported, new Map([['foot.bias', tensor('float32', [5], [1, 2, 3, 4, 5])]])),
    /the place of "foot.bias" in the file is missing/,
  );
});

test('for inference, batch normalization and dropout are switched at every opset', () => {
  for (const fixture of pytorchFixtures().filter(
    ({ net, mode }) => net === 'depthwise' || (net === 'residual' && mode === 'training'),
  )) {
    const imported = importModel(readFileSync(fixture.modelPath));
    const asImported = messageOf(exportModel(imported, new Map(), { mode: 'as-imported' })).graph?.node ?? [];
    const normalizations = asImported.filter(({ opType }) => opType === 'BatchNormalization');
    assert.ok(
      normalizations.some(({ output }) => output.length > 1),
      `${fixture.name} was exported for training`,
    );
    const exported = importModel(exportModel(imported, new Map())).graph;
    assert.deepEqual(
      exported.nodes.map(({ operator, outputs, inputs }) => [operator, outputs.length, inputs.length]),
      inferenceMode(imported.graph).nodes.map(({ operator, outputs, inputs }) => [
        operator,
        outputs.length,
        inputs.length,
      ]),
      fixture.name,
    );
    assert.equal(messageOf(exportModel(imported, new Map())).opsetImport[0]?.version, BigInt(fixture.opset));
  }
});

test("for inference, dropout's flag disappears with its last reader", () => {
  const inputs = ['x', 'ratio', 'training'];
  const initializers = { training: scalar('bool', 1) };
  const constants = { ratio: scalar('float32', 0.5) };
  const drop = (
    more: readonly { operator: string; inputs: string[]; outputs: string[] }[],
    outputs: string[],
  ): Uint8Array =>
    onnxModel({
      opset: 17,
      inputs: [x],
      nodes: [{ operator: 'Dropout', inputs, outputs: ['y'] }, ...more],
      outputs,
      initializers,
      constants,
    });
  const plain = messageOf(exportModel(importModel(drop([], ['y'])), new Map())).graph;
  assert.deepEqual(
    plain?.node.map(({ input }) => input),
    [[], ['x', 'ratio']],
  );
  assert.deepEqual(plain?.initializer, []);
  const readElsewhere = drop([{ operator: 'Not', inputs: ['training'], outputs: ['z'] }], ['y', 'z']);
  assert.deepEqual(
    messageOf(exportModel(importModel(readElsewhere), new Map())).graph?.initializer.map(({ name }) => name),
    ['training'],
  );
});

test('running statistics that are read elsewhere keep their batch normalization in training mode', () => {
  const vector = tensor('float32', [2], [1, 2]);
  const initializers = { scale: vector, bias: vector, mean: vector, variance: vector };
  const nodes = [
    {
      operator: 'BatchNormalization',
      inputs: ['x', ...Object.keys(initializers)],
      outputs: ['y', 'm', 'v'],
      attributes: { training_mode: int(1) },
    },
  ];
  const export_ = (outputs: string[]): number[] =>
    (
      messageOf(
        exportModel(importModel(onnxModel({ opset: 15, inputs: [x], nodes, outputs, initializers })), new Map()),
      ).graph?.node ?? []
    ).map(({ output }) => output.length);
  assert.deepEqual(export_(['y']), [1]);
  assert.deepEqual(export_(['y', 'm']), [3]);
});

test('a large model is written with one copy of its weights', () => {
  const size = 2 ** 22;
  const weight = { type: 'float32' as const, shape: [1, size], data: new Float32Array(size).fill(1.5) };
  const graph: Graph = {
    name: 'large',
    inputs: [{ name: 'x', type: 'float32', shape: ['N', 1] }],
    outputs: [{ name: 'y', type: 'float32', shape: ['N', size] }],
    initializers: new Map([['w', weight]]),
    parameters: ['w'],
    buffers: [],
    nodes: [{ operator: 'MatMul', domain: '', name: 'product', inputs: ['x', 'w'], outputs: ['y'], attributes: {} }],
  };
  const bytes = exportGraph(graph);
  assert.equal(bytes.buffer.byteLength, bytes.length, 'the array has the size of the file');
  assert.ok(bytes.length - 4 * size < 250, `${bytes.length - 4 * size} bytes in addition to the weight`);
  assert.deepEqual(importModel(bytes).graph.initializers.get('w'), weight);
});
