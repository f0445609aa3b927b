// Cases of the operators of neural networks.

import fc from 'fast-check';
import { type Attributes, float, int, ints, string } from '../../graph/graph.ts';
import { int64s, scalar, type Tensor, tensor } from '../../graph/tensor.ts';
import {
  awayFromZero,
  between,
  broadcastShapes,
  type CaseGenerator,
  cases,
  dimension,
  distinct,
  nodeOf,
  shapes,
} from './case.ts';

const any = (random: Parameters<typeof between>[0], shape: readonly number[]): Tensor => between(random, shape, -2, 2);
const positive = (random: Parameters<typeof between>[0], shape: readonly number[]): Tensor =>
  between(random, shape, 0.5, 2);

/** One spatial axis of a sliding window, whose input is `slack` longer than the least that one window needs. */
interface Axis {
  readonly kernel: number;
  readonly stride: number;
  readonly dilation: number;
  readonly begin: number;
  readonly end: number;
  readonly slack: number;
}

function axes(most: number): fc.Arbitrary<Axis[]> {
  const axis = fc.record({
    kernel: dimension(),
    stride: dimension(),
    dilation: dimension(2),
    begin: fc.nat(2),
    end: fc.nat(2),
    slack: fc.nat(4),
  });
  return fc.array(axis, { minLength: 1, maxLength: most });
}

/** The size of an axis's input, at least 1. */
function inputSize({ kernel, dilation, begin, end, slack }: Axis): number {
  return Math.max(1, (kernel - 1) * dilation + 1 - begin - end) + slack;
}

/** With SAME, ONNX Runtime takes no dilations, and goes wrong where windows leave gaps. */
function adapted(list: readonly Axis[], autoPad: string): readonly Axis[] {
  return autoPad.startsWith('SAME')
    ? list.map((axis) => ({ ...axis, dilation: 1, stride: Math.min(axis.stride, axis.kernel) }))
    : list;
}

function windowAttributes(list: readonly Axis[], autoPad: string): Attributes {
  const pads =
    autoPad === 'NOTSET'
      ? { pads: ints([...list.map(({ begin }) => begin), ...list.map(({ end }) => end)]) }
      : { auto_pad: string(autoPad) };
  return {
    strides: ints(list.map(({ stride }) => stride)),
    dilations: ints(list.map(({ dilation }) => dilation)),
    ...pads,
  };
}

const autoPads = fc.constantFrom('NOTSET', 'NOTSET', 'NOTSET', 'SAME_UPPER', 'SAME_LOWER', 'VALID');

/**
 * Sizes that keep the count of elements, and so the time of the finite differences, in bounds: 3-d only where the other
 * sizes are small.
 */
const convolution = fc.oneof(axes(2), axes(3)).chain((list) =>
  fc.record({
    axes: fc.constant(
      list.length === 3
        ? list.map((axis) => ({ ...axis, slack: axis.slack % 2, kernel: Math.min(axis.kernel, 2) }))
        : list,
    ),
    samples: dimension(list.length === 3 ? 1 : 2),
    group: fc.constantFrom(1, 1, 2, 3),
    perGroupIn: dimension(2),
    perGroupOut: dimension(2),
    bias: fc.boolean(),
    autoPad: autoPads,
  }),
);

/** A pool's padding must be smaller than its kernel, and no window may see nothing else, as one with holes could. */
function poolAxes(list: readonly Axis[]): readonly Axis[] {
  const most = ({ kernel, dilation }: Axis): number => (dilation === 1 ? kernel - 1 : 0);
  return list.map((axis) => ({
    ...axis,
    begin: Math.min(axis.begin, most(axis)),
    end: Math.min(axis.end, most(axis)),
  }));
}

/** With auto_pad the input must hold a window where nothing is padded. */
function spatialSizes(list: readonly Axis[], autoPad: string): readonly number[] {
  return list.map((axis) => inputSize(autoPad === 'NOTSET' ? axis : { ...axis, begin: 0, end: 0 }));
}

