import assert from 'node:assert/strict';
import { test } from 'node:test';

import { InputError } from '../errors.ts';
import { GraphBuilder } from './builder.ts';
import { evaluateGraph } from './evaluate.ts';
import { type Graph, int, ints, type Node, type ValueInfo } from './graph.ts';
import { bindDimensions, instantiate } from './static.ts';
import { int64s, scalar, type Tensor, tensor, toNumbers } from './tensor.ts';

function graphOf(
  inputs: readonly ValueInfo[],
  nodes: readonly Partial<Node>[],
  outputs: readonly string[],
  initializers: Record<string, Tensor> = {},
): Graph {
  return {
    name: 'test',
    inputs,
    outputs: outputs.map((name) => ({ name, type: 'float32', shape: [] })),
    initializers: new Map(Object.entries(initializers)),
    parameters: [],
    buffers: [],
    nodes: nodes.map((node, index) => ({
      operator: 'Relu',
      domain: '',
      name: `node${index}`,
      inputs: [],
      outputs: [],
      attributes: {},
      ...node,
    })),
  };
}

const x: ValueInfo = { name: 'x', type: 'float32', shape: ['N', 3, 4] };

test('shapes written as Shape, Gather, Concat, Reshape fold into one Reshape to numbers', () => {
  const graph = graphOf(
    [x],
    [
      { operator: 'Shape', inputs: ['x'], outputs: ['shape'] },
      { operator: 'Gather', inputs: ['shape', 'zero'], outputs: ['batch'] },
      { operator: 'Unsqueeze', inputs: ['batch', 'axes'], outputs: ['batch1'] },
      { operator: 'Concat', inputs: ['batch1', 'rest'], outputs: ['target'], attributes: { axis: int(0) } },
      { operator: 'Reshape', inputs: ['x', 'target'], outputs: ['y'] },
    ],
    ['y'],
    { zero: scalar('int64', 0), axes: int64s([0]), rest: int64s([12]) },
  );
  const { graph: result, types } = instantiate(graph, 5);
  assert.deepEqual(result.nodes, [graph.nodes[4]]);
  assert.deepEqual(
    [...result.initializers].map(([name, value]) => [name, toNumbers(value)]),
    [['target', [5, 12]]],
  );
  assert.deepEqual(result.inputs, [{ name: 'x', type: 'float32', shape: [5, 3, 4] }]);
  assert.deepEqual(result.outputs, [{ name: 'y', type: 'float32', shape: [5, 12] }]);
  assert.deepEqual([...types.keys()], ['x', 'target', 'y']);
});

test('Shape and Size without an input, or with more outputs, are refused by name', () => {
  const wrong = (operator: string, inputs: readonly string[], outputs: readonly string[]): Graph =>
    graphOf([x], [{ operator, inputs, outputs }], ['y']);
  assert.throws(() => instantiate(wrong('Shape', [], ['y']), 2), /^InputError: Node "node0" \(Shape\) /);
  assert.throws(() => instantiate(wrong('Size', [''], ['y']), 2), /^InputError: Node "node0" \(Size\) /);
  assert.throws(() => instantiate(wrong('Shape', ['x'], ['', 'y']), 2), /^InputError: Node "node0" \(Shape\) /);
});

test('Shape honours start and end, Size counts', () => {
  const graph = graphOf(
    [x],
    [
      { operator: 'Shape', inputs: ['x'], outputs: ['shape'], attributes: { start: int(-2), end: int(99) } },
      { operator: 'Size', inputs: ['x'], outputs: ['size'] },
    ],
    ['shape', 'size'],
  );
  const { initializers, nodes } = instantiate(graph, 2).graph;
  assert.deepEqual(nodes, []);
  assert.deepEqual(
    [...initializers.values()].map((value) => [value.shape, toNumbers(value)]),
    [
      [[2], [3, 4]],
      [[], [24]],
    ],
  );
});

