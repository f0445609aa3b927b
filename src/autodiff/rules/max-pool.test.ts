// Which of several equal maxima in a window gets the gradient: the first in row-major order.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { type Attributes, int, ints } from '../../graph/graph.ts';
import { operators } from '../../graph/operators/index.ts';
import { type Tensor, tensor, toNumbers } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import { runBackward, stageOfNode } from '../../testing/gradient-check.ts';
import { differentiate } from '../differentiate.ts';

/** The gradient of a pool for given values and gradients of its output. */
function gradientOf(
  x: Tensor,
  attributes: Attributes,
  gradients: (count: number) => readonly number[],
): readonly number[] {
  const node = { operator: 'MaxPool', domain: '', name: 'pool', inputs: ['x'], outputs: ['y'], attributes };
  const { stage } = stageOfNode({ node, inputs: { x }, differentiable: ['x'] });
  const graphs = differentiate(stage, { inputs: ['x'] });
  const [y] = operators.MaxPool.evaluate(node, [x]) as [Tensor];
  const seeds = new Map([['y', tensor('float64', y.shape, gradients(y.data.length))]]);
  return toNumbers(runBackward(graphs, new Map([['x', x]]), seeds).get('gradient(x)') as Tensor);
}

test('of equal elements the first in row-major order gets the gradient', () => {
  const ones = tensor('float64', [1, 1, 3, 3], new Array(9).fill(1));
  const counted = (count: number): readonly number[] => Array.from({ length: count }, (_, index) => index + 1);
  // Windows at (0,0), (0,1), (1,0), (1,1) of stride 1.
  assert.deepEqual(gradientOf(ones, { kernel_shape: ints([2, 2]) }, counted), [1, 2, 0, 3, 4, 0, 0, 0, 0]);
  // Stride 2 with padding: the first element inside of the window.
  const padded = { kernel_shape: ints([3, 3]), strides: ints([2, 2]), pads: ints([1, 1, 1, 1]) };
  assert.deepEqual(gradientOf(ones, padded, counted), [1, 2, 0, 3, 4, 0, 0, 0, 0]);
  // The maximum of a later row yields to an equal one of an earlier row, even further right.
  const late = tensor('float64', [1, 1, 2, 2], [0, 5, 5, 0]);
  assert.deepEqual(gradientOf(late, { kernel_shape: ints([2, 2]) }, counted), [0, 1, 0, 0]);
});

test('the places are those of the operator itself, with many ties', () => {
  const property = fc.property(
    fc.nat(99_999),
    fc.constantFrom(1, 2, 3),
    fc.constantFrom(1, 2, 3),
    fc.constantFrom(1, 2),
    fc.constantFrom(0, 1),
    fc.constantFrom(0, 1),
    (seed, kernel, stride, dilation, pad, ceil) => {
      const random = createRandom(seed);
      const x = tensor(
        'float64',
        [2, 2, 7, 6],
        Array.from({ length: 168 }, () => random.integer(3)),
      );
      const pads = Math.min(pad, kernel - 1);
      const attributes = {
        kernel_shape: ints([kernel, 2]),
        strides: ints([stride, 2]),
        dilations: ints([dilation, 1]),
        pads: ints([pads, 0, pads, 1]),
        ceil_mode: int(ceil),
      };
      const node = {
        operator: 'MaxPool',
        domain: '',
        name: 'pool',
        inputs: ['x'],
        outputs: ['y', 'places'],
        attributes,
      };
      const [, places] = operators.MaxPool.evaluate(node, [x]) as [Tensor, Tensor];
      const g = toNumbers(places).map(() => random.integer(9));
      const expected = new Array<number>(168).fill(0);
      toNumbers(places).forEach((place, index) => {
        (expected[place] as number) += g[index] as number;
      });
      assert.deepEqual(
        gradientOf(x, attributes, () => g),
        expected,
      );
    },
  );
  fc.assert(property, { seed: 20261121, numRuns: 60 });
});
