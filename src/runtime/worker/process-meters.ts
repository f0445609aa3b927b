// What a worker tells of the process that it runs in: how late its event loop was, and its memory. A parameter, so that a rehearsal of many workers in
// one process has neither to pay for it nor to depend on it.

import { monitorEventLoopDelay } from 'node:perf_hooks';

/** The measurements of one worker's process. */
export interface ProcessMeters {
  /** Begins to watch the event loop. */
  start(): void;
  stop(): void;
  eventLoopDelayP99Ms(): number;
  eventLoopDelayMaxMs(): number;
  residentBytes(): number;
}

/** The meters of this process. */
export function processMeters(): ProcessMeters {
  const delay = monitorEventLoopDelay({ resolution: 1 });
  return {
    start: () => void delay.enable(),
    stop: () => void delay.disable(),
    eventLoopDelayP99Ms: () => delay.percentile(99) / 1e6,
    eventLoopDelayMaxMs: () => delay.max / 1e6,
    residentBytes: () => process.memoryUsage.rss(),
  };
}
