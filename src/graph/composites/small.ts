// Composites of a few nodes.

import { floatAttribute, int, intAttribute, ints, intsAttribute } from '../graph.ts';
import { check, normalizeAxes, normalizeAxis } from '../operators/define.ts';
import { int64s, scalar, tensor } from '../tensor.ts';
import type { Composite } from './composite.ts';
import { gridSample } from './grid-sample.ts';
import { product, range, type Writer } from './writer.ts';

export const smallComposites: Readonly<Record<string, Composite>> = {
  AffineGrid: {
    inputs: [2, 2],
    attributes: { align_corners: 'int' },
    ranks: [
      [3, 3],
      [1, 1],
    ],
    otherTypes: [1],
    constantInputs: [1],
    write: affineGrid,
  },
  CenterCropPad: {
    inputs: [2, 2],
    attributes: { axes: 'ints' },
    otherTypes: [0],
    constantInputs: [1],
    write: centerCropPad,
  },
  Col2Im: {
    inputs: [3, 3],
    attributes: { dilations: 'ints', pads: 'ints', strides: 'ints' },
    ranks: [
      [3, 3],
      [1, 1],
      [1, 1],
    ],
    otherTypes: [1, 2],
    constantInputs: [1, 2],
    write: columnsToImage,
  },
  Compress: { inputs: [2, 2], attributes: { axis: 'int' }, otherTypes: [0], constantInputs: [1], write: compress },
  GlobalLpPool: {
    inputs: [1, 1],
    ranks: [[3, Number.POSITIVE_INFINITY]],
    attributes: { p: 'int' },
    write: (w) => [norm(w, w.input(0), range(w.shape(w.input(0)).length).slice(2), intAttribute(w.node, 'p', 2))],
  },
  GridSample: gridSample,
  // 1 at the first of the largest elements
  Hardmax: {
    inputs: [1, 1],
    attributes: { axis: 'int' },
    write(w) {
      const x = w.input(0);
      const axis = normalizeAxis(w.node, intAttribute(w.node, 'axis', -1), w.shape(x).length);
      const best = w.op('ArgMax', [x], { axis: int(axis), keepdims: int(0) });
      const length = w.constant(scalar('int64', w.shape(x)[axis] as number));
      const hot = w.op('OneHot', [best, length, w.constant(tensor('float32', [2], [0, 1]))], { axis: int(axis) });
      return [w.cast(hot, w.type(x))];
    },
  },
  LpPool: {
    inputs: [1, 1],
    attributes: {
      auto_pad: 'string',
      ceil_mode: 'int',
      dilations: 'ints',
      kernel_shape: 'ints',
      p: 'int',
      pads: 'ints',
      strides: 'ints',
    },
    write: lpPool,
  },
  LRN: {
    inputs: [1, 1],
    attributes: { alpha: 'float', beta: 'float', bias: 'float', size: 'int' },
    write: localResponse,
  },
  MaxUnpool: {
    inputs: [2, 3],
    attributes: { kernel_shape: 'ints', pads: 'ints', strides: 'ints' },
    ranks: [[3, Number.POSITIVE_INFINITY]],
    otherTypes: [1, 2],
    constantInputs: [2],
    write: maxUnpool,
  },
  // (x − mean) / √(mean((x − mean)²))
  MeanVarianceNormalization: {
    inputs: [1, 1],
    attributes: { axes: 'ints' },
    write(w) {
      const x = w.input(0);
      const axes = normalizeAxes(w.node, intsAttribute(w.node, 'axes') ?? [0, 2, 3], w.shape(x).length);
      const centered = w.sub(x, w.reduce('ReduceMean', x, axes));
      const deviation = w.op('Sqrt', [w.reduce('ReduceMean', w.mul(centered, centered), axes)]);
      return [w.div(centered, w.add(deviation, w.like(x, 1e-9)))];
    },
  },
  ReverseSequence: {
    inputs: [2, 2],
    attributes: { batch_axis: 'int', time_axis: 'int' },
    otherTypes: [0],
    constantInputs: [1],
    write: reverseSequence,
  },
  // x + bias below −λ, x − bias above λ, 0 between
  Shrink: {
    inputs: [1, 1],
    attributes: { bias: 'float', lambd: 'float' },
    write(w) {
      const x = w.input(0);
      const [bias, lambda] = [floatAttribute(w.node, 'bias', 0), floatAttribute(w.node, 'lambd', 0.5)];
      const below = w.op('Where', [w.op('Less', [x, w.like(x, -lambda)]), w.add(x, w.like(x, bias)), w.like(x, 0)]);
      return [w.op('Where', [w.op('Greater', [x, w.like(x, lambda)]), w.sub(x, w.like(x, bias)), below])];
    },
  },
};