test('nodes that do nothing are removed, but never an output', () => {
  const identities: Partial<Node>[] = [
    { operator: 'Identity', inputs: ['x'], outputs: ['a'] },
    { operator: 'Cast', inputs: ['a'], outputs: ['b'], attributes: { to: int(1) } },
    { operator: 'Dropout', inputs: ['b', 'ratio', 'training'], outputs: ['c'] },
    { operator: 'Dropout', inputs: ['c', 'half'], outputs: ['d', 'mask'] },
    { operator: 'Reshape', inputs: ['d', 'same'], outputs: ['e'] },
    { operator: 'Transpose', inputs: ['e'], outputs: ['f'], attributes: { perm: ints([0, 1, 2]) } },
    { operator: 'Concat', inputs: ['f'], outputs: ['g'], attributes: { axis: int(0) } },
    { operator: 'Slice', inputs: ['g', 'zero', 'large', 'one'], outputs: ['h'] },
    { operator: 'Expand', inputs: ['h', 'ones'], outputs: ['i'] },
    { operator: 'Relu', inputs: ['i'], outputs: ['y'] },
    { operator: 'Identity', inputs: ['y'], outputs: ['z'] },
  ];
  const graph = graphOf([x], identities, ['z'], {
    ratio: scalar('float32', 0),
    training: scalar('bool', 1),
    half: scalar('float32', 0.5),
    same: int64s([0, 3, -1]),
    zero: int64s([0]),
    large: int64s([99]),
    one: int64s([1]),
    ones: int64s([1, 1, 1]),
  });
  const result = instantiate(graph, 2).graph;
  assert.deepEqual(
    result.nodes.map(({ operator, inputs }) => [operator, inputs]),
    [
      ['Relu', ['x']],
      ['Identity', ['y']],
    ],
  );
  assert.equal(result.initializers.size, 0);
  assert.deepEqual(
    instantiate(graph, 2, { keep: ['e'] }).graph.nodes.map(({ operator, inputs }) => [operator, inputs[0]]),
    [
      ['Reshape', 'x'],
      ['Relu', 'e'],
      ['Identity', 'y'],
    ],
  );
  assert.equal(instantiate(graph, 2, { simplify: false }).graph.nodes.length, 11);
});

test('nodes that change values or make a mask that is read are kept', () => {
  const graph = graphOf(
    [x],
    [
      { operator: 'Dropout', inputs: ['x', 'half', 'training'], outputs: ['a'] },
      { operator: 'Slice', inputs: ['a', 'last', 'first', 'one', 'back'], outputs: ['b'] },
      { operator: 'Transpose', inputs: ['b'], outputs: ['c'], attributes: { perm: ints([0, 2, 1]) } },
      { operator: 'Dropout', inputs: ['c', 'half'], outputs: ['d', 'mask'] },
      { operator: 'Where', inputs: ['mask', 'd', 'd'], outputs: ['y'] },
    ],
    ['y'],
    {
      half: scalar('float32', 0.5),
      training: scalar('bool', 1),
      last: int64s([2]),
      first: int64s([-99]),
      one: int64s([1]),
      back: int64s([-1]),
    },
  );
  assert.deepEqual(instantiate(graph, 2).graph.nodes, graph.nodes);
});

test('a Reshape of a reshaped value reads the first one', () => {
  const graph = graphOf(
    [x],
    [
      { operator: 'Flatten', inputs: ['x'], outputs: ['a'] },
      { operator: 'Unsqueeze', inputs: ['a', 'axes'], outputs: ['b'] },
      { operator: 'Reshape', inputs: ['b', 'target'], outputs: ['y'] },
    ],
    ['y'],
    { axes: int64s([1]), target: int64s([0, 4, -1]) },
  );
  const result = instantiate(graph, 2).graph;
  assert.deepEqual(
    result.nodes.map(({ operator, inputs, name }) => [operator, inputs, name]),
    [['Reshape', ['x', 'node2.shape'], 'node2']],
  );
  assert.deepEqual(toNumbers(result.initializers.get('node2.shape') as Tensor), [2, 4, 3]);
  assert.deepEqual(
    instantiate(graph, 2, { keep: ['b'] }).graph.nodes.map(({ inputs }) => inputs[0]),
    ['x', 'a', 'b'],
    'not past a value that is kept',
  );
  const twice = { ...graph, outputs: [...graph.outputs, { name: 'b', type: 'float32' as const, shape: [] }] };
  assert.deepEqual(
    instantiate(twice, 2).graph.nodes.map(({ inputs }) => inputs[0]),
    ['x', 'a', 'b'],
    'nor past an output',
  );
});

