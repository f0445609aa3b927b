// A device that serves one run after another: it waits until a coordinator is there, joins, and when that run is over
// waits for the next.

import { connect } from 'node:net';
import { RunError } from '../../errors.ts';
import { drainedReason } from '../protocol/drained.ts';
import type { WorkerEnd } from '../worker/options.ts';

export interface WaitOptions {
  /** Joins a run and serves it to its end. RunError: there is none, or not for this device yet. */
  join(): Promise<WorkerEnd>;
  /** Why no run can be there, if none can: asked before joining, which costs far more. */
  absence(): Promise<string | undefined>;
  pause(milliseconds: number): Promise<void>;
  /** Aborted: waits no longer. */
  readonly signal: AbortSignal;
  onEnd(end: WorkerEnd): void;
  /** It waits, for this reason; told once until it has joined. */
  onWaiting(reason: string): void;
}

export const waitMs = 2_000;
const connectMs = 5_000;

/** Serves until `signal` aborts. Rejects with whatever waiting does not mend, such as a wrong code. */
export async function serveRuns({ join, absence, pause, signal, onEnd, onWaiting }: WaitOptions): Promise<void> {
  let isTold = false;
  // Who was taken out of a run does not come back to it.
  let isWanted = true;
  const wait = (reason: string): void => {
    if (!isTold && !signal.aborted) onWaiting(reason);
    isTold = true;
  };
  while (!signal.aborted) {
    const reason = await absence();
    if (reason !== undefined) {
      isWanted = true;
      wait(reason);
    } else if (isWanted) {
      try {
        const end = await join();
        isTold = false;
        isWanted = end.reason !== drainedReason;
        onEnd(end);
      } catch (error) {
        if (signal.aborted) return;
        if (!(error instanceof RunError)) throw error;
        wait(error.message);
      }
    }
    if (!signal.aborted) await pause(waitMs);
  }
}

/** Whether something listens at a URL. */
export function isListening(url: string): Promise<boolean> {
  const { hostname, port, protocol } = new URL(url);
  const host = hostname.replace(/^\[|\]$/g, '');
  return new Promise((resolve) => {
    const socket = connect({ host, port: Number(port) || (protocol === 'wss:' ? 443 : 80) });
    socket.setTimeout(connectMs, () => socket.destroy());
    socket.once('connect', () => {
      resolve(true);
      socket.destroy();
    });
    socket.once('error', () => socket.destroy());
    socket.once('close', () => resolve(false));
  });
}
