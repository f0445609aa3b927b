// The meters of this process: how late its event loop was, and its memory.

import { monitorEventLoopDelay } from 'node:perf_hooks';
import { bytesInMiB } from '../../cluster/memory.ts';
import type { ProcessMeters } from '../worker/options.ts';

/**
 * Time between two looks at the event loop: one a millisecond took 1.65 % of a core, a twentieth of a device of a third
 * of one.
 */
const lookEveryMs = 20;

/** The meters of this process. */
export function processMeters(): ProcessMeters {
  // It measures the time from one look to the next.
  const delay = monitorEventLoopDelay({ resolution: lookEveryMs });
  let [cpuMs, atMs] = [usedMs(), performance.now()];
  const lateMs = (nanoseconds: number): number => Math.max(0, nanoseconds / 1e6 - lookEveryMs);
  return {
    start: () => void delay.enable(),
    stop: () => void delay.disable(),
    eventLoopDelayP99Ms: () => lateMs(delay.percentile(99)),
    eventLoopDelayMaxMs: () => lateMs(delay.max),
    residentBytes: () => process.memoryUsage.rss(),
    load() {
      const [beforeCpuMs, beforeMs] = [cpuMs, atMs];
      [cpuMs, atMs] = [usedMs(), performance.now()];
      const usedCores = Math.max(0, cpuMs - beforeCpuMs) / Math.max(1, atMs - beforeMs);
      return {
        usedCores: Math.round(usedCores * 1000) / 1000,
        residentMiB: Math.round(process.memoryUsage.rss() / bytesInMiB),
      };
    },
  };
}

/** Processor time of this process so far, all threads. */
function usedMs(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}
