// Long computations in small steps, as generators: between two steps the caller can run other work, report progress, or
// stop.

import type { Clock } from '../clock.ts';

/** A computation that yields the fraction done, from 0 to 1. */
export type Steps<Result> = Generator<number, Result, void>;

/** Runs all steps on the calling thread. */
export function finish<Result>(steps: Steps<Result>, signal?: AbortSignal): Result {
  for (;;) {
    signal?.throwIfAborted();
    const step = steps.next();
    if (step.done === true) return step.value;
  }
}

/** Milliseconds of computing between two returns to the event loop. */
const sliceMs = 10;

/** Runs a long computation in slices; undefined if `isOver` says that the result is no longer needed. */
export async function runInSlices<Result>(
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
