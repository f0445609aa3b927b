// Operators that graph optimizers fuse others into (the domain com.microsoft), and root mean square normalization.

import { type Attribute, type Attributes, float, floatAttribute, intAttribute, stringAttribute } from '../graph.ts';
import { check, normalizeAxis } from '../operators/define.ts';
import type { Composite } from './composite.ts';
import { range, type Writer } from './writer.ts';

const normalization: Readonly<Record<string, Attribute['type']>> = { axis: 'int', epsilon: 'float', stash_type: 'int' };
const rootMeanSquare: Composite = {
  inputs: [2, 2],
  attributes: normalization,
  write: (w) => [rmsNormalization(w, w.input(0), w.input(1), intAttribute(w.node, 'axis', -1))],
};

export const fusions: Readonly<Record<string, Composite>> = {
  RMSNormalization: rootMeanSquare,
  // ONNX Runtime's name, in the default domain.
  SimplifiedLayerNormalization: rootMeanSquare,
  'com.microsoft.BiasGelu': { inputs: [2, 2], write: (w) => [w.op('Gelu', [w.add(w.input(0), w.input(1))])] },
  'com.microsoft.FastGelu': {
    inputs: [1, 2],
    write(w) {
      const bias = w.optional(1);
      return [
        w.op('Gelu', [bias === undefined ? w.input(0) : w.add(w.input(0), bias)], {
          approximate: { type: 'string', value: 'tanh' },
        }),
      ];
    },
  },
  'com.microsoft.FusedConv': {
    inputs: [2, 4],
    attributes: {
      activation: 'string',
      activation_params: 'floats',
      auto_pad: 'string',
      dilations: 'ints',
      group: 'int',
      kernel_shape: 'ints',
      pads: 'ints',
      strides: 'ints',
    },
    write(w) {
      const { activation: _name, activation_params: _parameters, ...attributes } = w.node.attributes;
      const bias = w.optional(2);
      const term = w.optional(3);
      const y = w.op('Conv', [w.input(0), w.input(1), ...(bias === undefined ? [] : [bias])], attributes);
      return [activated(w, term === undefined ? y : w.add(y, term))];
    },
  },
  'com.microsoft.FusedGemm': {
    inputs: [2, 3],
    attributes: {
      activation: 'string',
      activation_alpha: 'float',
      activation_beta: 'float',
      activation_gamma: 'float',
      alpha: 'float',
      beta: 'float',
      transA: 'int',
      transB: 'int',
    },
    write(w) {
      const attributes: Attributes = Object.fromEntries(
        Object.entries(w.node.attributes).filter(([name]) => !name.startsWith('activation')),
      );
      return [activated(w, w.op('Gemm', w.node.inputs, attributes))];
    },
  },
  'com.microsoft.FusedMatMul': {
    inputs: [2, 2],
    attributes: { alpha: 'float', transA: 'int', transB: 'int', transBatchA: 'int', transBatchB: 'int' },
    write(w) {
      const factor = (index: number, name: string): string => {
        check(
          intAttribute(w.node, `transBatch${name}`, 0) === 0,
          w.node,
          () => `transposes the batch of ${name}, which is not supported`,
        );
        return intAttribute(w.node, `trans${name}`, 0) === 0 ? w.input(index) : w.transposeLast(w.input(index));
      };
      return [w.scale(w.op('MatMul', [factor(0, 'A'), factor(1, 'B')]), floatAttribute(w.node, 'alpha', 1))];
    },
  },
  'com.microsoft.Gelu': { inputs: [1, 1], write: (w) => [w.op('Gelu', [w.input(0)])] },
  'com.microsoft.QuickGelu': {
    inputs: [1, 1],
    attributes: { alpha: 'float' },
    write(w) {
      const x = w.input(0);
      return [w.mul(x, w.op('Sigmoid', [w.scale(x, floatAttribute(w.node, 'alpha', 1.702))]))];
    },
  },
  'com.microsoft.SkipLayerNormalization': {
    inputs: [3, 5],
    attributes: { epsilon: 'float' },
    write(w) {
      const sum = skipped(w, 4);
      const epsilon = floatAttribute(w.node, 'epsilon', 1e-12);
      return [w.layerNormalization(sum, w.input(2), w.optional(3), epsilon), undefined, undefined, sum];
    },
  },
  'com.microsoft.SkipSimplifiedLayerNormalization': {
    inputs: [3, 4],
    attributes: { epsilon: 'float' },
    write(w) {
      const sum = skipped(w, 3);
      return [rmsNormalization(w, sum, w.input(2), -1), undefined, undefined, sum];
    },
  },
};

/** Inputs 0 and 1 added, plus a bias if there is one. */
function skipped(w: Writer, biasIndex: number): string {
  const bias = w.optional(biasIndex);
  const sum = w.add(w.input(0), w.input(1));
  return bias === undefined ? sum : w.add(sum, bias);
}

/** scale · x / √(mean(x²) + ε) over the axes from `axis` on. */
function rmsNormalization(w: Writer, x: string, scale: string, axis: number): string {
  const rank = w.shape(x).length;
  const axes = range(rank).slice(normalizeAxis(w.node, axis, rank));
  const mean = w.reduce('ReduceMean', w.mul(x, x), axes);
  const root = w.op('Sqrt', [w.add(mean, w.like(mean, floatAttribute(w.node, 'epsilon', 1e-5)))]);
  return w.mul(w.div(x, root), scale);
}

/** The activation that a fused node names. */
function activated(w: Writer, x: string): string {
  const { node } = w;
  const name = stringAttribute(node, 'activation', '');
  const list = node.attributes['activation_params'];
  const parameter = (index: number, attribute: string, standard: number): Attribute =>
    float((list?.type === 'floats' ? list.value[index] : undefined) ?? floatAttribute(node, attribute, standard));
  const alpha = (standard: number): Attribute => parameter(0, 'activation_alpha', standard);
  switch (name) {
    case '':
      return x;
    case 'Relu':
    case 'Sigmoid':
    case 'Tanh':
    case 'HardSwish':
      return w.op(name, [x]);
    case 'LeakyRelu':
      return w.op(name, [x], { alpha: alpha(0.01) });
    case 'HardSigmoid':
      return w.op(name, [x], { alpha: alpha(0.2), beta: parameter(1, 'activation_beta', 0.5) });
    case 'Clip':
      return list?.type === 'floats'
        ? w.op(name, [x, w.like(x, list.value[0] as number), w.like(x, list.value[1] as number)])
        : x;
    default:
      return check(
        false,
        node,
        () => `has the activation "${name}", which is not supported; export the model before it is optimized`,
      ) as never;
  }
}
