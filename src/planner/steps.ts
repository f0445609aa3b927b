// Long computations in small steps, as generators: between two steps whoever drives them can let others run, show how far it is, or stop.

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
