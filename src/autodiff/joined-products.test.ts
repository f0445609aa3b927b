import assert from 'node:assert/strict';
import { test } from 'node:test';
import { GraphBuilder } from '../graph/builder.ts';
import { int } from '../graph/graph.ts';
import { normal } from '../graph/initialization.ts';
import { instantiate, type StaticGraph } from '../graph/static.ts';
import { createRandom } from '../random.ts';
import { checkGraph, inDoublePrecision, randomTensor } from '../testing/gradient-check.ts';
import { differentiate } from './differentiate.ts';

/** h ← tanh(h·Wᵀ), repeated. */
function steps(count: number): StaticGraph {
  const builder = new GraphBuilder('steps');
  const w = builder.parameter('w', [3, 3], normal(0.5));
  let h = builder.input('x', 'float32', ['N', 3]);
  for (let step = 0; step < count; step++) h = builder.node('Tanh', [builder.node('Gemm', [h, w], { transB: int(1) })]);
  return instantiate(inDoublePrecision(builder.build([h])), 2);
}

test('the gradient of a weight that every step reads is one product of the stacked steps', () => {
  const { backward } = differentiate(steps(5), { inputs: [] });
  const operators = backward.nodes.map(({ operator }) => operator);
  assert.equal(operators.filter((operator) => operator === 'Sum').length, 0);
  const last = backward.nodes.at(-1);
  assert.deepEqual([last?.operator, last?.inputs.length], ['Gemm', 2]);
  // one product back through each of the steps but the first, and one for the weight
  assert.equal(operators.filter((operator) => operator === 'Gemm').length, 5);
  assert.equal(
    differentiate(steps(3), { inputs: [] }).backward.nodes.filter(({ operator }) => operator === 'Sum').length,
    1,
  );
});

test('it agrees with central differences', () => {
  const random = createRandom(5);
  const stage = steps(5);
  const feeds = new Map([['x', randomTensor(random, { type: 'float64', shape: [2, 3] })]]);
  checkGraph({ stage, feeds, inputs: ['x'] }, random);
});
