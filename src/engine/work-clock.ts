// Milliseconds of work where a processor quota stops a process again and again: between two stops short work runs at full speed, and whatever runs into one
// waits for it. What work takes in the long run is its processor time over the quota, which is what planning needs and what shares out rounds: the process's, for
// handing values over and collecting garbage come with the work and use up the same quota. Node only.

import { availableParallelism } from 'node:os';
import { linuxFacts } from './host-linux.ts';

export interface WorkClockOptions {
  readonly threadCount: number;
  /** See PacingOptions. */
  readonly maxCpu: number;
  readonly isCourteous: boolean;
}

/** What is known of the process; tests pass their own. */
export interface ProcessorFacts {
  /** Cores that this process may use. Default: all. */
  readonly quotaCores?: number | undefined;
  /** Cores of the machine. */
  readonly coreCount: number;
  /** Processor time of the whole process, in milliseconds. */
  readonly processMs: () => number;
}

/**
 * A clock whose differences are times of work. Where a quota leaves the threads of an engine less than they could use, and nothing else holds them back, that is
 * the process's time over the quota; elsewhere `performance.now`.
 */
export function createWorkClock(options: WorkClockOptions, facts: ProcessorFacts = processorFacts()): () => number {
  const { threadCount, maxCpu, isCourteous } = options;
  const { quotaCores = Number.POSITIVE_INFINITY, processMs } = facts;
  if (quotaCores >= threadCount || isCourteous) return () => performance.now();
  // Pauses between runs (pacing.ts) give the quota time to come back.
  const cores = Math.min(quotaCores, maxCpu * threadCount);
  return () => processMs() / cores;
}

/**
 * A clock of the processor time that this process takes from an engine that uses all the cores it may use, as milliseconds of the engine's work. It does not run
 * where the process has more cores than that, or the engine pauses of its own accord. To be read while the engine rests: its work counts too.
 */
export function createLossClock({ threadCount, maxCpu }: WorkClockOptions, facts: ProcessorFacts = processorFacts()): () => number {
  const { quotaCores = Number.POSITIVE_INFINITY, coreCount, processMs } = facts;
  const cores = Math.min(quotaCores, coreCount);
  return cores > threadCount || maxCpu < 1 ? () => 0 : () => processMs() / cores;
}

/** What the operating system says of this process. */
export function processorFacts(): ProcessorFacts {
  const processMs = (): number => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1000;
  };
  const coreCount = availableParallelism();
  if (process.platform !== 'linux') return { coreCount, processMs };
  return { quotaCores: linuxFacts().cpuQuota?.cores, coreCount, processMs };
}
