// Tangents of the reductions: the derivative of each element (rules/reductions.ts) times ẋ, summed over the reduced
// axes.

import { int, intAttribute } from '../../graph/graph.ts';
import type { ReductionName } from '../../graph/operators/names.ts';
import { reduceSum, reshape } from '../expressions.ts';
import { outputOf } from '../rule.ts';
import { type ReductionDerivative, reductionDerivatives, reductionValues } from '../rules/reductions.ts';
import { linear, type TangentEntry, type TangentRule } from './rule.ts';

export const reductionTangents: Readonly<Record<ReductionName, TangentEntry>> = {
  ArgMax: 'not-differentiable',
  ArgMin: 'not-differentiable',
  CumSum: linear(0),
  ReduceL1: reduction(reductionDerivatives.ReduceL1),
  ReduceL2: reduction(reductionDerivatives.ReduceL2),
  ReduceLogSum: reduction(reductionDerivatives.ReduceLogSum),
  ReduceLogSumExp: reduction(reductionDerivatives.ReduceLogSumExp),
  ReduceMax: reduction(reductionDerivatives.ReduceMax),
  ReduceMean: linear(0),
  ReduceMin: reduction(reductionDerivatives.ReduceMin),
  ReduceProd: reduction(reductionDerivatives.ReduceProd),
  ReduceSum: linear(0),
  ReduceSumSquare: reduction(reductionDerivatives.ReduceSumSquare),
  // ẋ at the same places
  TopK: (context) => [
    context.emitter.emit('GatherElements', [context.tangents[0] as string, outputOf(context, 1)], {
      axis: int(intAttribute(context.node, 'axis', -1)),
    }),
    undefined,
  ],
};

/** ẏ = Σ dy/dx · ẋ over the reduced axes */
function reduction(derivative: ReductionDerivative): TangentRule {
  return (context) => {
    const { emitter: e, tangents } = context;
    const values = reductionValues(context);
    const moved = derivative(e, tangents[0] as string, values);
    return [reshape(e, reduceSum(e, moved, values.axes), e.shape(outputOf(context)))];
  };
}
