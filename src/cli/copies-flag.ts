// `--replicate-every` of the commands that plan and predict: whether a run makes copies for the case of a loss, which
// take memory.

import type { Command } from 'commander';
import { InputError } from '../errors.ts';

/** Adds the flag. */
export function addCopiesFlag(command: Command): Command {
  return command.option(
    '--replicate-every <N>',
    'as of asteroid train; 0 leaves out the memory that copies for the case of a loss take',
  );
}

/** Whether copies are made. Throws InputError. */
export function isCopied({ replicateEvery }: { readonly replicateEvery?: string }): boolean {
  const rounds = Number(replicateEvery ?? '1');
  if (replicateEvery?.trim() === '' || !Number.isInteger(rounds) || rounds < 0)
    throw new InputError(`--replicate-every ${replicateEvery} must be a whole number of updates, 0 for no copies.`);
  return rounds > 0;
}
