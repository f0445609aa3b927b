import assert from 'node:assert/strict';
import { test } from 'node:test';
import { GraphBuilder } from '../graph/builder.ts';
import { float, type Graph } from '../graph/graph.ts';
import { instantiate } from '../graph/static.ts';
import { scalar, type Tensor, tensor } from '../graph/tensor.ts';
import { hashString } from '../random.ts';
import { evaluateGraph } from '../testing/evaluate-graph.ts';
import { runBackward } from '../testing/gradient-check.ts';
import { differentiate } from './differentiate.ts';
import { dropoutMask, replaceDropouts } from './dropout.ts';

const key = { seed: 7, round: 3, index: 11, ratio: 0.25 };

/** y = dropout(x · w) */
function model(ratio: number): Graph {
  const builder = new GraphBuilder('drop');
  const x = builder.input('x', 'float32', ['N', 3]);
  return builder.build([builder.dropout(builder.mul(x, builder.constant(tensor('float32', [3], [1, 2, 3]))), ratio)]);
}

test('a dropout becomes a product with a mask that is an input', () => {
  const { stage, dropouts } = replaceDropouts(instantiate(model(0.25), 2));
  assert.deepEqual(dropouts, [
    { name: 'dropout(Dropout_1)', type: 'float32', shape: [2, 3], ratio: 0.25, index: hashString('Dropout_1') },
  ]);
  assert.deepEqual(
    stage.graph.nodes.map(({ operator, inputs }) => [operator, inputs]),
    [
      ['Mul', ['x', 'constant_1']],
      ['Mul', ['Mul_1', 'dropout(Dropout_1)']],
    ],
  );
  assert.deepEqual(
    stage.graph.inputs.map(({ name }) => name),
    ['x', 'dropout(Dropout_1)'],
  );
});

test('a dropout that drops nothing is kept', () => {
  const stage = instantiate(model(0), 2, { simplify: false });
  assert.deepEqual(replaceDropouts(stage), { stage, dropouts: [] });
});

test('forward and backward use the mask, which is saved as an input', () => {
  const stage = instantiate(model(0.5), 2);
  const graphs = differentiate(stage, { inputs: ['x'] });
  const mask = graphs.dropouts[0]?.name as string;
  assert.deepEqual(
    graphs.savedInputs.map(({ name, bytes }) => [name, bytes]),
    [[mask, 24]],
  );
  const values = new Map<string, Tensor>([
    ['x', tensor('float32', [2, 3], [1, 1, 1, 2, 2, 2])],
    [mask, tensor('float32', [2, 3], [2, 0, 2, 0, 2, 0])],
  ]);
  const [y = ''] = stage.graph.outputs.map(({ name }) => name);
  assert.deepEqual(evaluateGraph(graphs.forward, values).get(y)?.data, Float32Array.of(2, 0, 6, 0, 8, 0));
  const gradients = runBackward(graphs, values, new Map([[y, tensor('float32', [2, 3], [1, 1, 1, 1, 1, 1])]]));
  assert.deepEqual(gradients.get('gradient(x)')?.data, Float32Array.of(2, 0, 6, 0, 4, 0));
});

test('a mask that the model reads is "not dropped"', () => {
  const builder = new GraphBuilder('mask');
  const x = builder.input('x', 'float32', ['N', 2]);
  const ratio = builder.constant(scalar('float32', 0.5));
  const [y = '', kept = ''] = builder.node('Dropout', [x, ratio, builder.constant(scalar('bool', 1))], {}, 2);
  const { stage, dropouts } = replaceDropouts(instantiate(builder.build([y, kept]), 1));
  const values = new Map<string, Tensor>([
    ['x', tensor('float32', [1, 2], [3, 4])],
    [dropouts[0]?.name as string, tensor('float32', [1, 2], [0, 2])],
  ]);
  const results = evaluateGraph(stage.graph, values);
  assert.deepEqual([results.get(y)?.data, results.get(kept)?.data], [Float32Array.of(0, 8), Uint8Array.of(0, 1)]);
});

test('a ratio that is computed at run time is refused', () => {
  const builder = new GraphBuilder('dynamic');
  const x = builder.input('x', 'float32', ['N', 2]);
  const ratio = builder.input('ratio', 'float32', []);
  const y = builder.node('Dropout', [x, ratio, builder.constant(scalar('bool', 1))]);
  assert.throws(() => replaceDropouts(instantiate(builder.build([y]), 1)), {
    name: 'InputError',
    message: /Dropout_1.*"ratio".*constants/,
  });
});

test('any split of a batch gives the same masks', () => {
  const whole = dropoutMask({ ...key, shape: [5, 2, 3], sampleIds: [40, 41, 42, 43, 44] });
  const parts = [
    dropoutMask({ ...key, shape: [2, 2, 3], sampleIds: [40, 41] }),
    dropoutMask({ ...key, shape: [3, 2, 3], sampleIds: Uint32Array.of(42, 43, 44) }),
  ];
  assert.deepEqual(whole, Float32Array.from(parts.flatMap((part) => [...part])));
});

test('the samples may be on any axis, with several entries for each', () => {
  const first = dropoutMask({ ...key, shape: [2, 6], sampleIds: [8, 9] });
  const second = dropoutMask({ ...key, shape: [2, 2, 3], batchAxis: 1, sampleIds: [8, 9] });
  // sample 8 has rows [0, 3) and [3, 6) of the first mask, in blocks 0 and 1 of the second
  assert.deepEqual(
    [...second],
    [...first.slice(0, 3), ...first.slice(6, 9), ...first.slice(3, 6), ...first.slice(9, 12)],
  );
  assert.deepEqual(dropoutMask({ ...key, shape: [4, 3], sampleIds: [8, 9] }), first);
  assert.throws(() => dropoutMask({ ...key, shape: [3, 3], sampleIds: [8, 9] }), /no whole number of entries/);
});

