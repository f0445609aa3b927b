import assert from 'node:assert/strict';
import { test } from 'node:test';

import { onnxModel } from '../../testing/onnx-models.ts';
import { evaluateGraph } from '../evaluate.ts';
import { type Attributes, float, int, ints, type Node, type ValueInfo } from '../graph.ts';
import { instantiate } from '../static.ts';
import { int64s, scalar, type Tensor, tensor, toNumbers } from '../tensor.ts';
import { importModel } from './import.ts';

const values = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
const x: ValueInfo = { name: 'x', type: 'float32', shape: ['N', 2, 3] };

/** The outputs of one operator at an opset, for x = 1 … 12 of shape [2, 2, 3]. */
function run(
  opset: number,
  node: Partial<Node> & { readonly operator: string },
  initializers: Record<string, Tensor> = {},
  outputs = ['y'],
): readonly Tensor[] {
  const nodes = [{ inputs: ['x', ...Object.keys(initializers)], outputs, ...node }];
  const model = importModel(
    onnxModel({ opset, inputs: [x], nodes, outputs: outputs.filter((name) => name !== ''), initializers }),
  );
  const { graph } = instantiate(model.graph, 2);
  return [...evaluateGraph(graph, new Map([['x', tensor('float32', [2, 2, 3], values)]])).values()];
}

function runOne(
  opset: number,
  operator: string,
  attributes: Attributes,
  initializers: Record<string, Tensor> = {},
): { shape: readonly number[]; numbers: number[] } {
  const [result] = run(opset, { operator, attributes }, initializers);
  assert.ok(result);
  return { shape: result.shape, numbers: toNumbers(result).map((value) => Math.round(value * 1e4) / 1e4) };
}

test('axes of reductions were an attribute until opset 17, of ReduceSum until 12', () => {
  const expected = { shape: [2, 2, 1], numbers: [2, 5, 8, 11] };
  for (const opset of [7, 9, 11, 13, 17])
    assert.deepEqual(runOne(opset, 'ReduceMean', { axes: ints([-1]) }), expected, `opset ${opset}`);
  for (const opset of [18, 21, 28])
    assert.deepEqual(runOne(opset, 'ReduceMean', {}, { axes: int64s([-1]) }), expected, `opset ${opset}`);
  for (const opset of [11, 12])
    assert.deepEqual(runOne(opset, 'ReduceSum', { axes: ints([1]), keepdims: int(0) }), {
      shape: [2, 3],
      numbers: [5, 7, 9, 17, 19, 21],
    });
  for (const opset of [13, 17])
    assert.deepEqual(runOne(opset, 'ReduceSum', { keepdims: int(0) }, { axes: int64s([1]) }), {
      shape: [2, 3],
      numbers: [5, 7, 9, 17, 19, 21],
    });
  for (const opset of [11, 18])
    assert.deepEqual(
      runOne(opset, 'ReduceMax', { keepdims: int(0) }),
      { shape: [], numbers: [12] },
      'no axes: all of them',
    );
});

test('axes of Squeeze and Unsqueeze were an attribute until opset 12', () => {
  for (const opset of [9, 11, 12])
    assert.deepEqual(runOne(opset, 'Unsqueeze', { axes: ints([0, 2]) }).shape, [1, 2, 1, 2, 3]);
  assert.deepEqual(runOne(13, 'Unsqueeze', {}, { axes: int64s([0, 2]) }).shape, [1, 2, 1, 2, 3]);
  const squeeze = (opset: number, attributes: Attributes, extra: readonly string[]): readonly number[] => {
    const nodes = [
      { operator: 'Reshape', inputs: ['x', 'shape'], outputs: ['a'] },
      { operator: 'Squeeze', inputs: ['a', ...extra], outputs: ['y'], attributes },
    ];
    const initializers = { shape: int64s([-1, 1, 6, 1]), ...(extra.length > 0 ? { axes: int64s([1]) } : {}) };
    const { graph } = importModel(onnxModel({ opset, inputs: [x], nodes, outputs: ['y'], initializers }));
    return instantiate(graph, 2).graph.outputs[0]?.shape as readonly number[];
  };
  assert.deepEqual(squeeze(11, { axes: ints([1]) }, []), [2, 6, 1]);
  assert.deepEqual(squeeze(13, {}, ['axes']), [2, 6, 1]);
  assert.deepEqual(squeeze(11, {}, []), [2, 6]);
});

