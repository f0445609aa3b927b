// Long computations in small steps, as generators: between two steps whoever drives them can let others run, show how
// far it is, or stop.

import type { Clock } from '../clock.ts';

/** Yields about how much is done, from 0 to 1. */
export type Steps<Result> = Generator<number, Result, void>;

/** Runs all steps on the calling thread. */
export function finish<Result>(steps: Steps<Result>, signal?: AbortSignal): Result {
  for (;;) {
    signal?.throwIfAborted();
    const step = steps.next();
    if (step.done === true) return step.value;
  }
}

/** Computing between two looks at what else there is to do. */
const sliceMs = 10;

/** Runs a long computation in slices; undefined when `isOver` says that nobody wants it any more. */
export async function atLeisure<Result>(
  steps: Steps<Result>,
  clock: Clock,
  isOver: () => boolean,
): Promise<Result | undefined> {
  for (;;) {
    const endMs = clock.now() + sliceMs;
    while (clock.now() < endMs) {
      const step = steps.next();
      if (step.done === true) return step.value;
    }
    await new Promise<void>((resolve) => clock.after(0, resolve));
    if (isOver()) return undefined;
  }
}
