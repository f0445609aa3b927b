// FTPipeHD's timer (§III-F): where the gradients of a batch are overdue, the central node asks all workers whether they
// live. Those that do not answer are given up, and the others go on without them; one that has been started again has
// joined as another by then. Where all answer, training begins again with the batch whose gradients are missing. Whose
// link ends, or who is silent for longer than usual, is given up as in every run.

import type { Plan } from '../../cluster/cluster.ts';
import { message } from '../protocol/messages.ts';
import type { CoordinatorContext } from './context.ts';

/** How long an answer may take. */
const answerMs = 1_000;
/** How long a layout's first batch may take: stages are still being compiled. */
const firstMs = 30_000;
/** Weight of the newest batch in what a batch usually takes. */
const newest = 1 / 8;

/** Who knows which workers live. */
interface Workers {
  heardSince(device: string, ms: number): boolean;
  giveUp(device: string, reason: string): void;
}

export class BatchTimer {
  readonly #context: CoordinatorContext;
  readonly #workers: Workers;
  #stop: () => void = () => {};
  /** Between two batches of this layout, usually; undefined before there are two. */
  #usualMs: number | undefined;
  #cameMs: number | undefined;
  /** Grows with each alarm for nothing. */
  #patience = 1;

  constructor(context: CoordinatorContext, workers: Workers) {
    this.#context = context;
    this.#workers = workers;
    context.onClose(() => this.#stop());
  }

  /** A layout's training begins, or goes on after a pause. */
  trainingBegins(): void {
    this.#usualMs = undefined;
    this.#cameMs = undefined;
    this.#arm();
  }

  /** All gradients of a batch have come: it has committed. */
  batchCame(): void {
    const nowMs = this.#context.options.clock.now();
    if (this.#cameMs !== undefined) {
      const tookMs = nowMs - this.#cameMs;
      this.#usualMs = this.#usualMs === undefined ? tookMs : this.#usualMs + newest * (tookMs - this.#usualMs);
    }
    this.#cameMs = nowMs;
    this.#arm();
  }

  #arm(): void {
    const { options, state } = this.#context;
    const { clock, recovery } = options;
    this.#stop();
    if (recovery?.timer === undefined || state.phase === 'ended') return;
    const { leastMs, batches } = recovery.timer;
    const usualMs = this.#usualMs === undefined ? firstMs : Math.max(leastMs, batches * this.#usualMs);
    const limitMs = this.#patience * usualMs;
    this.#stop = clock.after(limitMs, () => this.#expired(limitMs));
  }

  #expired(limitMs: number): void {
    const { state, links, options } = this.#context;
    const { plan, round } = state;
    if (plan === undefined || !this.#isUnderWay(plan, round)) return this.#arm();
    this.#context.observe({ kind: 'overdue', round, seconds: limitMs / 1000 });
    const askedMs = options.clock.now();
    for (const device of links.keys()) this.#context.send(device, message('probe', {}));
    this.#stop = options.clock.after(answerMs, () => {
      if (this.#isUnderWay(plan, round)) this.#judge(askedMs, limitMs);
      this.#arm();
    });
  }

  #judge(askedMs: number, limitMs: number): void {
    const silent = [...this.#context.links.keys()].filter((device) => !this.#workers.heardSince(device, askedMs));
    for (const device of silent) this.#workers.giveUp(device, `no answer within ${answerMs / 1000} s`);
    if (silent.length > 0) return;
    this.#patience *= 2;
    this.#context.changeBegins();
    this.#context.input({ kind: 'overdue', seconds: limitMs / 1000 });
  }

  /** Whether this layout still waits for this round. */
  #isUnderWay(plan: Plan, round: number): boolean {
    const { state } = this.#context;
    return state.phase === 'training' && state.plan === plan && state.round === round && round <= state.grantedRound;
  }
}