test('Split took its sizes as an attribute, later as an input, or split evenly', () => {
  const split = (opset: number, attributes: Attributes, initializers: Record<string, Tensor> = {}): number[][] =>
    run(opset, { operator: 'Split', attributes }, initializers, ['a', 'b']).map(toNumbers);
  const uneven = [
    [1, 4, 7, 10],
    [2, 3, 5, 6, 8, 9, 11, 12],
  ];
  assert.deepEqual(split(11, { axis: int(2), split: ints([1, 2]) }), uneven);
  assert.deepEqual(split(13, { axis: int(2) }, { split: int64s([1, 2]) }), uneven);
  assert.deepEqual(split(18, { axis: int(2) }, { split: int64s([1, 2]) }), uneven);
  const even = [
    [1, 2, 3, 7, 8, 9],
    [4, 5, 6, 10, 11, 12],
  ];
  for (const opset of [11, 13, 17]) assert.deepEqual(split(opset, { axis: int(1) }), even);
  assert.deepEqual(split(18, { axis: int(1), num_outputs: int(2) }), even);
});

test('Softmax flattened its input at the axis until opset 12, and is over the axis since', () => {
  const overLast = [0.09, 0.2447, 0.6652];
  const rounded = (numbers: readonly number[]): number[] => numbers.map((value) => Math.round(value * 1e4) / 1e4);
  const softmax6 = rounded(
    values
      .slice(0, 6)
      .map((value) => Math.exp(value) / values.slice(0, 6).reduce((sum, other) => sum + Math.exp(other), 0)),
  );
  assert.deepEqual(runOne(11, 'Softmax', {}).numbers, [...softmax6, ...softmax6], 'axis 1: over all six');
  assert.deepEqual(runOne(11, 'Softmax', { axis: int(2) }).numbers, Array(4).fill(overLast).flat());
  assert.deepEqual(runOne(11, 'Softmax', { axis: int(-1) }).numbers, Array(4).fill(overLast).flat());
  assert.deepEqual(runOne(13, 'Softmax', {}).numbers, Array(4).fill(overLast).flat());
  assert.deepEqual(runOne(12, 'LogSoftmax', { axis: int(1) }).numbers.slice(0, 2), [-5.4562, -4.4562]);
  const { graph } = importModel(
    onnxModel({
      opset: 11,
      inputs: [x],
      nodes: [{ operator: 'Softmax', inputs: ['x'], outputs: ['y'], attributes: { axis: int(2) } }],
      outputs: ['y'],
    }),
  );
  assert.deepEqual(
    instantiate(graph, 2).graph.nodes.map(({ operator }) => operator),
    ['Softmax'],
  );
});

test('bounds, ratios, pads and slices were attributes', () => {
  for (const opset of [7, 9, 10])
    assert.deepEqual(runOne(opset, 'Clip', { min: float(3), max: float(5) }).numbers.slice(0, 6), [3, 3, 3, 4, 5, 5]);
  assert.deepEqual(runOne(10, 'Clip', { max: float(2) }).numbers.slice(0, 4), [1, 2, 2, 2]);
  assert.deepEqual(
    runOne(11, 'Clip', {}, { min: scalar('float32', 3), max: scalar('float32', 5) }).numbers.slice(0, 6),
    [3, 3, 3, 4, 5, 5],
  );
  for (const opset of [9, 11]) assert.deepEqual(runOne(opset, 'Dropout', { ratio: float(0.9) }).numbers, values);
  const { graph } = importModel(
    onnxModel({
      opset: 11,
      inputs: [x],
      nodes: [{ operator: 'Dropout', inputs: ['x'], outputs: ['y'], attributes: { ratio: float(0.25) } }],
      outputs: ['y'],
    }),
  );
  assert.deepEqual(
    graph.nodes.map(({ inputs }) => inputs),
    [['x', 'node0.ratio']],
  );
  assert.deepEqual(graph.initializers.get('node0.ratio'), scalar('float32', 0.25));
  const padded = runOne(10, 'Pad', { pads: ints([0, 0, 1, 0, 0, 0]), value: float(9) });
  assert.deepEqual(
    [padded.shape, padded.numbers.slice(0, 5)],
    [
      [2, 2, 4],
      [9, 1, 2, 3, 9],
    ],
  );
  assert.deepEqual(runOne(9, 'Slice', { starts: ints([1]), ends: ints([99]), axes: ints([2]) }), {
    shape: [2, 2, 2],
    numbers: [2, 3, 5, 6, 8, 9, 11, 12],
  });
  assert.deepEqual(runOne(9, 'Slice', { starts: ints([0, 1]), ends: ints([2, 2]) }).numbers, [4, 5, 6, 10, 11, 12]);
});

const perChannel = {
  scale: tensor('float32', [2], [2, 1]),
  bias: tensor('float32', [2], [0, 10]),
  mean: tensor('float32', [2], [5, 8]),
  variance: tensor('float32', [2], [4, 9]),
};

