import assert from 'node:assert/strict';
import { test } from 'node:test';

import { evaluateGraph } from '../../testing/evaluate-graph.ts';
import { onnxModel } from '../../testing/onnx-models.ts';
import { residualModel } from '../../testing/sample-models.ts';
import { GraphBuilder } from '../builder.ts';
import { checkGraph } from '../check.ts';
import { type Graph, int } from '../graph.ts';
import { layers } from '../layers.ts';
import { instantiate } from '../static.ts';
import { scalar, tensor } from '../tensor.ts';
import { exportModel } from './export.ts';
import { importModel } from './import.ts';
import { inferenceMode, trainingMode } from './modes.ts';

function batchNorms(graph: Graph): unknown[] {
  return graph.nodes
    .filter(({ operator }) => operator === 'BatchNormalization')
    .map(({ outputs, attributes }) => [outputs.length, attributes['training_mode']]);
}

test('batch normalization: running statistics are outputs in training, not in inference; back and forth', () => {
  const graph = residualModel();
  const inference = inferenceMode(graph);
  assert.deepEqual(batchNorms(inference), Array(6).fill([1, int(0)]));
  assert.equal(
    layers(inference).layers.some(({ batchDependent }) => batchDependent),
    false,
  );
  const training = trainingMode(inference);
  assert.deepEqual(batchNorms(training), Array(6).fill([3, int(1)]));
  checkGraph(training);
  instantiate(training, 2);
  assert.deepEqual(batchNorms(trainingMode(training)), Array(6).fill([3, int(1)]));
  assert.deepEqual(trainingMode(graph), graph, 'what trains already stays as it is');
});

test('dropout: a flag in training, none in inference, where it disappears', () => {
  const b = new GraphBuilder('dropout');
  const x = b.input('x', 'float32', ['N', 4]);
  const graph = b.build([b.relu(b.dropout(b.dropout(x, 0.5), 0.1))]);
  const inference = inferenceMode(graph);
  assert.deepEqual(
    inference.nodes.map(({ operator, inputs }) => [operator, inputs.length]),
    [
      ['Dropout', 2],
      ['Dropout', 2],
      ['Relu', 1],
    ],
  );
  assert.equal(inference.initializers.size, 2, 'the ratios');
  assert.deepEqual(
    instantiate(inference, 2).graph.nodes.map(({ operator }) => operator),
    ['Relu'],
  );
  const training = trainingMode(inference);
  assert.deepEqual(
    training.nodes.map(({ inputs }) => inputs[2]),
    ['training_mode', 'training_mode', undefined],
  );
  assert.equal(instantiate(training, 2).graph.nodes.length, 3);
});

test('random decisions become their mean in inference, in graphs and in the files written from them', () => {
  const nodes = [
    { operator: 'RandomUniformLike', inputs: ['ones'], outputs: ['u'] },
    { operator: 'Less', inputs: ['u', 'p'], outputs: ['isKept'] },
    { operator: 'Cast', inputs: ['isKept'], outputs: ['kept'], attributes: { to: int(1) } },
    { operator: 'Div', inputs: ['kept', 'p'], outputs: ['mask'] },
    { operator: 'Mul', inputs: ['x', 'mask'], outputs: ['dropped'] },
    { operator: 'Shape', inputs: ['x'], outputs: ['shape'] },
    { operator: 'Expand', inputs: ['p', 'shape'], outputs: ['chances'] },
    { operator: 'Bernoulli', inputs: ['chances'], outputs: ['drawn'] },
    { operator: 'Add', inputs: ['dropped', 'drawn'], outputs: ['y'] },
  ];
  const x = { name: 'x', type: 'float32', shape: ['N', 2] } as const;
  const initializers = { ones: tensor('float32', [1, 2], [1, 1]), p: scalar('float32', 0.75) };
  const imported = importModel(onnxModel({ opset: 18, inputs: [x], nodes, outputs: ['y'], initializers }));
  const weights = new Map(
    [...imported.graph.initializers].filter(([name]) => imported.graph.parameters.includes(name)),
  );
  const rewritten = importModel(exportModel(imported, weights));
  for (const graph of [inferenceMode(imported.graph), rewritten.graph]) {
    assert.deepEqual(
      graph.nodes.filter(({ operator }) => /Random|Less|Bernoulli/.test(operator)),
      [],
    );
    const result = evaluateGraph(instantiate(graph, 1).graph, new Map([['x', tensor('float32', [1, 2], [3, -5])]]));
    assert.deepEqual(result.get('y')?.data, Float32Array.of(3.75, -4.25));
  }
});
