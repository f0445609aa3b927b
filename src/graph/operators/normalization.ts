// Normalizations: values scaled to mean 0 and variance 1 (or to norm 1) over some axes, then scaled and shifted;
// Softmax; Dropout. Variances are the population's (divided by the count), as in ONNX.

import { floatAttribute, intAttribute, type Node } from '../graph.ts';
import { type ElementType, elementCount, sameShape, type Tensor, type ValueType } from '../tensor.ts';
import {
  boolOnly,
  check,
  define,
  fail,
  floatTypes,
  type Inputs,
  normalizeAxis,
  required,
  shapeText,
  typeText,
} from './define.ts';
import type { OperatorDefinition } from './definition.ts';
import { broadcastOffsets, broadcastsTo, span } from './indexing.ts';
import type { NeuralName } from './names.ts';
import { type Numbers, numbers, store } from './numbers.ts';

type NormalizationName =
  | 'BatchNormalization'
  | 'Dropout'
  | 'GroupNormalization'
  | 'InstanceNormalization'
  | 'LayerNormalization'
  | 'LogSoftmax'
  | 'LpNormalization'
  | 'Softmax';

export const normalizations: Readonly<Record<NormalizationName & NeuralName, OperatorDefinition>> = {
  BatchNormalization: define({
    inputs: [5, 5],
    outputs: [1, 3],
    types: [floatTypes],
    attributes: { epsilon: 'float', momentum: 'float', training_mode: 'int' },
    infer(node, inputs) {
      const x = required(inputs, 0);
      check(x.shape.length >= 2, node, () => `wants an input [N, C, ...], not ${shapeText(x.shape)}`);
      for (const index of [1, 2, 3, 4]) checkChannels(node, inputs, index, x.shape[1] as number);
      const training = intAttribute(node, 'training_mode', 0) !== 0;
      check(training || node.outputs.length === 1, node, () => 'asks for running statistics without training_mode = 1');
      const [mean, variance] = [required(inputs, 3), required(inputs, 4)];
      return [
        { type: x.type, shape: x.shape },
        { type: mean.type, shape: mean.shape },
        { type: variance.type, shape: variance.shape },
      ];
    },
    evaluate: (node, inputs) => batchNormalization(node, inputs),
  }),
  // Inference, and training with ratio 0, pass the data through. Random masks are inputs of the differentiated graph
  // instead.
  Dropout: define({
    inputs: [1, 3],
    outputs: [1, 2],
    types: [floatTypes, floatTypes, boolOnly],
    attributes: { seed: 'int' },
    infer(node, inputs) {
      const { type, shape } = required(inputs, 0);
      for (const index of [1, 2]) {
        const input = inputs[index];
        check(
          !input || elementCount(input.shape) === 1,
          node,
          () => `wants a scalar in input ${index}, not ${input && typeText(input)}`,
        );
      }
      return [
        { type, shape },
        { type: 'bool', shape },
      ];
    },
    evaluate(node, inputs) {
      const x = required(inputs, 0);
      const ratio = inputs[1] ? (numbers(inputs[1])[0] as number) : 0.5;
      const training = Boolean(inputs[2]?.data[0]);
      if (training && ratio !== 0)
        fail(
          node,
          `drops elements at random (training_mode with ratio ${ratio}), which has no defined value; give it ` +
            'an explicit mask by Mul',
        );
      return [x, store('bool', x.shape, new Float64Array(x.data.length).fill(1))];
    },
  }),
  GroupNormalization: define({
    inputs: [3, 3],
    types: [floatTypes],
    sameType: 'all',
    attributes: { epsilon: 'float', num_groups: 'int', stash_type: 'int' },
    infer(node, inputs) {
      const { type, shape } = required(inputs, 0);
      const channels = shape[1] ?? 0;
      check(shape.length >= 3, node, () => `wants an input [N, C, D1, ...], not ${shapeText(shape)}`);
      const groups = intAttribute(node, 'num_groups', 0);
      check(
        groups > 0 && channels % groups === 0,
        node,
        () => `has num_groups ${groups}, which does not divide its ${channels} channels`,
      );
      for (const index of [1, 2]) checkChannels(node, inputs, index, channels);
      return [{ type, shape }];
    },
    evaluate(node, inputs) {
      const { shape } = required(inputs, 0);
      return [normalizePerChannel(node, inputs, span(shape, 1) / intAttribute(node, 'num_groups', 1))];
    },
  }),
  InstanceNormalization: define({
    inputs: [3, 3],
    types: [floatTypes],
    sameType: 'all',
    attributes: { epsilon: 'float' },
    infer(node, inputs) {
      const { type, shape } = required(inputs, 0);
      check(shape.length >= 3, node, () => `wants an input [N, C, D1, ...], not ${shapeText(shape)}`);
      for (const index of [1, 2]) checkChannels(node, inputs, index, shape[1] as number);
      return [{ type, shape }];
    },
    evaluate: (node, inputs) => [normalizePerChannel(node, inputs, span(required(inputs, 0).shape, 2))],
  }),
  LayerNormalization: define({
    inputs: [2, 3],
    outputs: [1, 3],
    types: [floatTypes],
    sameType: 'all',
    attributes: { axis: 'int', epsilon: 'float', stash_type: 'int' },
    infer(node, inputs) {
      const { type, shape } = required(inputs, 0);
      const axis = normalizeAxis(node, intAttribute(node, 'axis', -1), shape.length);
      for (const index of [1, 2]) {
        const input = inputs[index];
        check(
          !input || broadcastsTo(input.shape, shape),
          node,
          () =>
            `has a scale or bias of shape ${input && shapeText(input.shape)}, which does not broadcast to its ` +
            `input's ${shapeText(shape)}`,
        );
      }
      const statistics: ValueType = {
        type: statisticsType(type),
        shape: shape.map((dimension, position) => (position < axis ? dimension : 1)),
      };
      return [{ type, shape }, statistics, statistics];
    },
    evaluate: (node, inputs) => layerNormalization(node, inputs),
  }),
  LogSoftmax: alongAxis((x) => {
    const maximum = x.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
    const logSum = Math.log(x.reduce((sum, value) => sum + Math.exp(value - maximum), 0));
    return x.map((value) => value - maximum - logSum);
  }),
  // x / ‖x‖ₚ along the axis; 0 if the norm is 0
  LpNormalization: alongAxis(
    (x, node) => {
      const norm =
        intAttribute(node, 'p', 2) === 1
          ? x.reduce((sum, value) => sum + Math.abs(value), 0)
          : Math.sqrt(x.reduce((sum, value) => sum + value * value, 0));
      return x.map((value) => (norm === 0 ? 0 : value / norm));
    },
    (node) =>
      check(
        [1, 2].includes(intAttribute(node, 'p', 2)),
        node,
        () => `has p = ${intAttribute(node, 'p', 2)}; it may be 1 or 2`,
      ),
  ),
  Softmax: alongAxis((x) => {
    const maximum = x.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
    const powers = x.map((value) => Math.exp(value - maximum));
    const sum = powers.reduce((a, b) => a + b, 0);
    return powers.map((value) => value / sum);
  }),
};

