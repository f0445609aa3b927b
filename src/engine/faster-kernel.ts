// Two ways to run one graph, of which the faster is found by trying.

import type { Kernel } from './queued.ts';

/** Runs of each kernel before one is chosen. The first of each warms it up and does not count. */
const trialCount = 3;

/**
 * Runs both kernels in turn at first, each in earnest, then only the one whose fastest trial was faster; the other is
 * released.
 */
export function fasterKernel(first: Kernel, second: Kernel, now: () => number = () => performance.now()): Kernel {
  const trials = [first, second].map((kernel) => ({ kernel, runCount: 0, bestMs: Number.POSITIVE_INFINITY }));
  let chosen: Kernel | undefined;
  return {
    async run(inputs, wanted, buffers) {
      if (chosen !== undefined) return chosen.run(inputs, wanted, buffers);
      const trial = trials.reduce((a, b) => (b.runCount < a.runCount ? b : a));
      const start = now();
      const results = await trial.kernel.run(inputs, wanted, buffers);
      if (trial.runCount++ > 0) trial.bestMs = Math.min(trial.bestMs, now() - start);
      if (trials.every(({ runCount }) => runCount >= trialCount)) {
        const [winner, loser] = trials.toSorted((a, b) => a.bestMs - b.bestMs).map(({ kernel }) => kernel) as [
          Kernel,
          Kernel,
        ];
        chosen = winner;
        await loser.release();
      }
      return results;
    },
    async release() {
      for (const { kernel } of trials) if (chosen === undefined || kernel === chosen) await kernel.release();
    },
  };
}
