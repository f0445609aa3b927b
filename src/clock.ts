// Time as a parameter. Decisions use only monotonic time; wall-clock time appears only in file names and logs.

/** A monotonic clock and its timers. `systemClock` is the real one; tests pass a virtual one. */
export interface Clock {
  /** Monotonic milliseconds from an arbitrary origin, with a fraction. */
  now(): number;
  /** Calls `callback` once after `delayMs`; the returned function cancels it. */
  after(delayMs: number, callback: () => void): () => void;
}

/** The clock of this process. Its timers do not keep the process alive. */
export const systemClock: Clock = {
  now: () => performance.now(),
  after(delayMs, callback) {
    const timer = setTimeout(callback, delayMs);
    if (typeof timer === 'object') timer.unref(); // a number in browsers, which it does not keep open
    return () => clearTimeout(timer);
  },
};
