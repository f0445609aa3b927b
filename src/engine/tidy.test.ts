import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Emitter } from '../graph/emitter.ts';
import { type Graph, int, ints } from '../graph/graph.ts';
import { int64s, tensor, toNumbers } from '../graph/tensor.ts';
import { createRandom } from '../random.ts';
import { evaluateGraph } from '../testing/evaluate-graph.ts';
import { randomGraph, randomTensor } from '../testing/random-graph.ts';
import { tidy } from './tidy.ts';

const perm = { perm: ints([1, 0]) };
const operatorsOf = ({ nodes }: Graph): string => nodes.map(({ operator }) => operator).join(' ');

test('transposes of factors and of products become flags of the product, with any flags it had', () => {
  const random = createRandom(1);
  for (let flags = 0; flags < 32; flags++) {
    const [transA, transB, before, behind, after] = [1, 2, 4, 8, 16].map((bit) => (flags & bit) !== 0);
    const emitter = new Emitter();
    const [a, b] = [
      emitter.input('a', 'float32', transA ? [3, 2] : [2, 3]),
      emitter.input('b', 'float32', transB ? [4, 3] : [3, 4]),
    ];
    const flipped = (value: string, flip: boolean | undefined): string =>
      flip ? emitter.emit('Transpose', [value], perm) : value;
    const product = emitter.emit('Gemm', [flipped(a, before), flipped(b, behind)], {
      transA: int(transA !== before ? 1 : 0),
      transB: int(transB !== behind ? 1 : 0),
    });
    const graph = emitter.build('product', [flipped(product, after)]);
    const feeds = new Map([
      ['a', randomTensor(random, 'float32', transA ? [3, 2] : [2, 3])],
      ['b', randomTensor(random, 'float32', transB ? [4, 3] : [3, 4])],
    ]);
    const tidied = tidy(graph);
    assert.equal(operatorsOf(tidied), 'Gemm');
    const [expected, found] = [graph, tidied].map((each) => [...evaluateGraph(each, feeds).values()].map(toNumbers));
    assert.deepEqual(found, expected, `flags ${flags}`);
  }
});

test('a product that others read too, or that adds something, is not turned', () => {
  const emitter = new Emitter();
  const [a, c] = [emitter.input('a', 'float32', [2, 2]), emitter.input('c', 'float32', [2])];
  const shared = emitter.emit('Gemm', [a, a]);
  const outputs = [emitter.emit('Transpose', [shared], perm), emitter.emit('Neg', [shared])];
  assert.equal(operatorsOf(tidy(emitter.build('shared', outputs))), 'Gemm Transpose Neg');
  const biased = emitter.emit('Transpose', [emitter.emit('Gemm', [a, a, c])], perm);
  assert.equal(operatorsOf(tidy(emitter.build('biased', [biased]))), 'Gemm Transpose');
});

test('of several reshapes in a row the last stays, unless it asks for the dimensions before it', () => {
  const emitter = new Emitter();
  const x = emitter.input('x', 'float32', [2, 6]);
  const flat = emitter.emit('Unsqueeze', [emitter.emit('Reshape', [x, emitter.int64s([4, 3])]), emitter.int64s([0])]);
  assert.equal(
    operatorsOf(tidy(emitter.build('absolute', [emitter.emit('Reshape', [flat, emitter.int64s([3, -1])])]))),
    'Reshape',
  );
  const relative = emitter.build('relative', [emitter.emit('Reshape', [flat, emitter.int64s([0, 0, -1])])]);
  assert.equal(operatorsOf(tidy(relative)), 'Reshape Unsqueeze Reshape');
  assert.deepEqual(tidy(relative).outputs[0]?.shape, [1, 4, 3]);
  const value = tensor(
    'float32',
    [2, 6],
    Array.from({ length: 12 }, (_, index) => index),
  );
  assert.deepEqual(
    evaluateGraph(tidy(relative), new Map([['x', value]])),
    evaluateGraph(relative, new Map([['x', value]])),
  );
});

test('of equal reshapes of one value the first stays, also under the names of others that are outputs', () => {
  const emitter = new Emitter();
  const x = emitter.input('x', 'float32', [2, 6]);
  const flat = (): string => emitter.emit('Reshape', [x, emitter.initializer(emitter.fresh('shape'), int64s([12]))]);
  const left = [emitter.emit('Neg', [flat()]), emitter.emit('Exp', [flat()]), flat()];
  const graph = emitter.build('same', left);
  const tidied = tidy(graph);
  assert.equal(operatorsOf(tidied), 'Reshape Neg Exp Reshape');
  const feeds = new Map([['x', randomTensor(createRandom(2), 'float32', [2, 6])]]);
  assert.deepEqual(evaluateGraph(tidied, feeds), evaluateGraph(graph, feeds));
});

test('what works element by element between two reshapes reads what is before the first', () => {
  const between = (work: (e: Emitter, x: string) => string): Graph => {
    const e = new Emitter();
    const flat = e.emit('Reshape', [e.input('x', 'float32', [2, 6]), e.int64s([12])]);
    return e.build('between', [e.emit('Reshape', [work(e, flat), e.int64s([3, 4])])]);
  };
  const tidied = (graph: Graph): string => {
    const feeds = new Map([['x', randomTensor(createRandom(2), 'float32', [2, 6])]]);
    assert.deepEqual(evaluateGraph(tidy(graph), feeds), evaluateGraph(graph, feeds));
    return operatorsOf(tidy(graph));
  };
  assert.equal(tidied(between((e, x) => e.emit('Neg', [x]))), 'Neg Reshape');
  assert.equal(tidied(between((e, x) => e.emit('Sub', [e.scalarLike(x, 1), x]))), 'Sub Reshape');
  assert.equal(tidied(between((e, x) => e.emit('Neg', [e.emit('Exp', [x])]))), 'Reshape Exp Neg Reshape');
  // of two values, or along an axis, shapes count
  assert.equal(tidied(between((e, x) => e.emit('Mul', [x, x]))), 'Reshape Mul Reshape');
  assert.equal(tidied(between((e, x) => e.emit('Softmax', [x], { axis: int(-1) }))), 'Reshape Softmax Reshape');
});

test('random graphs compute the same', () => {
  for (let seed = 0; seed < 80; seed++) {
    const { graph, inputs } = randomGraph(seed, 20);
    assert.deepEqual(evaluateGraph(tidy(graph), inputs), evaluateGraph(graph, inputs), `random graph ${seed}`);
  }
});
