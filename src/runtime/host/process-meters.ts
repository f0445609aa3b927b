// The meters of this process: how late its event loop was, and its memory.

import { monitorEventLoopDelay } from 'node:perf_hooks';
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
  const lateMs = (nanoseconds: number): number => Math.max(0, nanoseconds / 1e6 - lookEveryMs);
  return {
    start: () => void delay.enable(),
    stop: () => void delay.disable(),
    eventLoopDelayP99Ms: () => lateMs(delay.percentile(99)),
    eventLoopDelayMaxMs: () => lateMs(delay.max),
    residentBytes: () => process.memoryUsage.rss(),
  };
}
