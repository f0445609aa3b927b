import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InputError } from '../../errors.ts';
import { messageOf, onnxModel } from '../../testing/onnx-models.ts';
import { GraphBuilder } from '../builder.ts';
import { type Graph, int, ints } from '../graph.ts';
import { instantiate } from '../static.ts';
import { int64s, type Tensor, tensor } from '../tensor.ts';
import { exportGraph, exportModel } from './export.ts';
import { importModel } from './import.ts';
import { replaceHead } from './replace-head.ts';

const x = { name: 'x', type: 'float32', shape: ['N', 4] } as const;
const image = { name: 'x', type: 'float32', shape: ['N', 4, 2, 2] } as const;
const filled = (shape: readonly number[]): Tensor =>
  tensor('float32', shape, new Array(shape.reduce((a, b) => a * b, 1)).fill(1));

/** The model's output for 2 samples, and the shapes of its weights. */
function shapes(graph: Graph): readonly unknown[] {
  const { graph: fixed } = instantiate(graph, 2);
  return [
    fixed.outputs[0]?.shape,
    ...graph.parameters.map((name) => [name, ...(graph.initializers.get(name)?.shape ?? [])].join(' ')),
  ];
}

test('a linear layer: new weights of the new size under the old names; the rest of the file stays', () => {
  const bytes = onnxModel({
    opset: 13,
    inputs: [x],
    nodes: [
      { operator: 'Gemm', name: 'hidden', inputs: ['x', 'w1', 'b1'], outputs: ['h'], attributes: { transB: int(1) } },
      {
        operator: 'Gemm',
        name: 'fc',
        inputs: ['h', 'fc.weight', 'fc.bias'],
        outputs: ['logits'],
        attributes: { transB: int(1) },
      },
      { operator: 'Softmax', name: 'softmax', inputs: ['logits'], outputs: ['y'], attributes: { axis: int(1) } },
    ],
    outputs: ['y'],
    initializers: { w1: filled([6, 4]), b1: filled([6]), 'fc.weight': filled([3, 6]), 'fc.bias': filled([3]) },
  });
  const { model, head } = replaceHead(importModel(bytes), 10, 7);
  assert.deepEqual(
    [head.node.name, head.classCount, head.fanIn, head.weight.name, head.bias?.name],
    ['fc', 3, 6, 'fc.weight', 'fc.bias'],
  );
  assert.deepEqual(shapes(model.graph), [[2, 10], 'w1 6 4', 'b1 6', 'fc.weight 10 6', 'fc.bias 10']);
  const weight = model.graph.initializers.get('fc.weight')?.data as Float32Array;
  assert.ok(weight.every((value) => Math.abs(value) <= 1 / Math.sqrt(6)) && new Set(weight).size > 50);
  assert.deepEqual(replaceHead(importModel(bytes), 10, 7).model.graph.initializers.get('fc.weight')?.data, weight);
  assert.notDeepEqual(replaceHead(importModel(bytes), 10, 8).model.graph.initializers.get('fc.weight')?.data, weight);
  // The written file is the user's own but for the two tensors.
  const [before, after] = [messageOf(bytes), messageOf(exportModel(model, new Map()))];
  assert.deepEqual(after.opsetImport, before.opsetImport);
  assert.equal(after.producerName, 'somebody');
  assert.deepEqual(after.graph?.node, before.graph?.node);
  assert.deepEqual(after.graph?.initializer.slice(0, 2), before.graph?.initializer.slice(0, 2));
  assert.deepEqual(
    after.graph?.initializer.map(({ name }) => name),
    before.graph?.initializer.map(({ name }) => name),
  );
});

test('the declared shape of the output and inner shapes follow', () => {
  const b = new GraphBuilder('net', { seed: 1 });
  const built = b.build([b.linear(b.input('x', 'float32', ['N', 4]), { name: 'fc', outFeatures: 3 })]);
  const { model } = replaceHead(importModel(exportGraph(built)), 5, 0);
  assert.deepEqual(model.graph.outputs[0]?.shape, ['N', 5]);
});

