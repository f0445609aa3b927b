// Inputs over worker threads. A thread that hangs at an input, runs out of memory or dies is given up: that input
// failed, and another thread continues after it. Threads get small ranges, slow targets first, so that all threads end
// at about the same time.

import { Worker } from 'node:worker_threads';
import { defined } from '../assert.ts';
import { type FuzzFailure, type FuzzLimits, type FuzzSummary, type InputRange, merged, noInputs } from './fuzz.ts';

/** The data that a thread starts with. */
export interface ThreadData {
  readonly limits: FuzzLimits;
  /** Where the thread writes the seed that it is at: one number. */
  readonly seed: SharedArrayBuffer;
}

export interface ThreadsOptions {
  readonly threadCount: number;
  readonly limits: FuzzLimits;
  /**
   * A thread is given up after this time at one input. Default: fifteen times the limit, as the machine may be busy.
   */
  readonly hangMs?: number;
  readonly onProgress?: (inputCount: number) => void;
}

/** How many inputs a thread takes at once. */
const inputsAtOnce = 500;
/** A target with this many failures gets no more inputs. */
const maxFailureCount = 20;
const lookEveryMs = 100;
/** The limit of a thread's heap: a parser that takes more ends the thread, not the machine. */
const maxHeapMiB = 1024;

/** Takes all ranges; resolves with a summary for each target, in the order of the ranges. */
export async function fuzzOnThreads(
  ranges: readonly InputRange[],
  options: ThreadsOptions,
): Promise<ReadonlyMap<string, FuzzSummary>> {
  const work = new Work(ranges, options);
  const threads = Array.from({ length: Math.min(options.threadCount, work.rangeCount) }, () =>
    runThread(work, options),
  );
  await Promise.all(threads);
  return work.summaries;
}

/** The work to do, and the results. */
class Work {
  readonly summaries: Map<string, FuzzSummary>;
  #queue: InputRange[];
  #inputCount = 0;
  readonly #onProgress: (inputCount: number) => void;

  constructor(ranges: readonly InputRange[], { onProgress = () => {} }: ThreadsOptions) {
    this.summaries = new Map(ranges.map(({ target }) => [target, noInputs]));
    this.#queue = ranges.flatMap(cut);
    this.#onProgress = onProgress;
  }

  get rangeCount(): number {
    return this.#queue.length;
  }

  take(): InputRange | undefined {
    return this.#queue.shift();
  }

  /** Returns the inputs of a range, except the one that failed with its thread. */
  putBack({ target, first, end }: InputRange, without: number): void {
    const parts = [
      { target, first, end: without },
      { target, first: without + 1, end },
    ];
    if (this.#isOpen(target)) this.#queue.unshift(...parts.filter((part) => part.end > part.first));
  }

  add(target: string, summary: FuzzSummary): void {
    this.summaries.set(target, merged(defined(this.summaries.get(target), target), summary));
    this.#inputCount += summary.inputCount;
    this.#onProgress(this.#inputCount);
    if (!this.#isOpen(target)) this.#queue = this.#queue.filter((range) => range.target !== target);
  }

  /** An input that ended its thread. */
  addFailure(target: string, failure: FuzzFailure): void {
    this.add(target, { ...noInputs, inputCount: 1, failures: [failure] });
  }

  #isOpen(target: string): boolean {
    return defined(this.summaries.get(target), target).failures.length < maxFailureCount;
  }
}

function cut({ target, first, end }: InputRange): InputRange[] {
  const parts: InputRange[] = [];
  for (let at = first; at < end; at += inputsAtOnce)
    parts.push({ target, first: at, end: Math.min(end, at + inputsAtOnce) });
  return parts;
}

/** Runs one thread after the other, until no work is left. */
async function runThread(work: Work, options: ThreadsOptions): Promise<void> {
  for (let range = work.take(); range !== undefined; range = work.take()) {
    const end = await untilItEnds(work, range, options);
    if (end === undefined) return;
    work.addFailure(end.range.target, { seed: end.seed, problem: end.problem });
    work.putBack(end.range, end.seed);
  }
}

/** Why a thread was given up. */
interface ThreadEnd {
  readonly range: InputRange;
  readonly seed: number;
  readonly problem: string;
}

/** A thread takes `range`, and then further ranges; undefined: none is left. */
async function untilItEnds(
  work: Work,
  range: InputRange,
  { limits, hangMs = 15 * limits.limitMs }: ThreadsOptions,
): Promise<ThreadEnd | undefined> {
  const seed = new SharedArrayBuffer(8);
  const at = new Float64Array(seed).fill(-1);
  const workerData: ThreadData = { limits, seed };
  const thread = new Worker(new URL('./fuzz-thread.js', import.meta.url), {
    workerData,
    resourceLimits: { maxOldGenerationSizeMb: maxHeapMiB },
  });
  let current = range;
  let watch: NodeJS.Timeout | undefined;
  try {
    return await new Promise((resolve) => {
      const giveUp = (problem: string): void =>
        resolve({ range: current, seed: Math.max(at[0] as number, current.first), problem });
      let [last, lastMs] = [-1, performance.now()];
      watch = setInterval(() => {
        const [now, nowMs] = [at[0] as number, performance.now()];
        // Before its first input a thread loads modules, which does not count.
        if (now !== last || now < 0) [last, lastMs] = [now, nowMs];
        else if (nowMs - lastMs > hangMs) giveUp(`it did not end within ${hangMs / 1000} s`);
      }, lookEveryMs);
      const give = (next: InputRange): void => {
        current = next;
        at[0] = -1;
        thread.postMessage(next);
      };
      thread.on('message', (summary: FuzzSummary) => {
        work.add(current.target, summary);
        const next = work.take();
        if (next === undefined) resolve(undefined);
        else give(next);
      });
      thread.on('error', (error: Error) => giveUp(`it ended its thread: ${error.stack ?? error.message}`));
      thread.on('exit', () => giveUp('it ended its thread'));
      give(range);
    });
  } finally {
    clearInterval(watch);
    await thread.terminate();
  }
}
