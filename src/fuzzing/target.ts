// A target of fuzzing: it makes the input of a seed and takes it as the product does. The runner (fuzz.ts) judges the
// outcome.

import type { Random } from '../random.ts';

/** A class of errors that a caller can act on (errors.ts). */
export type Refusal = new (message: string) => Error;

/** A reader of files or messages that others wrote. */
export interface Target<Input = unknown> {
  /** The input of a seed: the same for the same random numbers. */
  input(random: Random): Input;
  /**
   * Takes the input as the product does, and checks the result (by a round trip, say). Returns if the input was
   * accepted, throws one of the target's refusals if it was not. Any other error is a failure.
   */
  take(input: Input): void | Promise<void>;
}

/** A target that is not made yet: making it may take long. */
export interface TargetEntry {
  /** Such as 'safetensors'. */
  readonly name: string;
  /** Its part of all inputs, relative to other targets' parts. 0: only when it is asked for by name. */
  readonly share: number;
  /** The errors by which it refuses an input. */
  readonly refusals: readonly Refusal[];
  create(): Target | Promise<Target>;
}

/** How many of `inputCount` inputs each target gets: in proportion to its share, at least one. */
export function shareInputs(targets: readonly TargetEntry[], inputCount: number): ReadonlyMap<string, number> {
  const sharing = targets.filter(({ share }) => share > 0);
  const total = sharing.reduce((sum, { share }) => sum + share, 0);
  const counts = new Map(
    sharing.map(({ name, share }) => [name, Math.max(1, Math.floor((inputCount * share) / total))]),
  );
  // The rest from rounding goes to the first, which is fast.
  const rest = inputCount - [...counts.values()].reduce((sum, count) => sum + count, 0);
  const [first] = sharing;
  if (first !== undefined && rest > 0) counts.set(first.name, (counts.get(first.name) ?? 0) + rest);
  return counts;
}
