// Layouts that devices make themselves ready for before these are taken: each compiles the stage that it would run
// while it trains, and says when that is done. A layout that is taken earlier is as good, but then all wait for the
// slowest device.

import type { Clock } from '../../clock.ts';

/** Devices that yield to all other work may take long: by then a layout is taken as it is. */
const patienceMs = 30_000;

interface Question {
  readonly waitingFor: Set<string>;
  readonly onReady: (isComplete: boolean) => void;
  readonly stop: () => void;
}

/** What was asked of whom, and not answered yet. */
export class Readiness {
  readonly #clock: Clock;
  #lastId = 0;
  readonly #open = new Map<number, Question>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /**
   * Opens a question to these devices, and returns its id. `onReady` is called once, when all that are still there have
   * answered (`isComplete`), or it took too long; never after `clear`.
   */
  ask(devices: Iterable<string>, onReady: (isComplete: boolean) => void): number {
    const id = ++this.#lastId;
    const stop = this.#clock.after(patienceMs, () => this.#settle(id, false));
    this.#open.set(id, { waitingFor: new Set(devices), onReady, stop });
    return id;
  }

  /** A device is ready. Nothing where it said so before, or nobody asks any more. */
  answered(device: string, id: number): void {
    const waitingFor = this.#open.get(id)?.waitingFor;
    if (waitingFor?.delete(device) === true && waitingFor.size === 0) this.#settle(id, true);
  }

  /** Nobody waits for this device any more. */
  gone(device: string): void {
    for (const id of [...this.#open.keys()]) this.answered(device, id);
  }

  /** What was asked is of no interest any more. */
  clear(): void {
    for (const { stop } of this.#open.values()) stop();
    this.#open.clear();
  }

  get isAsking(): boolean {
    return this.#open.size > 0;
  }

  #settle(id: number, isComplete: boolean): void {
    const question = this.#open.get(id);
    if (question === undefined) return;
    this.#open.delete(id);
    question.stop();
    question.onReady(isComplete);
  }
}
