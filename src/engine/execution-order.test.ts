import assert from 'node:assert/strict';
import { test } from 'node:test';
import { differentiate } from '../autodiff/differentiate.ts';
import type { Node } from '../graph/graph.ts';
import { instantiate } from '../graph/static.ts';
import { randomGraph } from '../testing/random-graph.ts';
import { residualNet } from '../testing/small-nets.ts';
import { arrangeForMemory, executionOrder } from './execution-order.ts';

const node = (output: string, ...inputs: readonly string[]): Node => ({
  operator: 'Sum',
  domain: '',
  name: output,
  inputs,
  outputs: [output],
  attributes: {},
});
const namesInOrder = (nodes: readonly Node[]): string =>
  executionOrder({ nodes })
    .map((index) => nodes[index]?.name)
    .join(' ');

test('the last unread node runs first, with all that it needs', () => {
  //  x ─▶ a ─▶ b ─▶ c      d reads a, e reads b: nobody reads c, d, e
  const nodes = [node('a', 'x'), node('d', 'a'), node('b', 'a'), node('e', 'b'), node('c', 'b')];
  assert.equal(namesInOrder(nodes), 'a b c e d');
  // of two inputs the one that stands later in the file goes first
  assert.equal(namesInOrder([node('p', 'x'), node('q', 'x'), node('r', 'p', 'q')]), 'q p r');
  assert.equal(namesInOrder([]), '');
});

test('arranged, what nobody reads runs in the order of the original', () => {
  const nodes = [node('a', 'x'), node('d', 'a'), node('b', 'a'), node('e', 'b'), node('c', 'b')];
  const graph = { ...instantiate(residualNet(), 1).graph, nodes };
  assert.equal(namesInOrder(arrangeForMemory(graph).nodes), 'a d b e c');
  const { backward } = differentiate(instantiate(residualNet(), 1), { inputs: [] });
  const gradients = (nodes: readonly Node[]): readonly string[] =>
    executionOrder({ nodes }).flatMap(
      (index) => nodes[index]?.outputs.filter((name) => name.endsWith('.weight)')) ?? [],
    );
  const arranged = gradients(arrangeForMemory(backward).nodes);
  assert.equal(arranged[0], 'gradient(head.weight)');
  assert.equal(arranged.at(-1), 'gradient(stem.weight)');
});

test('the order of random graphs has every node once, behind what it reads, arranged or not', () => {
  for (let seed = 0; seed < 50; seed++) {
    const { graph } = randomGraph(seed, 20);
    for (const { nodes } of [graph, arrangeForMemory(graph)]) {
      const order = executionOrder({ nodes });
      assert.deepEqual(
        [...order].sort((a, b) => a - b),
        nodes.map((_, index) => index),
      );
      const made = new Set(graph.nodes.flatMap(({ outputs }) => outputs));
      for (const index of order) {
        for (const output of nodes[index]?.outputs ?? []) made.delete(output);
        assert.ok(
          nodes[index]?.inputs.every((input) => !made.has(input)),
          `random graph ${seed}`,
        );
      }
    }
  }
});
