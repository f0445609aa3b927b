// Many rehearsals: the seeds of a range, over worker threads, with a summary of their results.

import { Worker } from 'node:worker_threads';
import { hash32 } from '../random.ts';
import { type RehearsedModes, scenarioIn } from './modes.ts';
import { type RehearsalReport, rehearse } from './rehearse.ts';

/** The seeds [first, end), and the mistake that is built in. */
export interface SeedRange {
  readonly first: number;
  readonly end: number;
  readonly bug?: string;
  /** Default: synchronous runs. */
  readonly modes?: RehearsedModes;
}

/** The results of many rehearsals. */
export interface SeedSummary {
  readonly seedCount: number;
  readonly eventCount: number;
  readonly virtualSeconds: number;
  /** The sum of all traces' hashes: equal for equal seeds and equal code. */
  readonly traceHash: number;
  /** The number of runs by outcome, without numbers and names. */
  readonly outcomes: Readonly<Record<string, number>>;
  /** The seeds with violations. */
  readonly failures: readonly Failure[];
}

export interface Failure {
  readonly seed: number;
  readonly violations: readonly string[];
}

export const noSeeds: SeedSummary = {
  seedCount: 0,
  eventCount: 0,
  virtualSeconds: 0,
  traceHash: 0,
  outcomes: {},
  failures: [],
};

/** The sum of two summaries. */
export function merged(a: SeedSummary, b: SeedSummary): SeedSummary {
  const outcomes = { ...a.outcomes };
  for (const [outcome, count] of Object.entries(b.outcomes)) outcomes[outcome] = (outcomes[outcome] ?? 0) + count;
  return {
    seedCount: a.seedCount + b.seedCount,
    eventCount: a.eventCount + b.eventCount,
    virtualSeconds: a.virtualSeconds + b.virtualSeconds,
    traceHash: (a.traceHash + b.traceHash) >>> 0,
    outcomes,
    failures: [...a.failures, ...b.failures].sort((left, right) => left.seed - right.seed),
  };
}

function summaryOf(report: RehearsalReport): SeedSummary {
  const { seed, eventCount, virtualSeconds, traceHash, outcome, violations } = report;
  return {
    seedCount: 1,
    eventCount,
    virtualSeconds,
    traceHash: hash32(seed, Number.parseInt(traceHash, 16)),
    outcomes: { [outcome.replace(/\bd\d\b/g, 'd#').replace(/\d+(\.\d+)?/g, '#')]: 1 },
    failures: violations.length === 0 ? [] : [{ seed, violations }],
  };
}

/** Rehearses a range in this thread. */
export async function rehearseSeeds({ first, end, modes = 'sync' }: SeedRange): Promise<SeedSummary> {
  let summary = noSeeds;
  for (let seed = first; seed < end; seed++)
    summary = merged(summary, summaryOf(await rehearse(scenarioIn(modes, seed))));
  return summary;
}

/** How many seeds a thread takes at once. */
const seedsAtOnce = 50;

/** Rehearses a range over `threadCount` threads. `onProgress` gets the sum so far. */
export async function rehearseOnThreads(
  { first, end, modes = 'sync' }: SeedRange,
  { threadCount, onProgress }: { readonly threadCount: number; readonly onProgress: (summary: SeedSummary) => void },
): Promise<SeedSummary> {
  let next = first;
  let summary = noSeeds;
  const take = (): SeedRange | undefined => {
    if (next >= end) return undefined;
    const range = { first: next, end: Math.min(end, next + seedsAtOnce), modes };
    next = range.end;
    return range;
  };
  const work = (thread: Worker): Promise<void> =>
    new Promise((resolve, reject) => {
      const ask = (): void => {
        const range = take();
        if (range === undefined) resolve();
        else thread.postMessage(range);
      };
      thread.on('message', (part: SeedSummary) => {
        summary = merged(summary, part);
        onProgress(summary);
        ask();
      });
      thread.on('error', reject);
      ask();
    });
  const threads = Array.from({ length: threadCount }, () => new Worker(new URL('./seeds-thread.js', import.meta.url)));
  try {
    await Promise.all(threads.map(work));
  } finally {
    await Promise.all(threads.map((thread) => thread.terminate()));
  }
  return summary;
}