test('batch normalization: further outputs meant training before opset 14', () => {
  const inference = [-4, -3, -2, 8.6667, 9, 9.3333, 2, 3, 4, 10.6667, 11, 11.3333];
  const attributes = { epsilon: float(0), momentum: float(0.75) };
  for (const opset of [7, 9, 13])
    assert.deepEqual(runOne(opset, 'BatchNormalization', attributes, perChannel).numbers, inference, `opset ${opset}`);
  for (const opset of [14, 15, 21])
    assert.deepEqual(
      runOne(opset, 'BatchNormalization', { ...attributes, training_mode: int(0) }, perChannel).numbers,
      inference,
    );
  const training = (opset: number, more: Attributes, outputs: string[]): number[][] =>
    run(opset, { operator: 'BatchNormalization', attributes: { ...attributes, ...more } }, perChannel, outputs)
      .slice(1, 3)
      .map((value) => toNumbers(value).map((number) => Math.round(number * 1e4) / 1e4));
  // Channel 0 is 1 2 3 7 8 9: mean 5, variance 29/3; channel 1 is 4 5 6 10 11 12: mean 8, the same variance.
  const running = [[5, 8], [3 + 29 / 12, 6.75 + 29 / 12].map((number) => Math.round(number * 1e4) / 1e4)];
  assert.deepEqual(training(9, {}, ['y', 'newMean', 'newVariance', 'savedMean', 'savedVariance'].slice(0, 3)), running);
  assert.deepEqual(training(15, { training_mode: int(1) }, ['y', 'newMean', 'newVariance']), running);
  const five = importModel(
    onnxModel({
      opset: 9,
      inputs: [x],
      nodes: [
        {
          operator: 'BatchNormalization',
          inputs: ['x', ...Object.keys(perChannel)],
          outputs: ['y', 'a', 'b', 'c', 'd'],
          attributes,
        },
      ],
      outputs: ['y'],
      initializers: perChannel,
    }),
  ).graph;
  assert.deepEqual(
    five.nodes.map(({ outputs, attributes: { training_mode } }) => [outputs, training_mode]),
    [[['y', 'a', 'b'], int(1)]],
  );
});

test('group normalization had a scale for each group until opset 20, for each channel since', () => {
  const node = (opset: number, scale: Tensor, bias: Tensor): number[] => {
    const nodes = [
      { operator: 'Reshape', inputs: ['x', 'shape'], outputs: ['a'] },
      {
        operator: 'GroupNormalization',
        inputs: ['a', 'scale', 'bias'],
        outputs: ['y'],
        attributes: { num_groups: int(2), epsilon: float(0) },
      },
    ];
    const { graph } = importModel(
      onnxModel({
        opset,
        inputs: [x],
        nodes,
        outputs: ['y'],
        initializers: { shape: int64s([-1, 6, 1]), scale, bias },
      }),
    );
    assert.deepEqual(graph.parameters, ['scale', 'bias']);
    const { graph: fixed } = instantiate(graph, 2);
    const [result] = evaluateGraph(fixed, new Map([['x', tensor('float32', [2, 2, 3], values)]])).values();
    return toNumbers(result as Tensor)
      .map((value) => Math.round(value * 1e4) / 1e4)
      .slice(0, 6);
  };
  // Each group holds three neighbours: ±√1.5 and 0.
  const expected = [-1.22, 0, 1.22, 7.55, 10, 12.45];
  const rounded = (numbers: number[]): number[] => numbers.map((value) => Math.round(value * 100) / 100);
  assert.deepEqual(rounded(node(18, tensor('float32', [2], [1, 2]), tensor('float32', [2], [0, 10]))), expected);
  assert.deepEqual(
    rounded(node(21, tensor('float32', [6], [1, 1, 1, 2, 2, 2]), tensor('float32', [6], [0, 0, 0, 10, 10, 10]))),
    expected,
  );
});

test('operators newer than the canonical opset are expanded', () => {
  assert.deepEqual(runOne(24, 'Swish', {}).numbers.slice(0, 2), [0.7311, 1.7616]);
  assert.deepEqual(runOne(24, 'Swish', { alpha: float(2) }).numbers.slice(0, 1), [0.8808]);
  const scale = tensor('float32', [3], [1, 10, 1]);
  assert.deepEqual(
    runOne(23, 'RMSNormalization', { epsilon: float(0) }, { scale }).numbers.slice(0, 3),
    [0.4629, 9.2582, 1.3887],
  );
});

test('opsets outside the known range are refused', () => {
  const bytes = (opset: number): Uint8Array =>
    onnxModel({ opset, inputs: [x], nodes: [{ operator: 'Relu', inputs: ['x'], outputs: ['y'] }], outputs: ['y'] });
  for (const opset of [6, 29, 2 ** 40]) {
    assert.throws(() => importModel(bytes(opset)), {
      name: 'InputError',
      message:
        `The model uses version ${opset} of the ONNX operators, and Asteroid reads 7 to 28; export it with ` +
        'another opset_version.',
    });
  }
});
