// Cases of the operators that move elements.

import fc from 'fast-check';
import { int, ints, string } from '../../graph/graph.ts';
import { elementCount, int64s, scalar, type Tensor, tensor } from '../../graph/tensor.ts';
import { permutation, type Random } from '../../random.ts';
import { between, type CaseGenerator, cases, dimension, distinct, indices, nodeOf, shapes } from './case.ts';

const any = (random: Parameters<typeof between>[0], shape: readonly number[]): Tensor => between(random, shape, -2, 2);

/** A shape with one of its axes, which may count from the end. */
const shapeWithAxis = shapes(1, 3).chain((shape) =>
  fc.record({ shape: fc.constant(shape), axis: fc.integer({ min: -shape.length, max: shape.length - 1 }) }),
);

/** The axis in [0, rank). */
function fromStart(axis: number, shape: readonly number[]): number {
  return axis < 0 ? axis + shape.length : axis;
}

const reduction = fc.constantFrom('none', 'add', 'mul', 'max', 'min');

/** Data and updates for a Scatter: without equal elements for max and min, with some zeros for mul. */
function scattered(
  random: Random,
  way: string,
  shape: readonly number[],
  places: readonly number[],
): { readonly data: Tensor; readonly updates: Tensor } {
  if (way === 'max' || way === 'min') {
    const [data, updates] = distinct(random, shape, places) as [Tensor, Tensor];
    return { data, updates };
  }
  const zeroed = (x: Tensor): Tensor =>
    way === 'mul' ? { ...x, data: (x.data as Float64Array).map((value) => (random.uniform() < 0.2 ? 0 : value)) } : x;
  return { data: zeroed(any(random, shape)), updates: zeroed(any(random, places)) };
}

