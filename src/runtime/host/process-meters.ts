// What a worker tells of the process that it runs in: how late its event loop was, and its memory. A parameter, so that
// a rehearsal of many workers in one process has neither to pay for it nor to depend on it.

import { monitorEventLoopDelay } from 'node:perf_hooks';
import type { Engine } from '../../engine/engine.ts';
import type { ProcessClock, ProcessWork } from '../../engine/node/work-clock.ts';

/** The measurements of one worker's process. */
export interface ProcessMeters {
  /** Begins to watch the event loop, unless it is watched already. */
  start(): void;
  stop(): void;
  eventLoopDelayP99Ms(): number;
  eventLoopDelayMaxMs(): number;
  residentBytes(): number;
}

/**
 * Time between two looks at the event loop: one a millisecond took 1.65 % of a core, a twentieth of a device of a third
 * of one.
 */
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

/** What the process has done, as its links and its rounds tell it. */
export class WorkReport {
  readonly #clock: ProcessClock | undefined;
  readonly #engine: Pick<Engine, 'threadMs'>;
  #told: ProcessWork = { processMs: 0 };

  /** `clock`: undefined where nobody counts. */
  constructor(clock: ProcessClock | undefined, engine: Pick<Engine, 'threadMs'>) {
    this.#clock = clock;
    this.#engine = engine;
  }

  /** Milliseconds that the main thread has worked so far, or the process, where threads are not known. */
  mainMs(): number | undefined {
    const work = this.#clock?.();
    return work?.mainMs ?? work?.processMs;
  }

  /** Milliseconds that the process has worked so far. */
  processMs(): number | undefined {
    return this.#clock?.().processMs;
  }

  /**
   * What was done since this was asked last: nothing where that is not known, or where it takes no time from the
   * engine.
   */
  sinceLast(): { readonly processMs?: number; readonly linksMs?: number } {
    const before = this.#told;
    const now = this.#clock?.(this.#engine.threadMs?.()) ?? before;
    this.#told = now;
    const since = (key: keyof ProcessWork): number | undefined =>
      now[key] === undefined ? undefined : now[key] - (before[key] ?? 0);
    const [processMs = 0, mainMs, computeMs] = [since('processMs'), since('mainMs'), since('computeMs')];
    if (processMs === 0) return {};
    const linksMs = computeMs === undefined ? mainMs : Math.max(0, processMs - computeMs);
    return linksMs === undefined ? { processMs } : { processMs, linksMs };
  }
}