function checkChannels(node: Node, inputs: Inputs<ValueType>, index: number, channels: number): void {
  const input = required(inputs, index);
  check(
    sameShape(input.shape, [channels]),
    node,
    () =>
      `has "${node.inputs[index]}" of shape ${shapeText(input.shape)}; it must be [${channels}], one entry a channel`,
  );
}

/**
 * The type of LayerNormalization's statistics: float32 as in ONNX (stash_type 1), but float64 for float64, so that
 * gradients can be checked.
 */
function statisticsType(type: ElementType): ElementType {
  return type === 'float64' ? 'float64' : 'float32';
}

/** Mean and population variance of the `length` elements from x[start] on. */
function moments(x: Numbers, start: number, length: number): readonly [mean: number, variance: number] {
  let sum = 0;
  for (let index = 0; index < length; index++) sum += x[start + index] as number;
  const mean = sum / length;
  let squares = 0;
  for (let index = 0; index < length; index++) squares += ((x[start + index] as number) - mean) ** 2;
  return [mean, squares / length];
}

/**
 * Y = (X − mean)/√(variance + ε)·scale + B per channel. In training mode the statistics are the batch's, and the second
 * and third output are running·momentum + batch·(1 − momentum).
 */
function batchNormalization(node: Node, inputs: Inputs<Tensor>): readonly Tensor[] {
  const x = required(inputs, 0);
  const [scale, bias, mean, variance] = [1, 2, 3, 4].map((index) => numbers(required(inputs, index))) as [
    Numbers,
    Numbers,
    Numbers,
    Numbers,
  ];
  const epsilon = floatAttribute(node, 'epsilon', 1e-5);
  const momentum = floatAttribute(node, 'momentum', 0.9);
  const training = intAttribute(node, 'training_mode', 0) !== 0;
  const [batch, channels] = x.shape as [number, number];
  const inner = span(x.shape, 2);
  const values = numbers(x);
  const y = new Float64Array(values.length);
  const [runningMean, runningVariance] = [Float64Array.from(mean), Float64Array.from(variance)];
  const lane = new Float64Array(batch * inner);
  for (let channel = 0; channel < channels; channel++) {
    for (let n = 0; n < batch; n++) {
      const start = (n * channels + channel) * inner;
      lane.set(values.subarray(start, start + inner), n * inner);
    }
    const [m, v] = training ? moments(lane, 0, lane.length) : [mean[channel] as number, variance[channel] as number];
    const factor = (scale[channel] as number) / Math.sqrt(v + epsilon);
    for (let n = 0; n < batch; n++) {
      const start = (n * channels + channel) * inner;
      for (let index = 0; index < inner; index++)
        y[start + index] = ((lane[n * inner + index] as number) - m) * factor + (bias[channel] as number);
    }
    runningMean[channel] = (mean[channel] as number) * momentum + m * (1 - momentum);
    runningVariance[channel] = (variance[channel] as number) * momentum + v * (1 - momentum);
  }
  const [meanType, varianceType] = [required(inputs, 3), required(inputs, 4)];
  return [
    store(x.type, x.shape, y),
    store(meanType.type, meanType.shape, runningMean),
    store(varianceType.type, varianceType.shape, runningVariance),
  ];
}