export const neuralCases: Readonly<Record<string, CaseGenerator>> = {
  AveragePool: cases(
    fc.record({
      axes: axes(2),
      samples: dimension(2),
      channels: dimension(2),
      include: fc.constantFrom(0, 1),
      ceil: fc.constantFrom(0, 1),
      autoPad: autoPads,
    }),
    ({ axes: list, samples, channels, include, ceil, autoPad }, random) => {
      const pool = poolAxes(adapted(list, autoPad));
      return {
        node: nodeOf('AveragePool', ['x'], {
          ...windowAttributes(pool, autoPad),
          kernel_shape: ints(pool.map(({ kernel }) => kernel)),
          count_include_pad: int(include),
          ceil_mode: int(ceil),
        }),
        inputs: { x: any(random, [samples, channels, ...spatialSizes(pool, autoPad)]) },
        differentiable: ['x'],
      };
    },
  ),
  BatchNormalization: cases(
    fc.record({
      samples: fc.constantFrom(2, 3),
      channels: dimension(),
      spatial: shapes(0, 2),
      training: fc.constantFrom(0, 1),
      outputs: fc.constantFrom(1, 3),
    }),
    ({ samples, channels, spatial, training, outputs }, random) => ({
      node: nodeOf(
        'BatchNormalization',
        ['x', 'scale', 'bias', 'mean', 'variance'],
        { training_mode: int(training), epsilon: float(0.01), momentum: float(0.7) },
        training === 1 ? outputs : 1,
      ),
      inputs: {
        x: any(random, [samples, channels, ...spatial]),
        scale: awayFromZero(random, [channels]),
        bias: any(random, [channels]),
        mean: any(random, [channels]),
        variance: positive(random, [channels]),
      },
      differentiable: training === 1 ? ['x', 'scale', 'bias'] : ['x', 'scale', 'bias', 'mean', 'variance'],
    }),
  ),
  Conv: cases(convolution, ({ axes: drawn, samples, group, perGroupIn, perGroupOut, bias, autoPad }, random) => {
    const list = adapted(drawn, autoPad);
    return {
      node: nodeOf('Conv', bias ? ['x', 'w', 'b'] : ['x', 'w'], {
        ...windowAttributes(list, autoPad),
        group: int(group),
      }),
      inputs: {
        x: any(random, [samples, group * perGroupIn, ...spatialSizes(list, autoPad)]),
        w: any(random, [group * perGroupOut, perGroupIn, ...list.map(({ kernel }) => kernel)]),
        ...(bias ? { b: any(random, [group * perGroupOut]) } : {}),
      },
      differentiable: bias ? ['x', 'w', 'b'] : ['x', 'w'],
    };
  }),
  ConvTranspose: cases(
    fc.record({ convolution, extra: fc.array(fc.nat(2), { minLength: 3, maxLength: 3 }), stated: fc.boolean() }),
    (
      { convolution: { axes: drawn, samples, group, perGroupIn, perGroupOut, bias, autoPad }, extra, stated },
      random,
    ) => {
      const list = adapted(drawn, autoPad);
      const places = list.map(({ slack, begin, end }) => 1 + Math.min(slack, 2) + begin + end);
      const reach = list.map(({ kernel, dilation }) => (kernel - 1) * dilation + 1);
      const padding = list.map(({ stride }, axis) => Math.min(extra[axis] as number, stride - 1));
      // output_shape: as many as the windows cover, one less (cut) or, where the stride allows it, one more (zeros)
      const covered = places.map((count, axis) => (count - 1) * (list[axis] as Axis).stride + (reach[axis] as number));
      const sized: Attributes = stated
        ? {
            output_shape: ints(
              covered.map((size, axis) =>
                Math.max(1, size + Math.min(extra[axis] as number, (list[axis] as Axis).stride) - 1),
              ),
            ),
          }
        : { output_padding: ints(padding) };
      const { pads, auto_pad: auto, ...steps } = windowAttributes(list, autoPad);
      const padded: Attributes = stated
        ? auto
          ? { auto_pad: auto }
          : {}
        : pads
          ? { pads }
          : { auto_pad: auto as NonNullable<typeof auto> };
      return {
        node: nodeOf('ConvTranspose', bias ? ['x', 'w', 'b'] : ['x', 'w'], {
          ...steps,
          ...padded,
          ...sized,
          group: int(group),
        }),
        inputs: {
          x: any(random, [samples, group * perGroupIn, ...places]),
          w: any(random, [group * perGroupIn, perGroupOut, ...list.map(({ kernel }) => kernel)]),
          ...(bias ? { b: any(random, [group * perGroupOut]) } : {}),
        },
        differentiable: bias ? ['x', 'w', 'b'] : ['x', 'w'],
      };
    },
  ),
  Dropout: cases(
    fc.record({ shape: shapes(0, 3), mode: fc.constantFrom('absent', 'inference', 'ratio 0') }),
    ({ shape, mode }, random) => ({
      node: nodeOf('Dropout', mode === 'absent' ? ['x'] : ['x', 'ratio', 'training']),
      inputs: {
        x: any(random, shape),
        ...(mode === 'absent'
          ? {}
          : {
              ratio: scalar('float64', mode === 'ratio 0' ? 0 : 0.5),
              training: scalar('bool', mode === 'ratio 0' ? 1 : 0),
            }),
      },
      constants: ['ratio', 'training'],
      differentiable: ['x'],
    }),
  ),
  Gemm: cases(
    fc.record({
      sizes: fc.tuple(dimension(), dimension(), dimension()),
      transA: fc.constantFrom(0, 1),
      transB: fc.constantFrom(0, 1),
      alpha: fc.constantFrom(1, 0.5),
      beta: fc.constantFrom(1, -2),
      c: fc.constantFrom('none', 'scalar', 'row', 'column', 'vector', 'full'),
      differentiable: fc.constantFrom(['a', 'b', 'c'], ['a'], ['b'], ['c']),
    }),
    ({ sizes: [m, k, n], transA, transB, alpha, beta, c, differentiable }, random) => {
      const biases: Readonly<Record<string, readonly number[]>> = {
        scalar: [],
        row: [1, n],
        column: [m, 1],
        vector: [n],
        full: [m, n],
      };
      const bias = biases[c];
      const wanted = differentiable.filter((name) => name !== 'c' || bias !== undefined);
      return {
        node: nodeOf('Gemm', bias ? ['a', 'b', 'c'] : ['a', 'b'], {
          transA: int(transA),
          transB: int(transB),
          alpha: float(alpha),
          beta: float(beta),
        }),
        inputs: {
          a: any(random, transA ? [k, m] : [m, k]),
          b: any(random, transB ? [n, k] : [k, n]),
          ...(bias ? { c: any(random, bias) } : {}),
        },
        differentiable: wanted.length === 0 ? ['a'] : wanted,
      };
    },
  ),
  GlobalAveragePool: cases(shapes(3, 5), (shape, random) => ({
    node: nodeOf('GlobalAveragePool', ['x']),
    inputs: { x: any(random, shape) },
    differentiable: ['x'],
  })),
  GlobalMaxPool: cases(shapes(3, 5), (shape, random) => ({
    node: nodeOf('GlobalMaxPool', ['x']),
    inputs: { x: distinct(random, shape)[0] as Tensor },
    differentiable: ['x'],
  })),
  GroupNormalization: cases(
    fc.record({ samples: dimension(2), groups: dimension(2), perGroup: dimension(2), spatial: shapes(1, 2) }),
    ({ samples, groups, perGroup, spatial }, random) => ({
      node: nodeOf('GroupNormalization', ['x', 'scale', 'bias'], { num_groups: int(groups), epsilon: float(0.1) }),
      inputs: {
        x: any(random, [samples, groups * perGroup, ...spatial]),
        scale: any(random, [groups * perGroup]),
        bias: any(random, [groups * perGroup]),
      },
      differentiable: ['x', 'scale', 'bias'],
    }),
  ),
  InstanceNormalization: cases(shapes(3, 4), (shape, random) => ({
    node: nodeOf('InstanceNormalization', ['x', 'scale', 'bias'], { epsilon: float(0.1) }),
    inputs: {
      x: any(random, shape),
      scale: any(random, [shape[1] as number]),
      bias: any(random, [shape[1] as number]),
    },
    differentiable: ['x', 'scale', 'bias'],
  })),
  LayerNormalization: cases(
    shapes(1, 4).chain((shape) =>
      fc.record({
        shape: fc.constant(shape),
        axis: fc.integer({ min: -shape.length, max: shape.length - 1 }),
        bias: fc.boolean(),
        scalar: fc.boolean(),
      }),
    ),
    ({ shape, axis, bias, scalar: one }, random) => {
      const normalized = shape.slice(axis < 0 ? axis + shape.length : axis);
      return {
        node: nodeOf('LayerNormalization', bias ? ['x', 'scale', 'bias'] : ['x', 'scale'], {
          axis: int(axis),
          epsilon: float(0.1),
        }),
        inputs: {
          x: any(random, shape),
          scale: any(random, one ? [1] : normalized),
          ...(bias ? { bias: any(random, normalized) } : {}),
        },
        differentiable: bias ? ['x', 'scale', 'bias'] : ['x', 'scale'],
      };
    },
  ),
  LogSoftmax: alongAxis('LogSoftmax'),
  LpNormalization: cases(
    fc.record({ shape: shapes(1, 3), last: fc.boolean(), p: fc.constantFrom(1, 2) }),
    ({ shape, last, p }, random) => ({
      node: nodeOf('LpNormalization', ['x'], { axis: int(last ? -1 : 0), p: int(p) }),
      inputs: { x: awayFromZero(random, shape) },
      differentiable: ['x'],
    }),
  ),
  MatMul: cases(
    fc.record({
      batch: broadcastShapes(2, 2),
      sizes: fc.tuple(dimension(), dimension(), dimension()),
      vectorA: fc.boolean(),
      vectorB: fc.boolean(),
      differentiable: fc.constantFrom(['a', 'b'], ['a'], ['b']),
    }),
    ({ batch: [batchA = [], batchB = []], sizes: [m, k, n], vectorA, vectorB, differentiable }, random) => ({
      node: nodeOf('MatMul', ['a', 'b']),
      inputs: { a: any(random, vectorA ? [k] : [...batchA, m, k]), b: any(random, vectorB ? [k] : [...batchB, k, n]) },
      differentiable,
    }),
  ),
  MaxPool: cases(
    fc.record({
      axes: axes(2),
      samples: dimension(2),
      channels: dimension(2),
      ceil: fc.constantFrom(0, 1),
      autoPad: autoPads,
      indices: fc.constantFrom('none', 'row', 'column'),
    }),
    ({ axes: list, samples, channels, ceil, autoPad, indices }, random) => {
      const pool = poolAxes(adapted(list, autoPad));
      const attributes = {
        ...windowAttributes(pool, autoPad),
        kernel_shape: ints(pool.map(({ kernel }) => kernel)),
        ceil_mode: int(ceil),
        storage_order: int(indices === 'column' ? 1 : 0),
      };
      return {
        node: nodeOf('MaxPool', ['x'], attributes, indices === 'none' ? 1 : 2),
        inputs: { x: distinct(random, [samples, channels, ...spatialSizes(pool, autoPad)])[0] as Tensor },
        differentiable: ['x'],
      };
    },
  ),
  Resize: cases(
    fc.record({
      rank: fc.constantFrom(2, 4),
      lengths: fc.tuple(dimension(5), dimension(5)),
      sizes: fc.option(fc.tuple(dimension(8), dimension(8)), { nil: undefined }),
      scales: fc.tuple(fc.constantFrom(1, 2, 3, 1.5, 0.7), fc.constantFrom(1, 2, 0.5, 1.3)),
      mode: fc.constantFrom('nearest', 'linear', 'cubic'),
      coordinates: fc.constantFrom(
        'half_pixel',
        'half_pixel_symmetric',
        'pytorch_half_pixel',
        'align_corners',
        'asymmetric',
      ),
      antialias: fc.constantFrom(0, 1),
    }),
    ({ rank, lengths, sizes, scales, mode, coordinates, antialias }, random) => {
      const lead = rank === 2 ? [] : [2, 2];
      const factors = scales.map((factor, axis) => Math.max(factor, 1 / (lengths[axis] as number)));
      return {
        node: nodeOf('Resize', ['x', '', sizes ? '' : 'scales', ...(sizes ? ['sizes'] : [])], {
          mode: string(mode),
          coordinate_transformation_mode: string(coordinates),
          ...(mode === 'nearest' ? {} : { antialias: int(antialias) }),
        }),
        inputs: {
          x: any(random, [...lead, ...lengths]),
          ...(sizes
            ? { sizes: int64s([...lead, ...sizes]) }
            : { scales: tensor('float32', [rank], [...lead.map(() => 1), ...factors]) }),
        },
        constants: ['scales', 'sizes'],
        differentiable: ['x'],
      };
    },
  ),
  Softmax: alongAxis('Softmax'),
};

function alongAxis(operator: string): CaseGenerator {
  return cases(
    shapes(1, 3).chain((shape) =>
      fc.record({ shape: fc.constant(shape), axis: fc.integer({ min: -shape.length, max: shape.length - 1 }) }),
    ),
    ({ shape, axis }, random) => ({
      node: nodeOf(operator, ['x'], { axis: int(axis) }),
      inputs: { x: any(random, shape) },
      differentiable: ['x'],
    }),
  );
}
