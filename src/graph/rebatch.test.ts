import assert from 'node:assert/strict';
import { test } from 'node:test';

import { InputError } from '../errors.ts';
import { randomInputs } from '../testing/sample-models.ts';
import { evaluateGraph } from './evaluate.ts';
import { type Graph, int, ints, type Node, type ValueInfo } from './graph.ts';
import { layers } from './layers.ts';
import { rebatch } from './rebatch.ts';
import { instantiate } from './static.ts';
import { int64s, type Tensor, tensor, toNumbers, type ValueType } from './tensor.ts';

function graphOf(
  shape: readonly number[],
  nodes: readonly Partial<Node>[],
  initializers: Record<string, Tensor> = {},
  parameters: readonly string[] = [],
): Graph {
  return {
    name: 'fixed',
    inputs: [{ name: 'x', type: 'float32', shape }],
    outputs: [{ name: 'y', type: 'float32', shape: [] }],
    initializers: new Map(Object.entries(initializers)),
    parameters,
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

/**
 * Runs a freed graph with five samples and, sample by sample, the original graph (exported for one); asserts equal
 * results.
 */
function assertFreed(graph: Graph): Graph {
  const freed = rebatch(graph);
  assert.equal(freed.fixedBatch, undefined);
  const { graph: five } = instantiate(freed, 5);
  const inputs = randomInputs(five.inputs as (ValueInfo & ValueType)[], 1);
  const together = toNumbers([...evaluateGraph(five, inputs).values()][0] as Tensor);
  const { graph: one } = instantiate(freed, 1);
  const apart = Array.from({ length: 5 }, (_, sample) => {
    const parts = new Map(
      [...inputs].map(([name, { type, shape, data }]) => {
        const size = data.length / 5;
        return [
          name,
          tensor(type, [1, ...shape.slice(1)], Array.from(data.slice(sample * size, (sample + 1) * size), Number)),
        ];
      }),
    );
    return toNumbers([...evaluateGraph(one, parts).values()][0] as Tensor);
  });
  assert.deepEqual(together, apart.flat());
  return freed;
}

const targetOf = (graph: Graph, name: string): number[] => {
  const node = graph.nodes.find((candidate) => candidate.name === name);
  return toNumbers(graph.initializers.get(node?.inputs[1] ?? '') as Tensor);
};

test('attention as exporters write it: the batch alone, merged with the heads, and alone again', () => {
  for (const batch of [1, 2, 4, 12]) {
    const nodes: Partial<Node>[] = [
      { operator: 'Reshape', inputs: ['x', 'split'], outputs: ['a'] },
      { operator: 'Transpose', inputs: ['a'], outputs: ['b'], attributes: { perm: ints([0, 2, 1, 3]) } },
      { operator: 'Reshape', inputs: ['b', 'merge'], outputs: ['c'] },
      { operator: 'Transpose', inputs: ['c'], outputs: ['d'], attributes: { perm: ints([0, 2, 1]) } },
      { operator: 'MatMul', inputs: ['c', 'd'], outputs: ['e'] },
      { operator: 'Reshape', inputs: ['e', 'apart'], outputs: ['y'] },
    ];
    const initializers = {
      split: int64s([batch, 4, 2, 3]),
      merge: int64s([batch * 2, 4, 3]),
      apart: int64s([batch, 2, -1, 4]),
    };
    const freed = assertFreed(graphOf([batch, 4, 6], nodes, initializers));
    assert.deepEqual(freed.inputs[0]?.shape, ['N', 4, 6]);
    assert.deepEqual(freed.outputs[0]?.shape, ['N', 2, 4, 4]);
    assert.deepEqual(
      [targetOf(freed, 'node0'), targetOf(freed, 'node2'), targetOf(freed, 'node5')],
      [
        [-1, 4, 2, 3],
        [-1, 4, 3],
        [-1, 2, 4, 4],
      ],
    );
  }
});

test('the batch on the second axis, as in sequence-first attention', () => {
  for (const batch of [1, 3, 7]) {
    const nodes: Partial<Node>[] = [
      { operator: 'Transpose', inputs: ['x'], outputs: ['a'], attributes: { perm: ints([1, 0, 2]) } },
      { operator: 'Reshape', inputs: ['a', 'heads'], outputs: ['b'] }, // [time, batch · heads, width]
      { operator: 'Transpose', inputs: ['b'], outputs: ['c'], attributes: { perm: ints([1, 0, 2]) } },
      { operator: 'Softmax', inputs: ['c'], outputs: ['d'] },
      { operator: 'Transpose', inputs: ['d'], outputs: ['e'], attributes: { perm: ints([1, 0, 2]) } },
      { operator: 'Reshape', inputs: ['e', 'flat'], outputs: ['f'] }, // [time · batch, features]
      { operator: 'Reshape', inputs: ['f', 'back'], outputs: ['g'] },
      { operator: 'Transpose', inputs: ['g'], outputs: ['y'], attributes: { perm: ints([1, 0, 2]) } },
    ];
    const initializers = {
      heads: int64s([7, batch * 2, 3]),
      flat: int64s([7 * batch, 6]),
      back: int64s([7, batch, 6]),
    };
    const freed = assertFreed(graphOf([batch, 7, 6], nodes, initializers));
    assert.deepEqual(
      [targetOf(freed, 'node1'), targetOf(freed, 'node5'), targetOf(freed, 'node6')],
      [
        [7, -1, 3],
        [-1, 6],
        [7, -1, 6],
      ],
    );
  }
});

test('a class token repeated for the batch, by Expand to numbers or, for a batch of one, not at all', () => {
  for (const batch of [1, 4]) {
    const expand = { operator: 'Expand', inputs: ['token', 'sizes'], outputs: ['tokens'] };
    const nodes: Partial<Node>[] = [
      ...(batch === 1 ? [] : [expand]),
      {
        operator: 'Concat',
        inputs: [batch === 1 ? 'token' : 'tokens', 'x'],
        outputs: ['y'],
        attributes: { axis: int(1) },
      },
    ];
    const initializers = {
      token: tensor('float32', [1, 1, 2], [8, 9]),
      sizes: int64s([batch, -1, -1].map((size) => (size === -1 ? 1 : size))),
    };
    assertFreed(graphOf([batch, 3, 2], nodes, initializers, ['token']));
  }
});

test('an Expand of a value that already has the batch keeps its size', () => {
  const nodes: Partial<Node>[] = [
    { operator: 'Unsqueeze', inputs: ['x', 'axes'], outputs: ['a'] },
    { operator: 'Expand', inputs: ['a', 'sizes'], outputs: ['y'] },
  ];
  assert.deepEqual(
    targetOf(assertFreed(graphOf([3, 2], nodes, { axes: int64s([1]), sizes: int64s([3, 4, 2]) })), 'node1'),
    [1, 4, 2],
  );
});

test('constants that repeat one sample become one sample', () => {
  const nodes: Partial<Node>[] = [
    { operator: 'Add', inputs: ['x', 'positions'], outputs: ['a'] },
    { operator: 'Concat', inputs: ['a', 'zeros'], outputs: ['y'], attributes: { axis: int(1) } },
  ];
  const initializers = {
    positions: tensor('float32', [3, 2], [1, 2, 1, 2, 1, 2]),
    zeros: tensor('float32', [3, 1], [0, 0, 0]),
  };
  assertFreed(graphOf([3, 2], nodes, initializers));
});

test('a model that cannot be freed keeps its batch size, and can still be cut', () => {
  const perSample = graphOf([3, 2], [{ operator: 'Add', inputs: ['x', 'each'], outputs: ['y'] }], {
    each: tensor('float32', [3, 2], [1, 2, 3, 4, 5, 6]),
  });
  assert.equal(rebatch(perSample).fixedBatch, 3);
  const pairs = graphOf(
    [3, 2],
    [
      { operator: 'Transpose', inputs: ['x'], outputs: ['a'], attributes: { perm: ints([1, 0]) } },
      { operator: 'MatMul', inputs: ['x', 'a'], outputs: ['y'] },
    ],
  );
  assert.equal(rebatch(pairs).fixedBatch, 3);
  const mean = graphOf([3, 2], [{ operator: 'ReduceMean', inputs: ['x'], outputs: ['y'] }]);
  assert.equal(rebatch(mean).fixedBatch, 3);

  const weight = tensor('float32', [2, 2], [1, 2, 3, 4]);
  const chain = graphOf(
    [3, 2],
    [
      { operator: 'MatMul', inputs: ['x', 'first'], outputs: ['a'] },
      { operator: 'Add', inputs: ['a', 'each'], outputs: ['b'] },
      { operator: 'MatMul', inputs: ['b', 'second'], outputs: ['y'] },
    ],
    { each: tensor('float32', [3, 2], [1, 2, 3, 4, 5, 6]), first: weight, second: weight },
    ['first', 'second'],
  );
  const sequence = layers(chain);
  assert.equal(sequence.fixedBatch, 3);
  assert.deepEqual(
    sequence.layers.map(({ name, outputs, flops }) => [name, outputs.map(({ shape }) => shape), flops]),
    [
      ['first', [['N', 2]], 10],
      ['second', [['N', 2]], 8],
    ],
  );
});

test("a model that is invalid at its own batch size is the user's error", () => {
  assert.throws(
    () =>
      rebatch(
        graphOf([3, 2], [{ operator: 'Reshape', inputs: ['x', 'shape'], outputs: ['y'] }], { shape: int64s([4, 4]) }),
      ),
    InputError,
  );
});