/**
 * The sampling grid of an image: each place, with coordinates in [−1, 1], mapped by a matrix for each sample: theta [N,
 * 2, 3] or [N, 3, 4] times (x, y, …, 1).
 */
function affineGrid(w: Writer): readonly string[] {
  const theta = w.input(0);
  const [samples, rank, columns] = w.shape(theta) as [number, number, number];
  const [, , ...image] = w.numbers(1) ?? [];
  const fits =
    image.length === rank && columns === rank + 1 && image.every((size) => Number.isInteger(size) && size > 0);
  check(fits, w.node, () => `has matrices of shape [${w.shape(theta).join(', ')}] for images of [${image.join(', ')}]`);
  const corners = intAttribute(w.node, 'align_corners', 0) !== 0;
  const coordinate = (place: number, size: number): number => {
    if (!corners) return (2 * place + 1) / size - 1;
    return size === 1 ? 0 : (2 * place) / (size - 1) - 1;
  };
  const places = range(product(image)).flatMap((index) => {
    // From the last axis, which is x.
    let rest = index;
    const own = [...image].reverse().map((size) => {
      const place = rest % size;
      rest = Math.floor(rest / size);
      return coordinate(place, size);
    });
    return [...own, 1];
  });
  const base = w.constant(tensor(w.type(theta), [product(image), columns], places));
  return [w.reshape(w.op('MatMul', [base, w.transposeLast(theta)]), [samples, ...image, rank])];
}

/** (Σ |x|^p)^(1/p) over axes, which are kept with size 1. */
function norm(w: Writer, x: string, axes: readonly number[], p: number): string {
  if (p === 1) return w.reduce('ReduceL1', x, axes);
  if (p === 2) return w.reduce('ReduceL2', x, axes);
  const powers = w.op('Pow', [w.op('Abs', [x]), w.like(x, p)]);
  return w.op('Pow', [w.reduce('ReduceSum', powers, axes), w.like(x, 1 / p)]);
}

/** The p-norm of each window: an average of |x|^p times the window's size. */
function lpPool(w: Writer): readonly string[] {
  const { p: _, ...window } = w.node.attributes;
  const p = intAttribute(w.node, 'p', 2);
  const x = w.input(0);
  const powers = p === 2 ? w.mul(x, x) : w.op('Pow', [w.op('Abs', [x]), w.like(x, p)]);
  const size = product(intsAttribute(w.node, 'kernel_shape') ?? []);
  const sums = w.scale(w.op('AveragePool', [powers], { ...window, count_include_pad: int(1) }), size);
  return [p === 2 ? w.op('Sqrt', [sums]) : w.op('Pow', [sums, w.like(x, 1 / p)])];
}

/**
 * x / (bias + α/size · Σ x² over `size` neighbouring channels)^β; the sum is an average pool with the channels as the
 * height of an image.
 */