test('the flattening softmax of old models becomes one softmax if it is over the last axis', () => {
  const nodes = (axis: number): Partial<Node>[] => [
    { operator: 'Flatten', inputs: ['x'], outputs: ['flat'], attributes: { axis: int(axis) } },
    { operator: 'Softmax', inputs: ['flat'], outputs: ['soft'], attributes: { axis: int(-1) } },
    { operator: 'Shape', inputs: ['x'], outputs: ['shape'] },
    { operator: 'Reshape', inputs: ['soft', 'shape'], outputs: ['y'] },
  ];
  const result = instantiate(graphOf([x], nodes(2), ['y']), 2).graph;
  assert.deepEqual(
    result.nodes.map(({ operator, inputs, outputs }) => [operator, inputs, outputs]),
    [['Softmax', ['x'], ['y']]],
  );
  assert.equal(instantiate(graphOf([x], nodes(1), ['y']), 2).graph.nodes.length, 3);
});

test('parameters and buffers are not folded, frozen weights are', () => {
  const nodes: Partial<Node>[] = [
    { operator: 'Transpose', inputs: ['w'], outputs: ['wt'], attributes: { perm: ints([1, 0]) } },
    { operator: 'MatMul', inputs: ['x', 'wt'], outputs: ['y'] },
  ];
  const graph = graphOf([x], nodes, ['y'], { w: tensor('float32', [2, 4], [1, 2, 3, 4, 5, 6, 7, 8]) });
  assert.deepEqual(
    instantiate({ ...graph, parameters: ['w'] }, 2).graph.nodes.map(({ operator }) => operator),
    ['Transpose', 'MatMul'],
  );
  assert.deepEqual(
    instantiate({ ...graph, buffers: ['w'] }, 2).graph.nodes.map(({ operator }) => operator),
    ['Transpose', 'MatMul'],
  );
  const frozen = instantiate(graph, 2).graph;
  assert.deepEqual(
    frozen.nodes.map(({ operator }) => operator),
    ['MatMul'],
  );
  assert.deepEqual(toNumbers(frozen.initializers.get('wt') as Tensor), [1, 5, 2, 6, 3, 7, 4, 8]);
});

test('small constants do not grow to gigabytes: large results stay nodes', () => {
  const graph = graphOf(
    [x],
    [
      { operator: 'ConstantOfShape', inputs: ['size'], outputs: ['zeros'] },
      { operator: 'ReduceSum', inputs: ['zeros', 'axis'], outputs: ['sum'], attributes: { keepdims: int(1) } },
      { operator: 'Add', inputs: ['x', 'sum'], outputs: ['y'] },
    ],
    ['y'],
    { size: int64s([1, 1, 2 ** 40]), axis: int64s([2]) },
  );
  assert.equal(instantiate(graph, 2).graph.nodes.length, 3);
  const larger = {
    ...graph,
    initializers: new Map([...graph.initializers, ['size', int64s([1, 1, 2 ** 50])]]),
  } as Graph;
  assert.throws(() => instantiate(larger, 2), InputError);
});

