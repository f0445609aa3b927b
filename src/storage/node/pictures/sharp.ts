// The package that decodes pictures, loaded where the first is read: it is optional, for machines that train on none.

import { InputError } from '../../../errors.ts';

/** What the package exports. */
export type Sharp = typeof import('sharp').default;

/** Loads it. Throws InputError where it is missing; `load` is for tests. */
export async function loadSharp(load: () => Promise<unknown> = () => import('sharp')): Promise<Sharp> {
  try {
    const sharp = ((await load()) as { default: Sharp }).default;
    // Threads of our own decode pictures side by side; a picture takes one. What is read once is not read again soon.
    sharp.concurrency(1);
    sharp.cache(false);
    return sharp;
  } catch (error) {
    const [reason] = (error as Error).message.split('\n');
    throw new InputError(
      `Pictures are read by the package sharp, which is not to be had here (${reason}): npm install sharp.`,
    );
  }
}