test('masks differ between seeds, rounds, dropouts and samples, and keep the stated fraction', () => {
  const count = 40_000;
  const mask = (change: Partial<typeof key>, id: number): Float32Array =>
    dropoutMask({ ...key, ...change, shape: [1, count], sampleIds: [id] });
  const base = mask({}, 0);
  assert.deepEqual(new Set(base), new Set([0, Math.fround(1 / 0.75)]));
  for (const other of [mask({ seed: 8 }, 0), mask({ round: 4 }, 0), mask({ index: 12 }, 0), mask({}, 1)]) {
    const kept = other.filter((value) => value !== 0).length / count;
    assert.ok(Math.abs(kept - 0.75) < 0.01, `${kept} kept`); // 0.01 is 4.6 standard deviations
    const both = other.filter((value, index) => value !== 0 && base[index] !== 0).length / count;
    assert.ok(Math.abs(both - 0.75 ** 2) < 0.0115, `${both} kept by both`);
  }
});

test('neighbouring elements are independent', () => {
  const mask = dropoutMask({ ...key, ratio: 0.5, shape: [1, 65_536], sampleIds: [5] });
  for (const distance of [1, 2, 3, 8, 64, 256]) {
    let both = 0;
    for (let index = distance; index < mask.length; index++)
      if (mask[index] !== 0 && mask[index - distance] !== 0) both++;
    const share = both / (mask.length - distance);
    assert.ok(Math.abs(share - 0.25) < 0.009, `${share} at distance ${distance}`);
  }
});

test('ratio 1 drops everything', () => {
  assert.deepEqual(dropoutMask({ ...key, ratio: 1, shape: [1, 4], sampleIds: [0] }), new Float32Array(4));
});

test('random nodes become inputs with their distribution and are not constant-folded', () => {
  const builder = new GraphBuilder('draws');
  const x = builder.input('x', 'float32', ['N', 3]);
  const ones = builder.constant(tensor('float32', [1, 1], [1]));
  const uniform = builder.node('RandomUniformLike', [ones], { low: float(-1), high: float(3) });
  const normal = builder.node('RandomNormalLike', [x], { mean: float(2), scale: float(0.5) });
  const hits = builder.node('Bernoulli', [builder.node('Sigmoid', [x])]);
  const y = builder.mul(builder.add(builder.mul(x, uniform), normal), hits);
  const { stage, dropouts } = replaceDropouts(instantiate(builder.build([y]), 2));
  assert.deepEqual(
    dropouts.map(({ shape, distribution }) => [shape, distribution]),
    [
      [[1, 1], { kind: 'uniform', low: -1, high: 3 }],
      [[2, 3], { kind: 'normal', mean: 2, deviation: 0.5 }],
      [[2, 3], { kind: 'uniform', low: 0, high: 1 }],
    ],
  );
  const [first = '', second = '', third = ''] = dropouts.map(({ name }) => name);
  const feeds = new Map<string, Tensor>([
    ['x', tensor('float32', [2, 3], [0, 0, 0, 1, 1, 1])],
    [first, tensor('float32', [1, 1], [2])],
    [second, tensor('float32', [2, 3], [1, 2, 3, 4, 5, 6])],
    // sigmoid(0) = 0.5, sigmoid(1) = 0.73
    [third, tensor('float32', [2, 3], [0.4, 0.5, 0.6, 0.7, 0.74, 0])],
  ]);
  const graphs = differentiate(instantiate(builder.build([y]), 2), { inputs: ['x'] });
  assert.deepEqual([...evaluateGraph(stage.graph, feeds).values()][0]?.data, Float32Array.of(1, 0, 0, 6, 0, 8));
  const gradients = runBackward(graphs, feeds, new Map([[y, tensor('float32', [2, 3], [1, 1, 1, 1, 1, 1])]]));
  assert.deepEqual(gradients.get('gradient(x)')?.data, Float32Array.of(2, 0, 0, 2, 0, 2));
});

test('random numbers have their distribution, however the batch is split', () => {
  const uniform = { ...key, ratio: 1, distribution: { kind: 'uniform', low: -1, high: 3 } } as const;
  const samples = Array.from({ length: 400 }, (_, index) => index);
  const drawn = dropoutMask({ ...uniform, shape: [400, 10], sampleIds: samples });
  assert.ok(drawn.every((value) => value >= -1 && value < 3));
  const mean = (values: ArrayLike<number>): number =>
    Array.from(values).reduce((sum, value) => sum + value, 0) / values.length;
  assert.ok(Math.abs(mean(drawn) - 1) < 0.05);
  assert.deepEqual(drawn.slice(30, 50), dropoutMask({ ...uniform, shape: [2, 10], sampleIds: [3, 4] }));
  const normal = dropoutMask({
    ...key,
    ratio: 1,
    distribution: { kind: 'normal', mean: 5, deviation: 2 },
    shape: [400, 10],
    sampleIds: samples,
  });
  assert.ok(Math.abs(mean(normal) - 5) < 0.1);
  assert.ok(Math.abs(mean(Array.from(normal, (value) => (value - 5) ** 2)) - 4) < 0.3);
});
