// A process of the virtual world: what reaches it from outside (timers, frames, the disk's answers) comes through here,
// so that it can be stopped for a while or killed between any two events. Its code is the production's and knows
// nothing of that.

import type { Clock } from '../clock.ts';
import type { VirtualTime } from './virtual-time.ts';

export type ProcessState = 'running' | 'frozen' | 'dead';

/** One process on one host. */
export class VirtualProcess {
  readonly name: string;
  /** Paths of the network run between hosts. */
  readonly host: string;
  readonly clock: Clock;
  readonly #time: VirtualTime;
  #state: ProcessState = 'running';
  /** What came while it was frozen, in order. */
  #held: (() => void)[] = [];
  #timerCount = 0;

  /** `clockOriginMs`: what its monotonic clock says when the world begins. */
  constructor(time: VirtualTime, { name, host, clockOriginMs }: { name: string; host: string; clockOriginMs: number }) {
    this.#time = time;
    this.name = name;
    this.host = host;
    this.clock = {
      now: () => clockOriginMs + time.nowMs,
      after: (delayMs, callback) => this.after(delayMs, callback),
    };
  }

  get state(): ProcessState {
    return this.#state;
  }

  /** Timers that have neither run nor been cancelled. */
  get timerCount(): number {
    return this.#timerCount;
  }

  /** Calls `callback` once after `delayMs`, unless the process is dead by then; the returned function cancels it. */
  after(delayMs: number, callback: () => void): () => void {
    let isOpen = true;
    this.#timerCount++;
    const end = (): void => {
      if (isOpen) this.#timerCount--;
      isOpen = false;
    };
    const cancel = this.#time.at(this.#time.nowMs + delayMs, () =>
      this.run(() => {
        if (!isOpen) return; // cancelled while the process was frozen
        end();
        callback();
      }),
    );
    return () => {
      end();
      cancel();
    };
  }

  /** Something outside the process (its engine, its disk) takes so long; no timer of its own. */
  takes(delayMs: number, callback: () => void): void {
    this.#time.at(this.#time.nowMs + delayMs, () => this.run(callback));
  }

  /** Something from outside reaches the process: now, when it goes on, or never. */
  run(action: () => void): void {
    if (this.#state === 'running') action();
    else if (this.#state === 'frozen') this.#held.push(action);
  }

  /** Stops it (SIGSTOP): nothing reaches it until it goes on. */
  freeze(): void {
    if (this.#state === 'running') this.#state = 'frozen';
  }

  /**
   * Goes on (SIGCONT): all that came meanwhile reaches it at once, one after the other, and before what comes from now
   * on.
   */
  thaw(): void {
    if (this.#state !== 'frozen') return;
    const next = this.#held.shift();
    if (next === undefined) {
      this.#state = 'running';
      return;
    }
    this.#time.at(this.#time.nowMs, () => {
      if (this.#state !== 'frozen') return;
      next();
      this.thaw();
    });
  }

  /** Ends it (SIGKILL, or its own end): nothing reaches it ever again. */
  end(): void {
    if (this.#state === 'dead') return;
    this.#state = 'dead';
    this.#held = [];
  }
}