test('the total of large constants is limited; the limit grows with the model', () => {
  const count = 10;
  const grown = Array.from(
    { length: count },
    (_, index): Partial<Node> => ({ operator: 'Expand', inputs: ['one', 'size'], outputs: [`e${index}`] }),
  );
  const sums = Array.from(
    { length: count },
    (_, index): Partial<Node> => ({
      operator: 'ReduceSum',
      inputs: [`e${index}`],
      outputs: [`s${index}`],
      attributes: { keepdims: int(0) },
    }),
  );
  const added = Array.from(
    { length: count },
    (_, index): Partial<Node> => ({
      operator: 'Add',
      inputs: [index === 0 ? 'x' : `y${index - 1}`, `s${index}`],
      outputs: [`y${index}`],
    }),
  );
  const initializers = { one: scalar('float32', 1), size: int64s([2 ** 20]) };
  const { graph } = instantiate(graphOf([x], [...grown, ...sums, ...added], [`y${count - 1}`], initializers), 2);
  const kept = graph.nodes.filter(({ operator }) => operator === 'Expand').length;
  assert.ok(kept >= count - 4 && kept < count, `${kept} are left`);
  // As many elements as the model has itself, turned round.
  const own = Array.from({ length: count }, (_, index): [string, Tensor] => [
    `w${index}`,
    tensor('float32', [2 ** 9, 2 ** 10], new Float32Array(2 ** 19)),
  ]);
  const turned = own.map(
    ([name], index): Partial<Node> => ({ operator: 'Transpose', inputs: [name], outputs: [`t${index}`] }),
  );
  const joined: Partial<Node> = {
    operator: 'ReduceSum',
    inputs: ['joined'],
    outputs: ['s'],
    attributes: { keepdims: int(0) },
  };
  const concat: Partial<Node> = {
    operator: 'Concat',
    inputs: own.map((_, index) => `t${index}`),
    outputs: ['joined'],
    attributes: { axis: int(0) },
  };
  const last: Partial<Node> = { operator: 'Add', inputs: ['x', 's'], outputs: ['y'] };
  const whole = instantiate(graphOf([x], [...turned, concat, joined, last], ['y'], Object.fromEntries(own)), 2);
  assert.equal(whole.graph.nodes.filter(({ operator }) => operator === 'Transpose').length, 0);
});

test('a graph for a larger batch computes the right values', () => {
  const b = new GraphBuilder('pool');
  const y = b.reshape(b.maxPool2d(b.input('x', 'float32', ['N', 1, 2, 2]), { kernel: 2 }), ['N', 1]);
  const { graph } = instantiate(b.build([y]), 2);
  const result = evaluateGraph(graph, new Map([['x', tensor('float32', [2, 1, 2, 2], [1, 5, 2, 0, -3, -1, -2, -9])]]));
  assert.deepEqual(toNumbers(result.get(y) as Tensor), [5, -1]);
});

test('unsupported operators are named together, with a node and a link to the list', () => {
  const graph = graphOf(
    [x],
    [
      { operator: 'NonMaxSuppression', inputs: ['x'], outputs: ['a'], name: 'encoder' },
      { operator: 'Inverse', domain: 'com.microsoft', inputs: ['a'], outputs: ['b'] },
      { operator: 'Loop', inputs: ['x'], outputs: ['unread'] },
    ],
    ['b'],
  );
  assert.throws(
    () => instantiate(graph, 2),
    new InputError(
      'Operator NonMaxSuppression (node "encoder") is not supported, nor com.microsoft.Inverse; ' +
        'docs/operators.md lists the operators that are.',
    ),
  );
});

test('symbols other than the batch need a size', () => {
  const graph = graphOf([{ ...x, shape: ['N', 'time', 4] }], [{ inputs: ['x'], outputs: ['y'] }], ['y']);
  assert.throws(
    () => instantiate(graph, 2),
    new InputError(
      'Input "x" has the symbolic dimension "time", whose size must be given (only the batch may stay open): ' +
        'with --input-shape x=N,time,4, a number for each, or --data.',
    ),
  );
  assert.deepEqual(instantiate(graph, 2, { dimensions: { time: 7 } }).graph.outputs[0]?.shape, [2, 7, 4]);
  assert.deepEqual(bindDimensions(graph, { time: 7 }).inputs[0]?.shape, ['N', 7, 4]);
  assert.throws(() => instantiate(graph, 2, { dimensions: { time: 0 } }), InputError);
});

test('a model with a fixed batch runs with no other', () => {
  const graph = { ...graphOf([{ ...x, shape: [4, 3, 4] }], [{ inputs: ['x'], outputs: ['y'] }], ['y']), fixedBatch: 4 };
  assert.deepEqual(instantiate(graph, 4).graph.outputs[0]?.shape, [4, 3, 4]);
  assert.throws(() => instantiate(graph, 2), /was exported for a batch of exactly 4 and cannot run with 2/);
});
