import assert from 'node:assert/strict';
import { test } from 'node:test';

import fc from 'fast-check';

import { InputError } from '../errors.ts';
import { residualModel } from '../testing/sample-models.ts';
import { checkGraph, sortTopologically } from './check.ts';
import type { Graph, Node } from './graph.ts';
import { tensor } from './tensor.ts';

const node = (name: string, inputs: readonly string[], outputs: readonly string[] = [name]): Node => ({
  operator: 'Add',
  domain: '',
  name,
  inputs,
  outputs,
  attributes: {},
});
const graph = (changes: Partial<Graph>): Graph => ({
  name: 'g',
  inputs: [{ name: 'x', type: 'float32', shape: ['N'] }],
  outputs: [{ name: 'b', type: 'float32', shape: ['N'] }],
  initializers: new Map([['w', tensor('float32', [1], [1])]]),
  parameters: ['w'],
  buffers: [],
  nodes: [node('a', ['x', 'w']), node('b', ['a', ''])],
  ...changes,
});

test('a valid graph passes', () => {
  checkGraph(graph({}));
  checkGraph(residualModel());
  checkGraph(graph({ outputs: [{ name: 'x', type: 'float32', shape: ['N'] }] }));
});

test('each violated invariant is reported in one sentence', () => {
  const cases: readonly [Partial<Graph>, string][] = [
    [
      { nodes: [node('b', ['a']), node('a', ['x'])] },
      'Node "b" (Add) in model "g" reads "a", which nothing before it defines.',
    ],
    [
      { nodes: [node('b', ['x']), node('c', ['x'], ['x'])] },
      'Value "x" in model "g" is defined twice, the second time by node "c".',
    ],
    [{ nodes: [node('b', ['x']), node('b', ['x'], ['c'])] }, 'Two nodes in model "g" are called "b".'],
    [{ nodes: [node('b', ['x']), node('c', ['x'], [''])] }, 'Node "c" (Add) in model "g" has no outputs.'],
    [{ outputs: [] }, 'Model "g" has no outputs.'],
    [{ outputs: [{ name: 'z', type: 'float32', shape: [] }] }, 'Output "z" in model "g" is not computed by anything.'],
    [{ parameters: ['v'] }, 'Parameter or buffer "v" in model "g" is not an initializer.'],
    [
      { initializers: new Map([['w', { ...tensor('float32', [1], [1]), shape: [2] }]]) },
      'Initializer "w" in model "g" has 1 elements for shape [2].',
    ],
    [{ inputs: [{ name: '', type: 'float32', shape: [] }] }, 'input 0 in model "g" has an empty name.'],
  ];
  for (const [changes, message] of cases) assert.throws(() => checkGraph(graph(changes)), new InputError(message));
});

test('sorting keeps a valid order, fixes others, and leaves cycles for the check', () => {
  const sorted = [node('a', ['x']), node('b', ['x']), node('c', ['a', 'b'])];
  assert.deepEqual(sortTopologically(sorted, ['x']), sorted);
  const shuffled = [node('d', ['c']), node('c', ['a']), node('a', ['x']), node('b', ['x'])];
  assert.deepEqual(
    sortTopologically(shuffled, ['x']).map(({ name }) => name),
    ['a', 'c', 'd', 'b'],
  );
  const cyclic = [node('a', ['b']), node('b', ['a']), node('c', ['x'])];
  assert.deepEqual(
    sortTopologically(cyclic, ['x']).map(({ name }) => name),
    ['c', 'a', 'b'],
  );
});

test('any shuffled graph is sorted', () => {
  const shape = fc
    .array(fc.array(fc.nat({ max: 30 }), { maxLength: 3 }), { minLength: 1, maxLength: 30 })
    .chain((reads) =>
      fc.record({
        reads: fc.constant(reads),
        order: fc.shuffledSubarray(
          reads.map((_, index) => index),
          { minLength: reads.length },
        ),
      }),
    );
  fc.assert(
    fc.property(shape, ({ reads, order }) => {
      const nodes = reads.map((inputs, index) =>
        node(
          `n${index}`,
          inputs.map((input) => (index === 0 ? 'x' : `n${input % index}`)),
        ),
      );
      const sorted = sortTopologically(
        order.map((index) => nodes[index] as Node),
        ['x'],
      );
      checkGraph(
        graph({
          initializers: new Map(),
          parameters: [],
          nodes: sorted,
          outputs: [{ name: 'n0', type: 'float32', shape: [] }],
        }),
      );
      assert.equal(sorted.length, nodes.length);
    }),
    { seed: 5, numRuns: 300 },
  );
});
