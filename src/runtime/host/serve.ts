// A worker's life with one coordinator: it serves, and if the link breaks before the run has ended, tries again, with
// growing pauses.

import type { Clock } from '../../clock.ts';
import { RunError } from '../../errors.ts';
import type { WorkerEnd } from '../worker/options.ts';

/** One connection to the coordinator. `lost`: the link broke before the run had ended. */
export interface Served {
  readonly end: WorkerEnd;
  readonly lost: boolean;
}

export interface ServeOptions {
  readonly clock: Clock;
  /** How long to try to reconnect; 0: not at all. */
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
 * Serves until the run ends or the coordinator stays away. Rejects if the first attempt does, or something is wrong
 * with this device.
 */
export async function serveToTheEnd(attempt: () => Promise<Served>, options: ServeOptions): Promise<WorkerEnd> {
  let served = await attempt();
  while (served.lost) {
    options.onLost?.(served.end.reason);
    const again = await reconnect(attempt, options);
    if (again === undefined) return served.end;
    served = again;
  }
  return served.end;
}

/** Tries again for as long as the options allow; undefined if that fails. */
async function reconnect(
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
      // Nobody is there yet, or there is no room: perhaps later. Any other error would come again.
      if (!(error instanceof RunError)) throw error;
    }
  }
  return undefined;
}
