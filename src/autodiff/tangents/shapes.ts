// Tangents of the operators that move, repeat, slice and join elements: all are linear in those elements.

import type { ShapeName } from '../../graph/operators/names.ts';
import { mul } from '../expressions.ts';
import { scatteredAdd, scatterWeights } from '../rules/indexing.ts';
import { linear, type TangentContext, type TangentEntry, type TangentRule, term, total } from './rule.ts';

export const shapeTangents: Readonly<Record<ShapeName, TangentEntry>> = {
  Concat: linear(),
  Constant: 'not-differentiable',
  ConstantOfShape: 'not-differentiable',
  DepthToSpace: linear(0),
  Expand: linear(0),
  EyeLike: 'not-differentiable',
  Flatten: linear(0),
  Gather: linear(0),
  GatherElements: linear(0),
  GatherND: linear(0),
  NonZero: 'not-differentiable',
  OneHot: 'not-differentiable',
  // linear in the data and in the padding value (input 2)
  Pad: linear(0, 2),
  Range: 'not-differentiable',
  Reshape: linear(0),
  ScatterElements: scatter,
  ScatterND: scatter,
  Shape: 'not-differentiable',
  Size: 'not-differentiable',
  Slice: linear(0),
  SpaceToDepth: linear(0),
  Split: linear(0),
  Squeeze: linear(0),
  Tile: linear(0),
  Transpose: linear(0),
  Trilu: linear(0),
  Unsqueeze: linear(0),
};

const scattered: TangentRule = linear(0, 2);

/**
 * Assignment or add: linear in data and updates. Other reductions: the weights of rules/indexing.ts times the tangents.
 */
function scatter(context: TangentContext): readonly (string | undefined)[] {
  const e = context.emitter;
  const weights = scatterWeights(context);
  if (weights === undefined) return scattered(context);
  return [
    total(context, [
      term(context, 0, (data) => mul(e, weights.data(), data)),
      term(context, 2, (updates) => scatteredAdd(context, mul(e, weights.updates(), updates))),
    ]),
  ];
}
