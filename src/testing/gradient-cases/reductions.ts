// Cases of the reductions.

import fc from 'fast-check';
import { int } from '../../graph/graph.ts';
import { scalar, type Tensor } from '../../graph/tensor.ts';
import type { Random } from '../../random.ts';
import { awayFromZero, between, type CaseGenerator, cases, distinct, indices, nodeOf, shapes } from './case.ts';

type Values = (random: Random, shape: readonly number[]) => Tensor;

const any: Values = (random, shape) => between(random, shape, -2, 2);
const positive: Values = (random, shape) => between(random, shape, 0.2, 3);
const different: Values = (random, shape) => distinct(random, shape)[0] as Tensor;
/** About every third element is 0. */
const withZeros: Values = (random, shape) => {
  const x = any(random, shape);
  return { ...x, data: (x.data as Float64Array).map((value) => (random.uniform() < 0.3 ? 0 : value)) };
};

/** Axes absent, empty, or some of them, from the front or the back; with and without keepdims and noop. */
function reduction(operator: string, values: Values): CaseGenerator {
  const arbitrary = shapes(0, 3).chain((shape) =>
    fc.record({
      shape: fc.constant(shape),
      axes: fc.option(fc.subarray(shape.map((_, axis) => axis)), { nil: undefined }),
      fromEnd: fc.boolean(),
      keepdims: fc.constantFrom(0, 1),
      noop: fc.constantFrom(0, 1),
    }),
  );
  return cases(arbitrary, ({ shape, axes, fromEnd, keepdims, noop }, random) => ({
    node: nodeOf(operator, axes === undefined ? ['x'] : ['x', 'axes'], {
      keepdims: int(keepdims),
      noop_with_empty_axes: int(noop),
    }),
    inputs: {
      x: values(random, shape),
      ...(axes === undefined
        ? {}
        : {
            axes: indices(
              [axes.length],
              axes.map((axis) => (fromEnd ? axis - shape.length : axis)),
            ),
          }),
    },
    constants: ['axes'],
    differentiable: ['x'],
  }));
}

export const reductionCases: Readonly<Record<string, CaseGenerator>> = {
  CumSum: cases(
    shapes(1, 3).chain((shape) =>
      fc.record({
        shape: fc.constant(shape),
        axis: fc.integer({ min: -shape.length, max: shape.length - 1 }),
        exclusive: fc.constantFrom(0, 1),
        reverse: fc.constantFrom(0, 1),
      }),
    ),
    ({ shape, axis, exclusive, reverse }, random) => ({
      node: nodeOf('CumSum', ['x', 'axis'], { exclusive: int(exclusive), reverse: int(reverse) }),
      inputs: { x: any(random, shape), axis: scalar('int64', axis) },
      constants: ['axis'],
      differentiable: ['x'],
    }),
  ),
  ReduceL1: reduction('ReduceL1', awayFromZero),
  ReduceL2: reduction('ReduceL2', awayFromZero),
  ReduceLogSum: reduction('ReduceLogSum', positive),
  ReduceLogSumExp: reduction('ReduceLogSumExp', any),
  ReduceMax: reduction('ReduceMax', different),
  ReduceMean: reduction('ReduceMean', any),
  ReduceMin: reduction('ReduceMin', different),
  ReduceProd: reduction('ReduceProd', withZeros),
  ReduceSum: reduction('ReduceSum', any),
  ReduceSumSquare: reduction('ReduceSumSquare', any),
  TopK: cases(
    shapes(1, 3).chain((shape) =>
      fc.integer({ min: -shape.length, max: shape.length - 1 }).chain((axis) =>
        fc.record({
          shape: fc.constant(shape),
          axis: fc.constant(axis),
          count: fc.integer({ min: 1, max: shape.at(axis) as number }),
          largest: fc.constantFrom(0, 1),
        }),
      ),
    ),
    ({ shape, axis, count, largest }, random) => ({
      node: nodeOf('TopK', ['x', 'k'], { axis: int(axis), largest: int(largest) }, 2),
      inputs: { x: different(random, shape), k: indices([1], [count]) },
      constants: ['k'],
      differentiable: ['x'],
    }),
  ),
};
