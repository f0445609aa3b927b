// A process of the virtual world. Timers, frames and the disk's answers reach it through here, so that it can be
// stopped for a while or killed between any two events. The production's code runs in it and knows nothing of that.

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
  /** Events that came while it was frozen, in order. */
  #held: (() => void)[] = [];
  #timerCount = 0;

  /** `clockOriginMs`: its monotonic clock when the world begins. */
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

  /** Something outside the process (its engine, its disk) takes `delayMs`: no timer of the process. */
  takes(delayMs: number, callback: () => void): void {
    this.#time.at(this.#time.nowMs + delayMs, () => this.run(callback));
  }

  /** Something from outside reaches the process: now, when it is thawed, or never. */
  run(action: () => void): void {
    if (this.#state === 'running') action();
    else if (this.#state === 'frozen') this.#held.push(action);
  }

  /** Stops it (SIGSTOP): nothing reaches it until it is thawed. */
  freeze(): void {
    if (this.#state === 'running') this.#state = 'frozen';
  }

  /**
   * Continues (SIGCONT): everything that came meanwhile reaches it at once, in order, and before anything that comes
   * later.
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

  /** Ends it (SIGKILL, or its own end): nothing reaches it any more. */
  end(): void {
    if (this.#state === 'dead') return;
    this.#state = 'dead';
    this.#held = [];
  }
}
