// Time that passes only when nothing else can happen: hours of waiting take no time, and what waits for ever is
// found out.

import type { Clock } from '../clock.ts';

/** A clock whose timers run in their order, one after the other, as soon as everything else has come to rest. */
export interface VirtualClock extends Clock {
  /** Lets time pass until the promise settles. Throws when it never will: nothing is left to do and no timer waits. */
  runUntil<T>(promise: Promise<T>): Promise<T>;
}

/** Turns of the event loop after which everything that computes in this thread has come to rest. */
const restingTurns = 5;
const idleTurns = 1000;

export function createVirtualClock(): VirtualClock {
  let nowMs = 0;
  const timers: { readonly atMs: number; readonly callback: () => void }[] = [];
  const runNext = (): boolean => {
    const next = timers.shift();
    if (next === undefined) return false;
    nowMs = next.atMs;
    next.callback();
    return true;
  };
  return {
    now: () => nowMs,
    after(delayMs, callback) {
      const timer = { atMs: nowMs + Math.max(0, delayMs), callback };
      const place = timers.findIndex(({ atMs }) => atMs > timer.atMs);
      timers.splice(place < 0 ? timers.length : place, 0, timer);
      return () => {
        const index = timers.indexOf(timer);
        if (index >= 0) timers.splice(index, 1);
      };
    },
    async runUntil(promise) {
      let isSettled = false;
      const settled = (): void => {
        isSettled = true;
      };
      promise.then(settled, settled);
      let idle = 0;
      while (!isSettled) {
        for (let turn = 0; turn < restingTurns; turn++) await new Promise(setImmediate);
        if (isSettled) break;
        idle = runNext() ? 0 : idle + 1;
        if (idle > idleTurns) throw new Error('this promise never settles: nothing is left to do and no timer waits');
      }
      return promise;
    },
  };
}
