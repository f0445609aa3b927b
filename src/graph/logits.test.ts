import assert from 'node:assert/strict';
import { test } from 'node:test';
import { onnxModel } from '../testing/onnx-models.ts';
import { GraphBuilder } from './builder.ts';
import { int } from './graph.ts';
import { withLogits } from './logits.ts';
import { importModel } from './onnx/import.ts';
import { instantiate } from './static.ts';
import { tensor } from './tensor.ts';

test('the Softmax over classes is removed; its input becomes the output', () => {
  const b = new GraphBuilder('net', { seed: 1 });
  const logits = b.linear(b.input('x', 'float32', ['N', 4]), { name: 'head', outFeatures: 3 });
  const { graph, removed } = withLogits(b.build([b.softmax(logits)]), 'Softmax');
  assert.equal(removed, 'Softmax');
  assert.deepEqual(graph.outputs, [{ name: logits, type: 'float32', shape: ['N', 3] }]);
  assert.deepEqual(
    graph.nodes.map(({ operator }) => operator),
    ['Gemm'],
  );
});

test('an old Softmax over the flattened input, as the importer writes it, is removed, too', () => {
  const bytes = onnxModel({
    opset: 9,
    inputs: [{ name: 'x', type: 'float32', shape: ['N', 4] }],
    nodes: [
      { operator: 'MatMul', name: 'product', inputs: ['x', 'w'], outputs: ['logits'] },
      { operator: 'Softmax', name: 'probabilities', inputs: ['logits'], outputs: ['y'], attributes: { axis: int(1) } },
    ],
    outputs: ['y'],
    initializers: { w: tensor('float32', [4, 3], new Array(12).fill(1)) },
  });
  const { graph, removed } = withLogits(importModel(bytes).graph, 'Softmax');
  assert.equal(removed, 'Softmax');
  const { graph: fixed } = instantiate(graph, 2);
  assert.deepEqual([fixed.outputs[0]?.name, fixed.outputs[0]?.shape], ['y', [2, 3]]);
  assert.equal(
    fixed.nodes.some(({ operator }) => operator === 'Softmax'),
    false,
  );
});

test('attention’s Softmax, one over another axis, and one that is read further stay', () => {
  const b = new GraphBuilder('net', { seed: 1 });
  const x = b.input('x', 'float32', ['N', 2, 3, 4]);
  for (const output of [b.relu(b.softmax(x)), b.node('Softmax', [x], { axis: int(2) }), x]) {
    const graph = b.build([output]);
    assert.deepEqual(withLogits(graph, 'Softmax'), { graph, removed: undefined });
  }
});

test('a logarithm of a Softmax goes with it, in one node or two', () => {
  const b = new GraphBuilder('net', { seed: 1 });
  const logits = b.linear(b.input('x', 'float32', ['N', 4]), { name: 'head', outFeatures: 3 });
  for (const output of [b.node('LogSoftmax', [logits], { axis: int(1) }), b.node('Log', [b.softmax(logits)])]) {
    const { graph, removed } = withLogits(b.build([output]), 'Softmax');
    assert.equal(removed, 'LogSoftmax');
    assert.deepEqual(graph.outputs, [{ name: logits, type: 'float32', shape: ['N', 3] }]);
  }
});

test('a Sigmoid is removed for the loss that takes its logits, and stays for another', () => {
  const b = new GraphBuilder('net', { seed: 1 });
  const logits = b.linear(b.input('x', 'float32', ['N', 4]), { name: 'head', outFeatures: 3 });
  const model = b.build([b.node('Sigmoid', [logits])]);
  const { graph, removed } = withLogits(model, 'Sigmoid');
  assert.deepEqual([removed, graph.outputs[0]?.name], ['Sigmoid', logits]);
  assert.deepEqual(withLogits(model, 'Softmax'), { graph: model, removed: undefined });
});
