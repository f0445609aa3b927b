// How much a worker's process has worked, as its links and its rounds report it.

import type { Engine } from '../../engine/engine.ts';
import type { ProcessClock, ProcessWork } from '../../engine/process-clock.ts';

/** The work of one process, as milliseconds of computing. */
export class WorkReport {
  readonly #clock: ProcessClock | undefined;
  readonly #engine: Pick<Engine, 'threadMs'>;
  #reported: ProcessWork = { processMs: 0 };

  /** `clock`: undefined if the work is not known. */
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

  /** Work since the last call: nothing if it is not known, or takes no time from the engine. */
  sinceLast(): { readonly processMs?: number; readonly linksMs?: number } {
    const before = this.#reported;
    const now = this.#clock?.(this.#engine.threadMs?.()) ?? before;
    this.#reported = now;
    const since = (key: keyof ProcessWork): number | undefined =>
      now[key] === undefined ? undefined : now[key] - (before[key] ?? 0);
    const [processMs = 0, mainMs, computeMs] = [since('processMs'), since('mainMs'), since('computeMs')];
    if (processMs === 0) return {};
    const linksMs = computeMs === undefined ? mainMs : Math.max(0, processMs - computeMs);
    return linksMs === undefined ? { processMs } : { processMs, linksMs };
  }
}