/** Instance and group normalization: statistics over runs of `length` elements, scale and bias by channel. */
function normalizePerChannel(node: Node, inputs: Inputs<Tensor>, length: number): Tensor {
  const x = required(inputs, 0);
  const [values, scale, bias] = [numbers(x), numbers(required(inputs, 1)), numbers(required(inputs, 2))];
  const epsilon = floatAttribute(node, 'epsilon', 1e-5);
  const [channels, inner] = [x.shape[1] as number, span(x.shape, 2)];
  const y = new Float64Array(values.length);
  for (let start = 0; start < values.length; start += length) {
    const [mean, variance] = moments(values, start, length);
    for (let index = start; index < start + length; index++) {
      const channel = Math.floor(index / inner) % channels;
      y[index] =
        (((values[index] as number) - mean) / Math.sqrt(variance + epsilon)) * (scale[channel] as number) +
        (bias[channel] as number);
    }
  }
  return store(x.type, x.shape, y);
}

/** Y, mean and 1/√(variance + ε), over the axes from `axis` on. */
function layerNormalization(node: Node, inputs: Inputs<Tensor>): readonly Tensor[] {
  const x = required(inputs, 0);
  const axis = normalizeAxis(node, intAttribute(node, 'axis', -1), x.shape.length);
  const epsilon = floatAttribute(node, 'epsilon', 1e-5);
  const [values, scale, bias] = [numbers(x), numbers(required(inputs, 1)), inputs[2] && numbers(inputs[2])];
  const scaleOffsets = broadcastOffsets(required(inputs, 1).shape, x.shape);
  const biasOffsets = inputs[2] && broadcastOffsets(inputs[2].shape, x.shape);
  const [rows, length] = [span(x.shape, 0, axis), span(x.shape, axis)];
  const [y, means, inverses] = [new Float64Array(values.length), new Float64Array(rows), new Float64Array(rows)];
  for (let row = 0; row < rows; row++) {
    const [mean, variance] = moments(values, row * length, length);
    const inverse = 1 / Math.sqrt(variance + epsilon);
    for (let index = row * length; index < (row + 1) * length; index++) {
      const shift = bias && biasOffsets ? (bias[biasOffsets[index] as number] as number) : 0;
      y[index] =
        ((values[index] as number) - mean) * inverse * (scale[scaleOffsets[index] as number] as number) + shift;
    }
    [means[row], inverses[row]] = [mean, inverse];
  }
  const statistics = x.shape.map((dimension, position) => (position < axis ? dimension : 1));
  const type = statisticsType(x.type);
  return [store(x.type, x.shape, y), store(type, statistics, means), store(type, statistics, inverses)];
}

/** An operator that maps each line of elements along `axis` (default: the last) to a line. */
function alongAxis(
  f: (line: Float64Array, node: Node) => Float64Array,
  validate?: (node: Node) => void,
): OperatorDefinition {
  return define({
    inputs: [1, 1],
    types: [floatTypes],
    attributes: validate ? { axis: 'int', p: 'int' } : { axis: 'int' },
    infer(node, inputs) {
      const { type, shape } = required(inputs, 0);
      normalizeAxis(node, intAttribute(node, 'axis', -1), shape.length);
      validate?.(node);
      return [{ type, shape }];
    },
    evaluate(node, inputs) {
      const x = required(inputs, 0);
      const axis = normalizeAxis(node, intAttribute(node, 'axis', -1), x.shape.length);
      const [length, inner] = [x.shape[axis] as number, span(x.shape, axis + 1)];
      const values = numbers(x);
      const y = new Float64Array(values.length);
      const line = new Float64Array(length);
      for (let lane = 0; lane < values.length / Math.max(1, length); lane++) {
        const start = Math.floor(lane / inner) * length * inner + (lane % inner);
        for (let index = 0; index < length; index++) line[index] = values[start + index * inner] as number;
        f(line, node).forEach((value, index) => {
          y[start + index * inner] = value;
        });
      }
      return [store(x.type, x.shape, y)];
    },
  });
}
