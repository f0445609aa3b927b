import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Emitter } from '../graph/emitter.ts';
import { evaluateGraph } from '../graph/evaluate.ts';
import type { ValueInfo } from '../graph/graph.ts';
import { inferTypes } from '../graph/infer-types.ts';
import { tensor } from '../graph/tensor.ts';
import { randomGraph } from '../testing/random-graph.ts';
import { hideReshapes, shownValues } from './hidden-shapes.ts';

const relu = (node: { readonly operator: string }): number | undefined => (node.operator === 'Relu' ? 0 : undefined);

test('shapes are shown for inputs that a kernel may overwrite and its outputs, from 64 KiB on, inside', () => {
  const shownOf = (shape: readonly number[]): readonly ValueInfo[] => {
    const e = new Emitter();
    const x = e.input('x', 'float32', shape);
    const first = e.emit('Relu', [x]);
    const second = e.emit('Relu', [e.emit('Neg', [first])]);
    const graph = e.build('relus', [e.emit('Relu', [e.emit('Exp', [second])])]);
    return shownValues(graph, relu, inferTypes(graph));
  };
  assert.deepEqual(shownOf([128, 128]), [
    { name: 'Neg_1', type: 'float32', shape: [128, 128] },
    { name: 'Relu_2', type: 'float32', shape: [128, 128] },
  ]);
  assert.deepEqual(shownOf([128, 127]), []);
});

test('large values are shown, but for views of others', () => {
  const e = new Emitter();
  const large = e.emit('Neg', [e.input('x', 'float32', [1024, 1024])]);
  const small = e.emit('Slice', [large, e.int64s([0]), e.int64s([1023]), e.int64s([0])]);
  const view = e.emit('Reshape', [large, e.int64s([-1])]);
  const graph = e.build('sizes', [e.emit('Exp', [view]), e.emit('Exp', [e.emit('Neg', [small])])]);
  assert.deepEqual(shownValues(graph, relu, inferTypes(graph)), [
    { name: large, type: 'float32', shape: [1024, 1024] },
  ]);
});

test('targets of reshapes come from one vector, each shape once; a constant that others read stays', () => {
  const e = new Emitter();
  const x = e.input('x', 'float32', [2, 3]);
  const flat = e.emit('Reshape', [x, e.int64s([6])]);
  const back = e.emit('Reshape', [e.emit('Neg', [flat]), e.int64s([3, -1])]);
  const again = e.emit('Reshape', [e.emit('Exp', [back]), e.int64s([6])]);
  const read = e.int64s([1, 6]);
  const row = e.emit('Reshape', [again, read]);
  const graph = e.build('reshapes', [row, e.emit('Neg', [read])]);
  const hidden = hideReshapes(graph);
  const given = [...hidden.initializers].map(([name, value]) => [name, [...value.data].map(Number)]);
  assert.deepEqual(given, [
    [read, [1, 6]],
    ['hidden shapes/all', [6, 3, -1, 1, 6]],
    ['hidden shapes/counts', [1, 2, 2]],
  ]);
  assert.ok(
    hidden.nodes.every(
      ({ operator, inputs }) => operator !== 'Reshape' || !hidden.initializers.has(inputs[1] as string),
    ),
  );
  const inputs = new Map([['x', tensor('float32', [2, 3], [1, 2, 3, 4, 5, 6])]]);
  assert.deepEqual(evaluateGraph(hidden, inputs), evaluateGraph(graph, inputs));
});

test('random graphs with hidden shapes compute the same', () => {
  let hiddenCount = 0;
  for (let seed = 0; seed < 60; seed++) {
    const { graph, inputs } = randomGraph(seed);
    const hidden = hideReshapes(graph);
    if (hidden !== graph) hiddenCount++;
    assert.deepEqual(evaluateGraph(hidden, inputs), evaluateGraph(graph, inputs), `seed ${seed}`);
  }
  assert.ok(hiddenCount > 5, `${hiddenCount} graphs with reshapes`);
});
