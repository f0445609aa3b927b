// Milliseconds of work where a processor quota stops a process again and again: between two stops short work runs at
// full speed, and whatever runs into one waits for it. What work takes in the long run is its processor time over the
// quota, which is what planning needs and what shares out rounds: the process's, for handing values over and collecting
// garbage come with the work and use up the same quota. Node only.

import { availableParallelism } from 'node:os';
import type { ProcessClock } from '../process-clock.ts';
import { readCpuQuota, readMainThreadMs } from './host-linux.ts';

export interface WorkClockOptions {
  readonly threadCount: number;
  /** See PacingOptions. */
  readonly maxCpu: number;
  readonly isCourteous: boolean;
  /**
   * Workers that share the machine's cores, this one included; default 1. Process clocks count on a part of them; a
   * work clock's times have the waiting in them.
   */
  readonly workerCount?: number;
}

/** What is known of the process; tests pass their own. */
export interface ProcessorFacts {
  /** Cores that this process may use, now: quotas change. Undefined: all. */
  readonly quotaCores: () => number | undefined;
  /** Cores of the machine. */
  readonly coreCount: number;
  /** Processor time of the whole process, in milliseconds. */
  readonly processMs: () => number;
  /** Of its main thread, where the system tells that. */
  readonly mainThreadMs: () => number | undefined;
}

/** A quota may be another after so long. */
const quotaAgeMs = 1_000;

/**
 * A clock whose differences are times of work. Where a quota leaves the threads of an engine less than they could use,
 * and nothing else holds them back, that is the process's time over the quota; elsewhere that of `performance.now`.
 */
export function createWorkClock(options: WorkClockOptions, facts: ProcessorFacts = processorFacts()): () => number {
  const { threadCount, maxCpu, isCourteous } = options;
  const wallMs = (): number => performance.now();
  if (isCourteous) return wallMs;
  const quota = recent(facts.quotaCores);
  let [lastWallMs, lastProcessMs, workMs] = [wallMs(), facts.processMs(), 0];
  return () => {
    const [nowMs, processMs] = [wallMs(), facts.processMs()];
    const quotaCores = quota(nowMs) ?? Number.POSITIVE_INFINITY;
    // Pauses between runs (pacing.ts) give the quota time to come back.
    const cores = Math.min(quotaCores, maxCpu * threadCount);
    workMs += quotaCores >= threadCount ? nowMs - lastWallMs : (processMs - lastProcessMs) / cores;
    [lastWallMs, lastProcessMs] = [nowMs, processMs];
    return workMs;
  };
}

/**
 * A clock of all that this process does. It does not run where the process has more cores for itself than its engine
 * uses, or the engine pauses of its own accord.
 */
export function createProcessClock(
  { threadCount, maxCpu, isCourteous, workerCount = 1 }: WorkClockOptions,
  facts: ProcessorFacts = processorFacts(),
): ProcessClock {
  const quota = recent(facts.quotaCores);
  let last = { processMs: facts.processMs(), mainMs: facts.mainThreadMs(), threadMs: 0 };
  let [processMs, mainMs, computeMs] = [0, 0, 0];
  return (threadMs) => {
    const now = { processMs: facts.processMs(), mainMs: facts.mainThreadMs(), threadMs: threadMs ?? last.threadMs };
    const cores = Math.min(quota(performance.now()) ?? Number.POSITIVE_INFINITY, facts.coreCount / workerCount);
    if (cores <= threadCount && maxCpu === 1 && !isCourteous) {
      processMs += (now.processMs - last.processMs) / cores;
      mainMs += ((now.mainMs ?? 0) - (last.mainMs ?? 0)) / cores;
      computeMs += (now.threadMs - last.threadMs) / cores;
    }
    last = now;
    return {
      processMs,
      ...(now.mainMs === undefined ? {} : { mainMs }),
      ...(threadMs === undefined ? {} : { computeMs }),
    };
  };
}

/** The value, asked for again where it is too old. */
function recent<T>(ask: () => T): (nowMs: number) => T {
  let [value, askedMs] = [ask(), performance.now()];
  return (nowMs) => {
    if (nowMs - askedMs > quotaAgeMs) [value, askedMs] = [ask(), nowMs];
    return value;
  };
}

/** What the operating system says of this process. */
export function processorFacts(): ProcessorFacts {
  const processMs = (): number => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1000;
  };
  const coreCount = availableParallelism();
  const isLinux = process.platform === 'linux';
  return {
    quotaCores: isLinux ? () => readCpuQuota()?.cores : () => undefined,
    coreCount,
    processMs,
    mainThreadMs: isLinux ? readMainThreadMs : () => undefined,
  };
}
