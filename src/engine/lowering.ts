// Which lowering fits an engine's kernels.

import type { TrainingPass } from '../autodiff/differentiate.ts';
import { lowerPass } from '../lowering/blocked.ts';
import type { Engine } from './engine.ts';

/**
 * The options of `differentiate` for an engine: how to rewrite a pass for its kernels, if it has any that plain graphs
 * do not use.
 */
export function loweringOf({ blockSize }: Pick<Engine, 'blockSize'>): {
  readonly lower?: (pass: TrainingPass) => TrainingPass;
} {
  return blockSize === undefined ? {} : { lower: (pass) => lowerPass(pass, { block: blockSize }) };
}
