// What a worker tells of the process that it runs in: how late its event loop was, and its memory. A parameter, so that a rehearsal of many workers in
// one process has neither to pay for it nor to depend on it.

import { monitorEventLoopDelay } from 'node:perf_hooks';

/** The measurements of one worker's process. */
export interface ProcessMeters {
  /** Begins to watch the event loop, unless it is watched already. */
  start(): void;
  stop(): void;
  eventLoopDelayP99Ms(): number;
  eventLoopDelayMaxMs(): number;
  residentBytes(): number;
}

/** Time between two looks at the event loop: one a millisecond took 1.65 % of a core, a twentieth of a device of a third of one. */
const lookEveryMs = 20;

/** The meters of this process. */
export function processMeters(): ProcessMeters {
  // It tells the times from one look to the next.
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