function localResponse(w: Writer): readonly string[] {
  const x = w.input(0);
  const shape = w.shape(x);
  const size = intAttribute(w.node, 'size', 0);
  check(shape.length >= 3 && size > 0, w.node, () => 'wants an input [N, C, …] and a positive size');
  const [samples, channels, ...image] = shape as [number, number, ...number[]];
  const columns = w.reshape(w.mul(x, x), [samples, 1, channels, product(image)]);
  const before = Math.floor((size - 1) / 2);
  const pads = ints([before, 0, size - 1 - before, 0]);
  const mean = w.op('AveragePool', [columns], { kernel_shape: ints([size, 1]), pads, count_include_pad: int(1) });
  const base = w.add(
    w.scale(w.reshape(mean, shape), floatAttribute(w.node, 'alpha', 1e-4)),
    w.like(x, floatAttribute(w.node, 'bias', 1)),
  );
  return [w.div(x, w.op('Pow', [base, w.like(x, floatAttribute(w.node, 'beta', 0.75))]))];
}

/**
 * Each column's elements added at its window's place: a transposed convolution whose kernels each contain a single 1. x
 * [N, C·taps, places].
 */
function columnsToImage(w: Writer): readonly string[] {
  const x = w.input(0);
  const [image, kernel] = [w.numbers(1) ?? [], w.numbers(2) ?? []];
  const rank = kernel.length;
  const [strides, dilations] = ['strides', 'dilations'].map(
    (name) => intsAttribute(w.node, name) ?? kernel.map(() => 1),
  ) as [number[], number[]];
  const pads = intsAttribute(w.node, 'pads') ?? [...kernel, ...kernel].map(() => 0);
  const [samples, rows] = w.shape(x) as [number, number];
  const taps = product(kernel);
  const reach = kernel.map((size, axis) => (size - 1) * (dilations[axis] as number) + 1);
  const room = image.map(
    (size, axis) => size + (pads[axis] as number) + (pads[axis + rank] as number) - (reach[axis] as number),
  );
  const places = room.map((size, axis) => Math.floor(size / (strides[axis] as number)) + 1);
  check(
    rows % taps === 0 && room.every((size) => size >= 0) && product(places) === w.shape(x)[2],
    w.node,
    () =>
      `has columns of shape [${w.shape(x).join(', ')}] for windows of [${kernel.join(', ')}] at ` +
      `[${places.join(', ')}] places`,
  );
  const unit = new Float64Array(rows * taps);
  for (let row = 0; row < rows; row++) unit[row * taps + (row % taps)] = 1;
  const weights = w.constant(tensor(w.type(x), [rows, 1, ...kernel], unit));
  const attributes = {
    group: int(rows / taps),
    strides: ints(strides),
    dilations: ints(dilations),
    pads: ints(pads),
    output_padding: ints(room.map((size, axis) => size % (strides[axis] as number))),
  };
  return [w.op('ConvTranspose', [w.reshape(x, [samples, rows, ...places]), weights], attributes)];
}

/** Zeros with each element at the place of its index, padded with zeros if a larger shape is given. */
function maxUnpool(w: Writer): readonly string[] {
  const [x, places] = [w.input(0), w.input(1)];
  const shape = w.shape(x);
  const kernel = intsAttribute(w.node, 'kernel_shape') ?? [];
  const strides = intsAttribute(w.node, 'strides') ?? kernel.map(() => 1);
  const pads = intsAttribute(w.node, 'pads') ?? [...kernel, ...kernel].map(() => 0);
  const lists = [kernel, strides, pads.slice(kernel.length), pads.slice(0, kernel.length)];
  check(
    lists.every((list) => list.length === shape.length - 2),
    w.node,
    () => `needs kernel_shape, strides and pads for ${shape.length - 2} axes`,
  );
  const spatial = kernel.map(
    (size, axis) =>
      ((shape[axis + 2] as number) - 1) * (strides[axis] as number) +
      size -
      (pads[axis] as number) -
      (pads[axis + kernel.length] as number),
  );
  const full = [...shape.slice(0, 2), ...spatial];
  const zeros = w.op('ConstantOfShape', [w.emitter.int64s([product(full)])], {
    value: { type: 'tensor', value: tensor(w.type(x), [1], [0]) },
  });
  const flat = w.op('ScatterElements', [zeros, w.reshape(places, [product(shape)]), w.reshape(x, [product(shape)])], {
    axis: int(0),
  });
  const y = w.reshape(flat, full);
  const wanted = w.numbers(2) ?? full;
  const after = wanted.map((size, axis) => size - (full[axis] as number));
  check(
    after.every((count) => count >= 0) && after.length === full.length,
    w.node,
    () => `cannot give the shape [${wanted.join(', ')}]`,
  );
  return [
    after.every((count) => count === 0) ? y : w.op('Pad', [y, w.emitter.int64s([...full.map(() => 0), ...after])]),
  ];
}

