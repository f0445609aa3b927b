// What is drawn for a picture.

import { createRandom, type Random } from '../../../random.ts';

/** What a picture's augmentation is drawn from. */
export interface Draw {
  readonly seed: number;
  readonly epoch: number;
  readonly sample: number;
}

/** The random numbers of one picture in one epoch. */
export function drawOf({ seed, epoch, sample }: Draw): Random {
  return createRandom(seed, epoch, sample, 0xa06);
}

/** Uniform in [least, most). */
export function between(random: Random, least: number, most: number): number {
  return least + random.uniform() * (most - least);
}
