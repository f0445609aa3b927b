// Settings of a strict run that do not go together.

import { InputError } from '../errors.ts';
import type { TrainSettings } from '../runtime/run/settings.ts';

/** Throws InputError for what a strict run cannot have, or lacks. */
export function checkStrict({ strict, grain, microBatch, clipNorm, replicateBatchNorm }: TrainSettings): void {
  if (grain !== undefined && !strict) throw new InputError(`--grain ${grain} needs --strict.`);
  if (!strict) return;
  if (microBatch === undefined)
    throw new InputError('--strict needs --micro-batch: the order in which gradients are added depends on it.');
  if (grain !== undefined && microBatch % grain !== 0)
    throw new InputError(
      `--micro-batch ${microBatch} is not a multiple of --grain ${grain}: choose a grain that divides the micro-batch.`,
    );
  if (clipNorm !== undefined)
    throw new InputError(
      '--strict and --clip-norm cannot both be given: the norm is added up by stages, which depend on the plan.',
    );
  if (replicateBatchNorm)
    throw new InputError(
      '--strict and --replicate-batch-norm cannot both be given: statistics would depend on how samples are shared.',
    );
}
