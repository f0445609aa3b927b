import assert from 'node:assert/strict';
import { test } from 'node:test';
import { GraphBuilder } from './builder.ts';
import { evaluateGraph } from './evaluate.ts';
import { ones, truncatedNormal, zeros } from './initialization.ts';
import { instantiate } from './static.ts';
import { byteLength, isUnread, type Tensor, tensor, toNumbers } from './tensor.ts';

test('shapes are known while building, with N for the batch', () => {
  const b = new GraphBuilder('shapes');
  const x = b.input('x', 'float32', ['N', 3, 15, 10]);
  const shapes = [
    b.conv2d(x, { name: 'a', outChannels: 8, kernel: 3 }),
    b.conv2d(x, { name: 'b', outChannels: 6, kernel: [5, 1], stride: 2, padding: 'same', groups: 3 }),
    b.conv2d(x, { name: 'c', outChannels: 3, kernel: 3, dilation: 2, padding: 2 }),
    b.maxPool2d(x, { kernel: 3, stride: 2, padding: 1 }),
    b.averagePool2d(x, { kernel: 5 }),
    b.globalAveragePool(x),
    b.flatten(x),
    b.linear(x, { name: 'd', outFeatures: 7 }),
    b.linear(b.flatten(x), { name: 'e', outFeatures: 7, bias: false }),
    b.reshape(x, ['N', 5, -1]),
    b.reshape(b.transpose(x, [1, 0, 2, 3]), [3, 'N', 150]),
    b.concat([x, x], 0),
  ].map((value) => b.shape(value).join('x'));
  assert.deepEqual(shapes, [
    'Nx8x13x8',
    'Nx6x8x5',
    'Nx3x15x10',
    'Nx3x8x5',
    'Nx3x3x2',
    'Nx3x1x1',
    'Nx450',
    'Nx3x15x7',
    'Nx7',
    'Nx5x90',
    '3xNx150',
    '?x3x15x10',
  ]);
  assert.throws(() => b.size(x, 0), /axis 0 of "x" is N/);
});

test('same padding puts the odd row at the end', () => {
  const b = new GraphBuilder('same');
  const x = b.input('x', 'float32', ['N', 1, 4, 4]);
  const graph = b.build([b.conv2d(x, { name: 'a', outChannels: 1, kernel: 3, stride: 2, padding: 'same' })]);
  assert.deepEqual(graph.nodes[0]?.attributes['pads'], { type: 'ints', value: [0, 0, 1, 1] });
});

test('parameters are the trained initializers that the outputs need; buffers are separate', () => {
  const b = new GraphBuilder('parts');
  const x = b.input('x', 'float32', ['N', 4, 2, 2]);
  const y = b.relu6(b.batchNorm(x, { name: 'bn' }));
  b.linear(b.flatten(x), { name: 'unused', outFeatures: 3 });
  const graph = b.build([y]);
  assert.deepEqual(graph.parameters, ['bn.weight', 'bn.bias']);
  assert.deepEqual(graph.buffers, ['bn.running_mean', 'bn.running_var']);
  assert.deepEqual(
    [...graph.initializers.keys()],
    ['bn.weight', 'bn.bias', 'bn.running_mean', 'bn.running_var', 'constant_1', 'constant_2'],
  );
  assert.deepEqual(graph.outputs, [{ name: y, type: 'float32', shape: ['N', 4, 2, 2] }]);
  assert.equal(graph.nodes[0]?.outputs.length, 3, 'training mode, with running statistics');
});

test('layers compute what their names say', () => {
  const b = new GraphBuilder('values');
  const x = b.input('x', 'float32', ['N', 4]);
  const ids = b.input('ids', 'int64', ['N']);
  const values = [
    b.silu(x),
    b.hardSigmoid(x),
    b.layerNorm(x, { name: 'norm' }),
    b.embedding(ids, { name: 'table', count: 3, width: 2, initialization: ones }),
    b.softmax(b.mul(x, b.scalarLike(x, 0))),
  ];
  const { graph } = instantiate(b.build(values), 1);
  const results = evaluateGraph(
    graph,
    new Map([
      ['x', tensor('float32', [1, 4], [-3, -1, 1, 3])],
      ['ids', tensor('int64', [1], [2])],
    ]),
  );
  const rounded = values.map((name) =>
    toNumbers(results.get(name) as Tensor).map((value) => Math.round(value * 1000) / 1000),
  );
  assert.deepEqual(rounded, [
    [-0.142, -0.269, 0.731, 2.858],
    [0, 0.333, 0.667, 1],
    [-1.342, -0.447, 0.447, 1.342],
    [1, 1],
    [0.25, 0.25, 0.25, 0.25],
  ]);
});

test('initial weights depend only on seed and name', () => {
  const weight = (seed: number, name: string): Float32Array => {
    const b = new GraphBuilder('seeds', { seed });
    b.parameter('another', [5], zeros);
    return b.build([b.node('Relu', [b.parameter(name, [1000], truncatedNormal(0.5))])]).initializers.get(name)
      ?.data as Float32Array;
  };
  assert.deepEqual(weight(1, 'a'), weight(1, 'a'));
  assert.notDeepEqual(weight(1, 'a'), weight(2, 'a'));
  assert.notDeepEqual(weight(1, 'a'), weight(1, 'b'));
  const values = Array.from(weight(1, 'a'));
  assert.ok(
    values.every((value) => Math.abs(value) <= 1),
    'two standard deviations',
  );
  const variance = values.reduce((sum, value) => sum + value * value, 0) / values.length;
  // Truncated at 2σ, the variance is 0.774 σ².
  assert.ok(Math.abs(variance - 0.774 * 0.25) < 0.02, `variance ${variance}`);
});

test('a model for planning draws no weights', () => {
  const b = new GraphBuilder('large', { initialize: false });
  const y = b.linear(b.input('x', 'float32', ['N', 100]), { name: 'a', outFeatures: 100 });
  const weight = b.build([y]).initializers.get('a.weight') as Tensor;
  assert.deepEqual(toNumbers(weight), Array(10_000).fill(0));
});

test('random weights are drawn once, when they are first read', () => {
  const b = new GraphBuilder('large');
  const y = b.linear(b.input('x', 'float32', ['N', 100]), { name: 'a', outFeatures: 100 });
  const weight = b.build([y]).initializers.get('a.weight') as Tensor;
  assert.equal(isUnread(weight), true);
  assert.equal(byteLength(weight), 40_000);
  assert.equal(weight.data.length, 10_000);
  assert.equal(isUnread(weight), false);
  assert.equal(weight.data, weight.data);
});

test('a name can be used only once', () => {
  const b = new GraphBuilder('names');
  b.input('x', 'float32', ['N']);
  assert.throws(() => b.input('x', 'float32', ['N']), /value name "x" is taken/);
  assert.throws(() => b.parameter('x', [1], zeros), /value name "x" is taken/);
});