/** Each axis cropped to its middle, or padded with zeros on both sides, to the given size. */
function centerCropPad(w: Writer): readonly string[] {
  const shape = w.shape(w.input(0));
  const axes = normalizeAxes(w.node, intsAttribute(w.node, 'axes') ?? range(shape.length), shape.length);
  const wanted = w.numbers(1) ?? [];
  check(wanted.length === axes.length, w.node, () => `has ${wanted.length} sizes for ${axes.length} axes`);
  let x = w.input(0);
  const [before, after] = [shape.map(() => 0), shape.map(() => 0)];
  axes.forEach((axis, index) => {
    const [size, target] = [shape[axis] as number, wanted[index] as number];
    if (target <= size) x = w.slice(x, axis, Math.floor((size - target) / 2), Math.floor((size - target) / 2) + target);
    else {
      before[axis] = Math.floor((target - size) / 2);
      after[axis] = target - size - (before[axis] as number);
    }
  });
  return [
    [...before, ...after].every((count) => count === 0)
      ? x
      : w.op('Pad', [x, w.constant(int64s([...before, ...after]))]),
  ];
}

/** The slices along an axis (the elements, if there is none) whose condition holds; it must be known before running. */
function compress(w: Writer): readonly string[] {
  const condition = w.numbers(1) ?? [];
  const chosen = w.constant(int64s(condition.flatMap((value, index) => (value === 0 ? [] : [index]))));
  const x = w.input(0);
  if (w.node.attributes['axis'] === undefined)
    return [w.op('Gather', [w.reshape(x, [product(w.shape(x))]), chosen], { axis: int(0) })];
  return [w.op('Gather', [x, chosen], { axis: int(intAttribute(w.node, 'axis', 0)) })];
}

/** The first lengths[n] steps of each sample in reverse order; lengths must be known before running. */
function reverseSequence(w: Writer): readonly string[] {
  const x = w.input(0);
  const shape = w.shape(x);
  const [batch, time] = [intAttribute(w.node, 'batch_axis', 1), intAttribute(w.node, 'time_axis', 0)];
  const lengths = w.numbers(1) ?? [];
  const steps = shape[time] as number;
  check(
    batch + time === 1 && lengths.length === shape[batch],
    w.node,
    () => 'wants batch and time on the first two axes, and a length for each sample',
  );
  const reversed = w.constant(int64s([...range(steps)].reverse()));
  if (lengths.every((length) => length === steps)) return [w.op('Gather', [x, reversed], { axis: int(time) })];
  const places = lengths.flatMap((length) => range(steps).map((step) => (step < length ? length - 1 - step : step)));
  const byBatch = tensor('int64', [lengths.length, steps, 1], places);
  const order = [1, 0, ...range(shape.length).slice(2)];
  const first = batch === 0 ? x : w.transpose(x, order);
  const gathered = w.op('GatherND', [first, w.constant(byBatch)], { batch_dims: int(1) });
  return [batch === 0 ? gathered : w.transpose(gathered, order)];
}