export const shapeCases: Readonly<Record<string, CaseGenerator>> = {
  Concat: cases(
    fc.record({ base: shapeWithAxis, lengths: fc.array(dimension(), { minLength: 1, maxLength: 4 }), skip: fc.nat(4) }),
    ({ base: { shape, axis }, lengths, skip }, random) => {
      const names = lengths.map((_, index) => `x${index}`);
      const parts = lengths.map((length) => any(random, shape.with(axis, length)));
      const differentiable = names.filter((_, index) => index !== skip);
      return {
        node: nodeOf('Concat', names, { axis: int(axis) }),
        inputs: Object.fromEntries(names.map((name, index) => [name, parts[index] as Tensor])),
        differentiable: differentiable.length === 0 ? names : differentiable,
      };
    },
  ),
  DepthToSpace: cases(
    fc.record({
      n: dimension(2),
      c: dimension(2),
      h: dimension(),
      w: dimension(),
      block: fc.constantFrom(1, 2, 3),
      mode: fc.constantFrom('DCR', 'CRD'),
    }),
    ({ n, c, h, w, block, mode }, random) => ({
      node: nodeOf('DepthToSpace', ['x'], { blocksize: int(block), mode: string(mode) }),
      inputs: { x: any(random, [n, c * block * block, h, w]) },
      differentiable: ['x'],
    }),
  ),
  Expand: cases(
    shapes(0, 4).chain((target) =>
      fc.record({
        target: fc.constant(target),
        ones: fc.array(fc.boolean(), { minLength: 4, maxLength: 4 }),
        dropped: fc.nat(target.length),
      }),
    ),
    ({ target, ones, dropped }, random) => ({
      node: nodeOf('Expand', ['x', 'shape']),
      inputs: {
        x: any(random, target.map((size, axis) => (ones[axis] ? 1 : size)).slice(dropped)),
        shape: int64s(target),
      },
      constants: ['shape'],
      differentiable: ['x'],
    }),
  ),
  Flatten: cases(
    shapes(1, 4).chain((shape) =>
      fc.record({ shape: fc.constant(shape), axis: fc.integer({ min: -shape.length, max: shape.length }) }),
    ),
    ({ shape, axis }, random) => ({
      node: nodeOf('Flatten', ['x'], { axis: int(axis) }),
      inputs: { x: any(random, shape) },
      differentiable: ['x'],
    }),
  ),
  Gather: cases(
    fc.record({
      base: shapeWithAxis,
      places: shapes(0, 2),
      known: fc.boolean(),
      type: fc.constantFrom<'int64' | 'int32'>('int64', 'int32'),
    }),
    ({ base: { shape, axis }, places, known, type }, random) => {
      const length = shape[fromStart(axis, shape)] as number;
      const values = Array.from({ length: elementCount(places) }, () => random.integer(2 * length) - length);
      return {
        node: nodeOf('Gather', ['x', 'indices'], { axis: int(axis) }),
        inputs: { x: any(random, shape), indices: indices(places, values, type) },
        constants: known ? ['indices'] : [],
        differentiable: ['x'],
      };
    },
  ),
  GatherElements: cases(
    shapeWithAxis.chain((base) =>
      fc.record({
        base: fc.constant(base),
        places: fc.tuple(
          ...base.shape.map((size, axis) => dimension(axis === fromStart(base.axis, base.shape) ? 4 : size)),
        ),
      }),
    ),
    ({ base: { shape, axis }, places }, random) => {
      const length = shape[fromStart(axis, shape)] as number;
      const values = Array.from({ length: elementCount(places) }, () => random.integer(2 * length) - length);
      return {
        node: nodeOf('GatherElements', ['x', 'indices'], { axis: int(axis) }),
        inputs: { x: any(random, shape), indices: indices(places, values) },
        differentiable: ['x'],
      };
    },
  ),
  GatherND: cases(
    shapes(1, 4).chain((shape) =>
      fc.nat(Math.min(2, shape.length - 1)).chain((batch) =>
        fc.record({
          shape: fc.constant(shape),
          batch: fc.constant(batch),
          depth: fc.integer({ min: 1, max: shape.length - batch }),
          places: shapes(0, 2),
        }),
      ),
    ),
    ({ shape, batch, depth, places }, random) => {
      const lead = [...shape.slice(0, batch), ...places];
      const tuples = Array.from({ length: elementCount(lead) }, () =>
        shape.slice(batch, batch + depth).map((size) => random.integer(2 * size) - size),
      );
      return {
        node: nodeOf('GatherND', ['x', 'indices'], { batch_dims: int(batch) }),
        inputs: { x: any(random, shape), indices: indices([...lead, depth], tuples.flat()) },
        differentiable: ['x'],
      };
    },
  ),
  Pad: cases(
    shapes(1, 3).chain((shape) =>
      fc.record({
        shape: fc.constant(shape),
        mode: fc.constantFrom('constant', 'reflect', 'edge', 'wrap'),
        amounts: fc.array(fc.integer({ min: -2, max: 5 }), { minLength: 6, maxLength: 6 }),
        axes: fc.option(
          fc.subarray(
            shape.map((_, axis) => axis),
            { minLength: 1 },
          ),
          { nil: undefined },
        ),
        value: fc.boolean(),
      }),
    ),
    ({ shape, mode, amounts, axes, value }, random) => {
      const padded = axes ?? shape.map((_, axis) => axis);
      const most = (axis: number): number =>
        mode === 'reflect' ? (shape[axis] as number) - 1 : mode === 'wrap' ? (shape[axis] as number) : 5;
      const least = (axis: number): number =>
        mode === 'constant' ? -Math.floor(((shape[axis] as number) - 1) / 2) : 0;
      const clamp = (amount: number, axis: number): number => Math.max(least(axis), Math.min(most(axis), amount));
      const pads = [
        ...padded.map((axis, index) => clamp(amounts[index] as number, axis)),
        ...padded.map((axis, index) => clamp(amounts[index + 3] as number, axis)),
      ];
      const hasValue = value && mode === 'constant';
      const names = ['x', 'pads', hasValue ? 'value' : '', ...(axes ? ['axes'] : [])];
      return {
        node: nodeOf('Pad', names, { mode: string(mode) }),
        inputs: {
          x: any(random, shape),
          pads: int64s(pads),
          ...(hasValue ? { value: any(random, []) } : {}),
          ...(axes ? { axes: int64s(axes.map((axis) => axis - shape.length)) } : {}),
        },
        constants: ['pads', 'axes'],
        differentiable: hasValue ? ['x', 'value'] : ['x'],
      };
    },
  ),
  Reshape: cases(
    shapes(0, 4).chain((shape) => fc.record({ shape: fc.constant(shape), order: fc.nat(24), infer: fc.boolean() })),
    ({ shape, order, infer }, random) => {
      const target = Array.from(permutation(shape.length, random), (axis) => shape[axis] as number);
      const stated = infer && target.length > 0 ? target.with(order % target.length, -1) : target;
      return {
        node: nodeOf('Reshape', ['x', 'shape']),
        inputs: { x: any(random, shape), shape: int64s(stated) },
        constants: ['shape'],
        differentiable: ['x'],
      };
    },
  ),
  ScatterElements: cases(
    shapeWithAxis.chain((base) =>
      fc.record({
        base: fc.constant(base),
        places: fc.tuple(...base.shape.map((size) => dimension(size))),
        reduction,
        differentiable: fc.constantFrom(['data', 'updates'], ['data'], ['updates']),
      }),
    ),
    ({ base: { shape, axis }, places, reduction: way, differentiable }, random) => {
      const along = fromStart(axis, shape);
      const length = shape[along] as number;
      // without a reduction an element may be written once only: the index depends on the coordinate along the axis
      // alone, one to one
      const adds = way !== 'none';
      const order = permutation(length, random);
      const inner = elementCount(places.slice(along + 1));
      const values = Array.from({ length: elementCount(places) }, (_, index) =>
        adds
          ? random.integer(2 * length) - length
          : (order[Math.floor(index / inner) % (places[along] as number)] as number),
      );
      return {
        node: nodeOf('ScatterElements', ['data', 'indices', 'updates'], { axis: int(axis), reduction: string(way) }),
        inputs: { indices: indices(places, values), ...scattered(random, way, shape, places) },
        differentiable,
      };
    },
  ),
  ScatterND: cases(
    shapes(1, 3).chain((shape) =>
      fc.record({
        shape: fc.constant(shape),
        depth: fc.integer({ min: 1, max: shape.length }),
        count: dimension(4),
        reduction,
        differentiable: fc.constantFrom(['data', 'updates'], ['data'], ['updates']),
      }),
    ),
    ({ shape, depth, count, reduction: way, differentiable }, random) => {
      const adds = way !== 'none';
      const slots = elementCount(shape.slice(0, depth));
      const written = adds ? count : Math.min(count, slots);
      const order = permutation(slots, random);
      const tuples = Array.from({ length: written }, (_, index) => {
        let slot = adds ? random.integer(slots) : (order[index] as number);
        const tuple = shape.slice(0, depth);
        for (let axis = depth - 1; axis >= 0; axis--) {
          const size = shape[axis] as number;
          tuple[axis] = slot % size;
          slot = Math.floor(slot / size);
        }
        return tuple;
      });
      return {
        node: nodeOf('ScatterND', ['data', 'indices', 'updates'], { reduction: string(way) }),
        inputs: {
          indices: indices([written, depth], tuples.flat()),
          ...scattered(random, way, shape, [written, ...shape.slice(depth)]),
        },
        differentiable,
      };
    },
  ),
  Slice: cases(
    fc.array(dimension(6), { minLength: 1, maxLength: 3 }).chain((shape) =>
      fc.record({
        shape: fc.constant(shape),
        axes: fc.subarray(
          shape.map((_, axis) => axis),
          { minLength: 1 },
        ),
        starts: fc.array(fc.integer({ min: -8, max: 8 }), { minLength: 3, maxLength: 3 }),
        ends: fc.array(fc.integer({ min: -8, max: 8 }), { minLength: 3, maxLength: 3 }),
        steps: fc.option(fc.array(fc.constantFrom(1, 2, 3, -1, -2), { minLength: 3, maxLength: 3 }), {
          nil: undefined,
        }),
      }),
    ),
    ({ shape, axes, starts, ends, steps }, random) => {
      const count = axes.length;
      return {
        node: nodeOf('Slice', ['x', 'starts', 'ends', 'axes', ...(steps ? ['steps'] : [])]),
        inputs: {
          x: any(random, shape),
          starts: int64s(starts.slice(0, count)),
          ends: int64s(ends.slice(0, count)),
          axes: int64s(axes),
          ...(steps ? { steps: int64s(steps.slice(0, count)) } : {}),
        },
        constants: ['starts', 'ends', 'axes', 'steps'],
        differentiable: ['x'],
      };
    },
  ),
  SpaceToDepth: cases(
    fc.record({ n: dimension(2), c: dimension(2), h: dimension(), w: dimension(), block: fc.constantFrom(1, 2, 3) }),
    ({ n, c, h, w, block }, random) => ({
      node: nodeOf('SpaceToDepth', ['x'], { blocksize: int(block) }),
      inputs: { x: any(random, [n, c, h * block, w * block]) },
      differentiable: ['x'],
    }),
  ),
  Split: cases(
    fc.record({
      base: shapeWithAxis,
      lengths: fc.array(dimension(), { minLength: 1, maxLength: 4 }),
      unread: fc.nat(4),
    }),
    ({ base: { shape, axis }, lengths, unread }, random) => {
      const node = nodeOf('Split', ['x', 'split'], { axis: int(axis) }, lengths.length);
      const seeded = node.outputs.filter((_, index) => index !== unread);
      return {
        node,
        inputs: {
          x: any(
            random,
            shape.with(
              axis,
              lengths.reduce((a, b) => a + b, 0),
            ),
          ),
          split: int64s(lengths),
        },
        constants: ['split'],
        differentiable: ['x'],
        seeded: seeded.length === 0 ? node.outputs : seeded,
      };
    },
  ),
  Squeeze: cases(fc.record({ shape: shapes(0, 3), at: fc.nat(3), all: fc.boolean() }), ({ shape, at, all }, random) => {
    const x = any(random, shape.toSpliced(at, 0, 1));
    return {
      node: nodeOf('Squeeze', all ? ['x'] : ['x', 'axes']),
      inputs: { x, ...(all ? {} : { axes: int64s([Math.min(at, shape.length)]) }) },
      constants: ['axes'],
      differentiable: ['x'],
    };
  }),
  Tile: cases(
    shapes(0, 3).chain((shape) =>
      fc.record({ shape: fc.constant(shape), repeats: fc.tuple(...shape.map(() => dimension())) }),
    ),
    ({ shape, repeats }, random) => ({
      node: nodeOf('Tile', ['x', 'repeats']),
      inputs: { x: any(random, shape), repeats: int64s(repeats) },
      constants: ['repeats'],
      differentiable: ['x'],
    }),
  ),
  Transpose: cases(fc.record({ shape: shapes(0, 4), stated: fc.boolean() }), ({ shape, stated }, random) => ({
    node: nodeOf('Transpose', ['x'], stated ? { perm: ints([...permutation(shape.length, random)]) } : {}),
    inputs: { x: any(random, shape) },
    differentiable: ['x'],
  })),
  Trilu: cases(
    fc.record({
      shape: shapes(2, 3),
      upper: fc.constantFrom(0, 1),
      k: fc.option(fc.integer({ min: -3, max: 3 }), { nil: undefined }),
    }),
    ({ shape, upper, k }, random) => ({
      node: nodeOf('Trilu', k === undefined ? ['x'] : ['x', 'k'], { upper: int(upper) }),
      inputs: { x: any(random, shape), ...(k === undefined ? {} : { k: scalar('int64', k) }) },
      constants: ['k'],
      differentiable: ['x'],
    }),
  ),
  Unsqueeze: cases(fc.record({ shape: shapes(0, 3), at: fc.nat(3) }), ({ shape, at }, random) => ({
    node: nodeOf('Unsqueeze', ['x', 'axes']),
    inputs: { x: any(random, shape), axes: tensor('int64', [1], [Math.min(at, shape.length)]) },
    constants: ['axes'],
    differentiable: ['x'],
  })),
};
