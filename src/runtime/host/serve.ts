// A worker's life with one coordinator: it serves, and where the link breaks and nobody had ended the run, tries again,
// ever more slowly.

import type { Clock } from '../../clock.ts';
import { RunError } from '../../errors.ts';
import type { WorkerEnd } from '../worker/options.ts';

/** One time with the coordinator. `lost`: the link broke, and nobody had ended the run. */
export interface Served {
  readonly end: WorkerEnd;
  readonly lost: boolean;
}

export interface ServeOptions {
  readonly clock: Clock;
  /** How long to try to come back; 0: not at all. */
  readonly reconnectMs: number;
  /** Waits between two attempts; returns early when the worker is stopped. */
  pause(milliseconds: number): Promise<void>;
  /** True when the worker is to stop trying. */
  isStopped(): boolean;
  /** The link was lost; the device tries again. */
  onLost?(reason: string): void;
}

const firstRetryMs = 500;
const maxRetryMs = 5_000;

/**
 * Serves until the run ends or the coordinator stays away. Rejects where the first attempt does, or something is wrong
 * with this device.
 */
export async function serveToTheEnd(attempt: () => Promise<Served>, options: ServeOptions): Promise<WorkerEnd> {
  let served = await attempt();
  while (served.lost) {
    options.onLost?.(served.end.reason);
    const again = await comeBack(attempt, options);
    if (again === undefined) return served.end;
    served = again;
  }
  return served.end;
}

/** Tries again for as long as the options allow; undefined when that was in vain. */
async function comeBack(
  attempt: () => Promise<Served>,
  { clock, reconnectMs, pause, isStopped }: ServeOptions,
): Promise<Served | undefined> {
  const endMs = clock.now() + reconnectMs;
  for (let delayMs = firstRetryMs; clock.now() + delayMs <= endMs; delayMs = Math.min(2 * delayMs, maxRetryMs)) {
    await pause(delayMs);
    if (isStopped()) return undefined;
    try {
      return await attempt();
    } catch (error) {
      // Nobody there yet, or full: later perhaps. What is wrong with this device stays wrong.
      if (!(error instanceof RunError)) throw error;
    }
  }
  return undefined;
}
