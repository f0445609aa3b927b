// Rounds and commits on one device. A round is queued when its turn comes, and reported when it is computed; its update
// stands when the coordinator commits the round. Updates may be `window` rounds ahead of the commits:
//
//   window 1  compute 0 ─ update 0, prepared 0 ─ compute 1 ── commit 0 ── update 1, prepared 1 ─ compute 2 …
//   window 2  compute 0 ─ update 0, prepared 0 ─ compute 1 ─ update 1, prepared 1 ─ compute 2 ── commit 0 ── update 2 …
//
// Every state that may have to return is kept (Layout). With clipping the update needs the coordinator's scale: it is
// made at the commit, and the next round begins after it, whatever the window.

import { defined } from '../../assert.ts';
import { ProtocolError } from '../../errors.ts';
import { isUpdateImmediate } from '../../schedule/program.ts';
import { isTraced, type RoundOutcome, runRound } from '../device/round.ts';
import type { ToWorker } from '../protocol/messages.ts';
import { type BitsInUse, bitsInUse, encodingPort } from './activation-bits.ts';
import type { Commits } from './commits.ts';
import type { WorkerContext } from './context.ts';
import { copyWhenCommitted, startDueCopy } from './copies.ts';
import type { Layout } from './layout.ts';
import type { LayoutSession } from './layout-session.ts';
import type { Statistics } from './measuring.ts';
import type { Peers } from './peers.ts';
import type { WorkReport } from './work-report.ts';

export interface RoundsOptions {
  readonly peers: Pick<Peers, 'send' | 'rates' | 'rate'>;
  readonly work: WorkReport;
  readonly statistics: Statistics;
  /** How many rounds may be updated before they have committed; at least 1. */
  readonly window: number;
}

export class Rounds {
  readonly #context: WorkerContext;
  readonly #options: RoundsOptions;
  /** Rounds that are queued and have not committed. */
  readonly #commits: Commits;
  #bits: { readonly layout: Layout; readonly inUse: BitsInUse | undefined } | undefined;

  constructor(context: WorkerContext, options: RoundsOptions, commits: Commits) {
    this.#context = context;
    this.#options = options;
    this.#commits = commits;
  }

  /**
   * Queues a round; resolves when the next one can begin. Without clipping the update is queued at once, and the next
   * round behind it, while the sums are on their way and the coordinator decides.
   */
  async run(control: ToWorker['round']): Promise<void> {
    const { round, learningRate, replicate, sampleCount, factor = 1, length } = control;
    const context = this.#context;
    const { peers, work, statistics, window } = this.#options;
    const layout = context.running('round');
    statistics.roundBegins();
    // A round that was given up may still run: it must not touch the next layout, its mail, or its reports.
    const { session } = context;
    const isClipped = defined(context.model, 'the model').training.clipNorm !== null;
    const update = { learningRate, step: round + 1 };
    const plannedUpdate = isClipped ? undefined : { ...update, gradientScale: factor };
    if (replicate) copyWhenCommitted(context, layout, round, peers);
    const ahead = this.#commits.of(round - window);
    const isUsual = sampleCount === undefined && length === undefined;
    const part = isUsual ? layout : await context.guard(layout.unusual({ sampleCount, length }));
    if (isUpdateImmediate(part.program)) await context.guard(layout.complete);
    const { outcome } = await runRound(part.program, part.stage, round, {
      clock: context.options.clock,
      send: (to, frame, priority) => peers.send(to, { ...frame, epoch: session.epoch }, priority),
      receive: (key) => session.mailbox.take(key),
      ...encodingPort(this.#bitsOf(layout)),
      giveResult: (frame) => context.options.coordinator.send({ ...frame, epoch: session.epoch }, 'pipeline'),
      failure: session.failure,
      updates: {
        planned: plannedUpdate,
        due: async () => {
          await Promise.all([ahead, layout.complete]);
          return plannedUpdate;
        },
      },
      processWorkMs: () => work.processMs(),
      isUntraced: !isUsual,
    }).catch((error: unknown) => context.waitForVerdict(error));
    const committed = this.#commits.expect(round, (gradientScale) => {
      if (isClipped) layout.stage.update({ ...update, gradientScale });
    });
    // Not waited for: the next round can begin. A failure ends the run.
    const isShown = isUsual && isTraced(round);
    this.#report(session, { round, outcome, isShown }).catch((error: unknown) => session.failure.fail(error));
    if (isClipped) await context.guard(committed);
    statistics.roundIsQueued();
  }

  /** What this layout's activations travel in, where that is not the plan's alone. */
  #bitsOf(layout: Layout): BitsInUse | undefined {
    if (this.#bits?.layout !== layout) {
      const { engine } = this.#context.options;
      const device = { rate: (peer: string) => this.#options.peers.rate(peer), busyMs: () => engine.busyMs() };
      this.#bits = { layout, inUse: bitsInUse(layout.plan, device) };
    }
    return this.#bits.inUse;
  }

  /** Reports that the round is computed; with the times of its instructions, if they are shown. */
  async #report(
    session: LayoutSession,
    { round, outcome, isShown }: { round: number; outcome: Promise<RoundOutcome>; isShown: boolean },
  ): Promise<void> {
    const context = this.#context;
    const { result, times } = await outcome.catch((error: unknown) => context.waitForVerdict(error));
    if (session !== context.session) return;
    const linkMbps = this.#options.peers.rates();
    const activationBits = this.#bits?.inUse?.changes() ?? {};
    await context.send('prepared', {
      ...result,
      ...this.#options.work.sinceLast(),
      ...(Object.keys(linkMbps).length === 0 ? {} : { linkMbps }),
      ...(Object.keys(activationBits).length === 0 ? {} : { activationBits }),
    });
    if (isShown) await context.send('trace', { round, times });
  }

  /** A round holds on all devices: its update stands, and the state before it may go. Throws ProtocolError. */
  committed({ round, gradientScale }: ToWorker['commit']): void {
    const layout = this.#context.model?.layouts.current;
    if (layout === undefined || !this.#commits.arrived(round, gradientScale))
      throw new ProtocolError(`The coordinator committed round ${round}, which was not prepared.`);
    layout.committed(round + 1);
    startDueCopy(this.#context, layout, this.#options.peers);
  }

  /** Resolves when `round` has committed; undefined if it has already. */
  commitOf(round: number): Promise<void> | undefined {
    return this.#commits.of(round);
  }

  /** Another layout has been announced: rounds that have not committed are given up. */
  forget(): void {
    this.#commits.forget();
  }
}
