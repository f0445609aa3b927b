import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Emitter } from '../graph/emitter.ts';
import { type Graph, int } from '../graph/graph.ts';
import { inferTypes } from '../graph/infer-types.ts';
import { scalar, tensor } from '../graph/tensor.ts';
import { createRandom } from '../random.ts';
import { evaluateGraph } from '../testing/evaluate-graph.ts';
import { randomGraph, randomTensor } from '../testing/random-graph.ts';
import { wholeVectors } from './whole-vectors.ts';

const widened = (graph: Graph): Graph => wholeVectors(graph, () => inferTypes(graph));
const operatorsOf = ({ nodes }: Graph): string => nodes.map(({ operator }) => operator).join(' ');

const counts = [3, 1, 4, 2, 5];
const total = counts.reduce((sum, count) => sum + count, 0);

/** Vectors of these sizes out of one, something done with each and a vector of its own, and all in one again. */
function packed(
  work: (e: Emitter, part: string, own: string, index: number) => string,
  also: (results: string[]) => string[] = () => [],
): Graph {
  const e = new Emitter();
  const parts = e.emitAll('Split', [e.input('packed', 'float32', [total]), e.int64s(counts)], counts.length, {
    axis: int(0),
  });
  const results = parts.map((part, index) =>
    work(e, part, e.input(`own ${index}`, 'float32', [counts[index] as number]), index),
  );
  return e.build('packed', [e.emit('Concat', results, { axis: int(0) }), ...also(results)]);
}

function assertSame(graph: Graph, expected: string): void {
  const random = createRandom(3);
  const feeds = new Map(
    graph.inputs.map(({ name, type, shape }) => [name, randomTensor(random, type, shape as readonly number[])]),
  );
  const found = widened(graph);
  assert.equal(operatorsOf(found), expected);
  assert.deepEqual(evaluateGraph(found, feeds), evaluateGraph(graph, feeds));
  assert.deepEqual(found.outputs, graph.outputs);
}

test('moving averages of the parts of a vector are one of the vector', () => {
  const moving = packed((e, part, own) =>
    e.emit('Add', [e.emit('Mul', [part, e.scalarLike(part, 0.9)]), e.emit('Mul', [e.scalarLike(part, 0.1), own])]),
  );
  assertSame(moving, 'Mul Concat Mul Add');
});

test('a part that somebody else reads, another number, another operator or no vector: all stay as they are', () => {
  const scaled = (e: Emitter, part: string): string => e.emit('Mul', [part, e.scalarLike(part, 0.9)]);
  const untouched = (graph: Graph): void => assertSame(graph, operatorsOf(graph));
  untouched(
    packed(
      (e, part) => scaled(e, part),
      (results) => results.slice(0, 1),
    ),
  );
  untouched(packed((e, part, _, index) => e.emit('Mul', [part, e.scalarLike(part, index)])));
  untouched(packed((e, part, own, index) => e.emit(index === 2 ? 'Sub' : 'Add', [part, own])));
  untouched(packed((e, part, own, index) => e.emit('Mul', [part, index === 1 ? e.scalarLike(part, 2) : own])));
  const matrices = new Emitter();
  const rows = counts.map((count, index) =>
    matrices.emit('Neg', [matrices.input(`rows ${index}`, 'float32', [count, 2])]),
  );
  untouched(matrices.build('matrices', [matrices.emit('Concat', rows, { axis: int(0) })]));
});

test('a vector for one of the parts is no number for all', () => {
  const e = new Emitter();
  const one = e.initializer('one', tensor('float32', [1], [2]));
  const parts = e.emitAll('Split', [e.input('packed', 'float32', [4]), e.int64s([1, 1, 1, 1])], 4, { axis: int(0) });
  const results = parts.map((part, index) =>
    e.emit('Add', [part, index === 0 ? one : e.input(`own ${index}`, 'float32', [1])]),
  );
  const graph = e.build('ones', [e.emit('Concat', results, { axis: int(0) })]);
  assertSame(graph, operatorsOf(graph));
});

test('the same number under two names, and 0 apart from -0', () => {
  const scaledBy = (numbers: readonly number[]): Graph =>
    packed((e, part, _, index) => {
      const name = `number ${index}`;
      return e.emit('Mul', [part, e.initializer(name, scalar('float32', numbers[index % numbers.length] as number))]);
    });
  assertSame(scaledBy([0.5]), 'Mul');
  const zeros = scaledBy([0, -0]);
  assertSame(zeros, operatorsOf(zeros));
});

test('parts that are negated are parts of what is negated at once; those that are not stay what they were', () => {
  const graph = packed((e, part, own, index) =>
    e.emit(index % 2 === 0 ? 'Add' : 'Sub', [index === 3 ? part : e.emit('Neg', [part]), own]),
  );
  assertSame(graph, 'Split Neg Split Add Sub Add Sub Add Concat');
});

test('random graphs compute the same', () => {
  for (let seed = 0; seed < 80; seed++) {
    const { graph, inputs } = randomGraph(seed, 20);
    assert.deepEqual(evaluateGraph(widened(graph), inputs), evaluateGraph(graph, inputs), `random graph ${seed}`);
  }
});
