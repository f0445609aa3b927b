// Clipping by the global gradient norm, as torch.nn.utils.clip_grad_norm_: every device reports a sum of squares, the
// coordinator turns their total into one factor, and the update multiplies by it.

import { assert } from '../assert.ts';
import { Emitter } from '../graph/emitter.ts';
import { gradientName } from '../graph/gradient-name.ts';
import { type Graph, int } from '../graph/graph.ts';
import { dataTypeCode } from '../graph/operators/data-types.ts';
import { scalar } from '../graph/tensor.ts';
import type { Parameter } from './names.ts';

/**
 * Inputs: `gradientName` of each parameter. Output: `squaredNorm`, a float32 scalar, the sum of the squares of all
 * their elements.
 */
export function squaredNormGraph(parameters: readonly Parameter[]): Graph {
  const emitter = new Emitter();
  const squares = parameters.map(({ name, type = 'float32', shape }) => {
    const square = emitter.emit('ReduceSumSquare', [emitter.input(gradientName(name), type, shape)], {
      keepdims: int(0),
    });
    return type === 'float32' ? square : emitter.emit('Cast', [square], { to: int(dataTypeCode('float32')) });
  });
  if (squares.length === 0) emitter.initializer('squaredNorm', scalar('float32', 0));
  else
    emitter.append({
      operator: 'Sum',
      domain: '',
      name: 'squaredNorm',
      inputs: squares,
      outputs: ['squaredNorm'],
      attributes: {},
    });
  return emitter.build('squared-norm', ['squaredNorm']);
}

/**
 * Inputs: `gradientName` of each parameter. Outputs: `squaredNormName` of each, float32 scalars; to be computed right
 * after each gradient.
 */
export function squaredNormsGraph(parameters: readonly Parameter[]): Graph {
  const emitter = new Emitter();
  for (const { name, type = 'float32', shape } of parameters) {
    const inputs = [emitter.input(gradientName(name), type, shape)];
    const outputs = [squaredNormName(name)];
    emitter.append({
      operator: 'ReduceSumSquare',
      domain: '',
      name: `square ${name}`,
      inputs,
      outputs,
      attributes: { keepdims: int(0) },
    });
  }
  return emitter.build(
    'squared-norms',
    parameters.map(({ name }) => squaredNormName(name)),
  );
}

/** The name, in graphs, of the sum of the squares of a parameter's gradient. */
export function squaredNormName(parameter: string): string {
  return `squaredNorm(${parameter})`;
}

/**
 * The factor for all gradients, whose squares sum to `squaredNorm`: maxNorm / (norm + 1e-6), at most 1. NaN for NaN.
 */
export function clipScale(squaredNorm: number, maxNorm: number): number {
  assert(maxNorm > 0, `clipping to a norm of ${maxNorm}`);
  return Math.min(1, maxNorm / (Math.sqrt(squaredNorm) + 1e-6));
}