test('a product and a bias, weights in Constant nodes, a Reshape after it', () => {
  const bytes = onnxModel({
    opset: 11,
    inputs: [x],
    nodes: [
      { operator: 'MatMul', name: 'product', inputs: ['x', 'w'], outputs: ['p'] },
      { operator: 'Add', name: 'bias', inputs: ['b', 'p'], outputs: ['s'] },
      { operator: 'Reshape', name: 'reshape', inputs: ['s', 'shape'], outputs: ['y'] },
    ],
    outputs: ['y'],
    constants: { w: filled([4, 3]), b: filled([1, 3]), shape: int64s([-1, 3]) },
  });
  const { model } = replaceHead(importModel(bytes), 7, 0);
  assert.deepEqual(shapes(model.graph), [[2, 7], 'w 4 7', 'b 1 7']);
});

test('a 1x1 convolution before the last pool, and a transposed weight', () => {
  const pooled = onnxModel({
    opset: 13,
    inputs: [image],
    nodes: [
      {
        operator: 'Conv',
        name: 'conv',
        inputs: ['x', 'w', 'b'],
        outputs: ['c'],
        attributes: { kernel_shape: ints([1, 1]) },
      },
      { operator: 'Relu', name: 'relu', inputs: ['c'], outputs: ['r'] },
      { operator: 'GlobalAveragePool', name: 'pool', inputs: ['r'], outputs: ['g'] },
      { operator: 'Flatten', name: 'flatten', inputs: ['g'], outputs: ['y'] },
    ],
    outputs: ['y'],
    initializers: { w: filled([3, 4, 1, 1]), b: filled([3]) },
  });
  assert.deepEqual(shapes(replaceHead(importModel(pooled), 9, 0).model.graph), [[2, 9], 'w 9 4 1 1', 'b 9']);
  const turned = onnxModel({
    opset: 13,
    inputs: [x],
    nodes: [
      { operator: 'Transpose', name: 'turn', inputs: ['w'], outputs: ['t'], attributes: { perm: ints([1, 0]) } },
      { operator: 'MatMul', name: 'product', inputs: ['x', 't'], outputs: ['y'] },
    ],
    outputs: ['y'],
    initializers: { w: filled([3, 4]) },
  });
  assert.deepEqual(shapes(replaceHead(importModel(turned), 9, 0).model.graph), [[2, 9], 'w 9 4']);
});

test('a model without a classifier at its end, or with one used elsewhere, is refused in one sentence', () => {
  const refused = (
    nodes: Parameters<typeof onnxModel>[0]['nodes'],
    initializers: Record<string, Tensor>,
    says: RegExp,
    input = x as typeof x | typeof image,
  ): void => {
    const imported = importModel(onnxModel({ opset: 13, inputs: [input], nodes, outputs: ['y'], initializers }));
    assert.throws(
      () => replaceHead(imported, 5, 0),
      (error) => error instanceof InputError && says.test(error.message),
    );
  };
  refused(
    [
      {
        operator: 'Conv',
        name: 'conv',
        inputs: ['x', 'w'],
        outputs: ['y'],
        attributes: { kernel_shape: ints([2, 2]) },
      },
    ],
    { w: filled([3, 4, 2, 2]) },
    /^The model has no classifier that --head-classes could .*: walking back from the output, Conv .* comes first;/,
    image,
  );
  refused(
    [
      { operator: 'MatMul', name: 'product', inputs: ['x', 'w'], outputs: ['p'] },
      { operator: 'Add', name: 'skip', inputs: ['p', 'x'], outputs: ['y'] },
    ],
    { w: filled([4, 4]) },
    /Add \("skip"\) comes first/,
  );
  refused(
    [
      { operator: 'MatMul', name: 'first', inputs: ['x', 'w'], outputs: ['p'] },
      { operator: 'MatMul', name: 'second', inputs: ['p', 'w'], outputs: ['y'] },
    ],
    { w: tensor('float32', [4, 4], [1, 2, 0, 4, 5, 1, 7, 3, 9, 2, 8, 2, 6, 1, 5, 1]) },
    /^The classifier's weight w is also read by first, so --head-classes cannot replace it/,
  );
});
