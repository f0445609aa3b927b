// The table of gradient rules: one entry an operator. An operator added to names.ts does not compile until it has its
// entry here.

import { fail } from '../graph/operators/define.ts';
import type { NeuralName, OperatorName, RandomName } from '../graph/operators/names.ts';
import { gradientOf, type RuleContext, type RuleEntry } from './rule.ts';
import { conv, convTranspose } from './rules/convolution.ts';
import { elementwiseRules } from './rules/elementwise.ts';
import { maxPool } from './rules/max-pool.ts';
import {
  batchNormalization,
  groupNormalization,
  instanceNormalization,
  layerNormalization,
  logSoftmax,
  lpNormalization,
  softmax,
} from './rules/normalization.ts';
import { averagePool, globalAveragePool, globalMaxPool } from './rules/pooling.ts';
import { gemm, matMul } from './rules/products.ts';
import { reductionRules } from './rules/reductions.ts';
import { resize } from './rules/resize.ts';
import { shapeRules } from './rules/shapes.ts';

const neuralRules: Readonly<Record<NeuralName, RuleEntry>> = {
  AveragePool: averagePool,
  BatchNormalization: batchNormalization,
  Conv: conv,
  ConvTranspose: convTranspose,
  Dropout: inertDropout,
  Gemm: gemm,
  GlobalAveragePool: globalAveragePool,
  GlobalMaxPool: globalMaxPool,
  GroupNormalization: groupNormalization,
  InstanceNormalization: instanceNormalization,
  LayerNormalization: layerNormalization,
  LogSoftmax: logSoftmax,
  LpNormalization: lpNormalization,
  MatMul: matMul,
  MaxPool: maxPool,
  Resize: resize,
  Softmax: softmax,
};

/** Training replaces random nodes by inputs (dropout.ts); no gradient passes to a probability. */
const randomRules: Readonly<Record<RandomName, RuleEntry>> = {
  Bernoulli: 'not-differentiable',
  RandomNormal: 'not-differentiable',
  RandomNormalLike: 'not-differentiable',
  RandomUniform: 'not-differentiable',
  RandomUniformLike: 'not-differentiable',
};

/** Every operator's gradient rule, or 'not-differentiable'. */
export const gradientRules: Readonly<Record<OperatorName, RuleEntry>> = {
  ...elementwiseRules,
  ...reductionRules,
  ...shapeRules,
  ...neuralRules,
  ...randomRules,
};

/** dx = g: a dropout that drops is replaced by a product with its mask before differentiation (dropout.ts). */
function inertDropout(context: RuleContext): readonly (string | undefined)[] {
  const { emitter: e, node } = context;
  const [ratio, training] = [1, 2].map((index) => {
    const value = e.constantValue(node.inputs[index] ?? '');
    return value === undefined ? undefined : Number(value.data[0]);
  });
  const trainingInput = node.inputs[2] ?? '';
  const drops = trainingInput !== '' && training !== 0 && ratio !== 0;
  if (drops)
    fail(
      node,
      'still drops at random; its ratio and training mode must be constants so that its mask can become an input',
    );
  return [gradientOf(context), undefined, undefined];
}
