// The table of tangent rules: one entry an operator. An operator added to names.ts does not compile until it has its
// entry here.

import type { OperatorName, RandomName } from '../graph/operators/names.ts';
import { elementwiseTangents } from './tangents/elementwise.ts';
import { neuralTangents } from './tangents/neural.ts';
import { reductionTangents } from './tangents/reductions.ts';
import type { TangentEntry } from './tangents/rule.ts';
import { shapeTangents } from './tangents/shapes.ts';

const randomTangents: Readonly<Record<RandomName, TangentEntry>> = {
  Bernoulli: 'not-differentiable',
  RandomNormal: 'not-differentiable',
  RandomNormalLike: 'not-differentiable',
  RandomUniform: 'not-differentiable',
  RandomUniformLike: 'not-differentiable',
};

/** Every operator's tangent rule, or 'not-differentiable'. */
export const tangentRules: Readonly<Record<OperatorName, TangentEntry>> = {
  ...elementwiseTangents,
  ...reductionTangents,
  ...shapeTangents,
  ...neuralTangents,
  ...randomTangents,
};
