// Milliseconds of work where a processor quota stops a process again and again: between two stops short work runs at full speed, and whatever runs into one
// waits for it. What work takes in the long run is its processor time over the quota, which is what planning needs and what shares out rounds: the process's, for
// handing values over and collecting garbage come with the work and use up the same quota. Node only.

import { availableParallelism } from 'node:os';
import { readCpuQuota } from './host-linux.ts';

export interface WorkClockOptions {
  readonly threadCount: number;
  /** See PacingOptions. */
  readonly maxCpu: number;
  readonly isCourteous: boolean;
}

/** What is known of the process; tests pass their own. */
export interface ProcessorFacts {
  /** Cores that this process may use, now: quotas change. Undefined: all. */
  readonly quotaCores: () => number | undefined;
  /** Cores of the machine. */
  readonly coreCount: number;
  /** Processor time of the whole process, in milliseconds. */
  readonly processMs: () => number;
}

/** A quota may be another after so long. */
const quotaAgeMs = 1_000;

/**
 * A clock whose differences are times of work. Where a quota leaves the threads of an engine less than they could use, and nothing else holds them back, that is
 * the process's time over the quota; elsewhere that of `performance.now`.
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
 * A clock of the processor time that this process takes from an engine that uses all the cores it may use, as milliseconds of the engine's work. It does not run
 * where the process has more cores than that, or the engine pauses of its own accord. To be read while the engine rests: its work counts too.
 */
export function createLossClock({ threadCount, maxCpu }: WorkClockOptions, facts: ProcessorFacts = processorFacts()): () => number {
  const { coreCount, processMs } = facts;
  const cores = Math.min(facts.quotaCores() ?? Number.POSITIVE_INFINITY, coreCount);
  return cores > threadCount || maxCpu < 1 ? () => 0 : () => processMs() / cores;
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
  const quotaCores = process.platform === 'linux' ? () => readCpuQuota()?.cores : () => undefined;
  return { quotaCores, coreCount, processMs };
}
