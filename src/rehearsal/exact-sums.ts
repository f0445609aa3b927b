// What an exact stage adds up in a round, and the witnesses that travel with its gradients.

import type { Versioned } from './exact-state.ts';

/** The sums of a round; gradients and outputs by layer. */
export interface ExactSums {
  /** The statistics before the round. */
  readonly statistics: readonly Versioned[];
  readonly gradients: number[];
  readonly outputs: number[];
  sampleCount: number;
  /** Samples in the group's sums, once there are any. */
  summedCount: number | undefined;
  lossSum: number;
  correctCount: number;
}

/** In the all-reduced vector, behind the layers' sums: members, samples, rounds, epochs. */
export const witnessCount = 4;

/** The sums at the begin of a round. */
export function beginSums(statistics: readonly Versioned[]): ExactSums {
  const [gradients, outputs] = [statistics.map(() => 0), statistics.map(() => 0)];
  return { statistics, gradients, outputs, sampleCount: 0, summedCount: undefined, lossSum: 0, correctCount: 0 };
}

/** Takes the summed witnesses of a bucket, and says what is wrong with them. */
export function* takeWitnesses(
  sums: ExactSums,
  witnesses: ArrayLike<number>,
  own: { readonly round: number; readonly epoch: number },
): Generator<string> {
  const [members, samples, rounds, epochs] = Array.from(witnesses) as [number, number, number, number];
  if (rounds !== members * own.round)
    yield `sums of gradients of another round came in: ${rounds} of ${members} members`;
  if (epochs !== members * own.epoch)
    yield `sums of gradients of another epoch came in: ${epochs} of ${members} members`;
  if (sums.summedCount !== undefined && samples !== sums.summedCount)
    yield `the sums of one bucket are of ${sums.summedCount} samples, those of another of ${samples}`;
  sums.summedCount = samples;
}
