// Rounds of a stream on one device: where rounds overlap. A granted round is the newest that the device may begin; with
// it, the device runs the tick in which it begins it, and what that tick has of the rounds before. Before training
// pauses, the coordinator says which round will not come before all others are done, and the stream drains.
//
//   first of 3 stages   round 0   round 1   round 2   round 3   flush 4
//   tick                −2        −1        0         1         2     3
//                       F0        F1        F2 B0     F3 B1     B2    B3
//
// Updates may be `updateWindow` rounds ahead of the commits. With clipping, a round is updated when it commits, and a
// forward pass that reads the version that this makes waits for it.

import { defined } from '../../assert.ts';
import { ProtocolError } from '../../errors.ts';
import { updateWindow } from '../../schedule/staleness.ts';
import { DeviceStream } from '../device/device-stream.ts';
import type { RoundTotals } from '../device/round-sums.ts';
import type { ToWorker } from '../protocol/messages.ts';
import type { Commits } from './commits.ts';
import type { WorkerContext } from './context.ts';
import { copyWhenCommitted } from './copies.ts';
import type { Layout } from './layout.ts';
import type { LayoutSession } from './layout-session.ts';
import type { RoundsOptions } from './rounds.ts';

type Control = ToWorker['round'];

/** A layout's stream. */
interface Running {
  readonly layout: Layout;
  readonly stream: DeviceStream;
  /** By round that has not been updated. */
  readonly controls: Map<number, Control>;
  /** When the last update was reached. */
  updatedMs: number;
  /** Rounds are reported in their order. */
  reported: Promise<void>;
}

export class StreamRounds {
  readonly #context: WorkerContext;
  readonly #options: RoundsOptions;
  readonly #commits: Commits;
  #running: Running | undefined;

  /** `commits`: of rounds that are updated and have not committed. */
  constructor(context: WorkerContext, options: RoundsOptions, commits: Commits) {
    this.#context = context;
    this.#options = options;
    this.#commits = commits;
  }

  /** A round may begin: runs the tick in which it does. */
  async run(control: Control): Promise<void> {
    const context = this.#context;
    const { round, replicate, sampleCount, length } = control;
    const layout = context.running('round');
    const running = this.#runningOf(layout);
    if (length !== undefined) throw new ProtocolError('The coordinator sent samples of another length in a stream.');
    if (replicate) copyWhenCommitted(context, layout, round, this.#options.peers);
    running.controls.set(round, control);
    const rest = sampleCount === undefined ? undefined : await context.guard(layout.unusual({ sampleCount }));
    running.stream.add(round, rest);
    this.#options.statistics.roundBegins();
    await this.#tick(running, round - running.stream.offsets[1]);
    this.#options.statistics.roundIsQueued();
  }

  /** No round from `round` on comes before all others are done: runs the ticks that are left of them. */
  async flush({ round }: ToWorker['flush']): Promise<void> {
    const running = this.#runningOf(this.#context.running('flush'));
    const [least, most] = running.stream.offsets;
    for (let tick = round - most; tick < round - least; tick++) await this.#tick(running, tick);
    running.stream.drained();
  }

  #tick({ stream }: Running, tick: number): Promise<void> {
    return stream.run(tick).catch((error: unknown) => this.#context.waitForVerdict(error));
  }

  #runningOf(layout: Layout): Running {
    if (this.#running?.layout !== layout) this.#running = this.#begin(layout);
    return this.#running;
  }

  #begin(layout: Layout): Running {
    const context = this.#context;
    const { session } = context;
    const { peers } = this.#options;
    const { clock } = context.options;
    const { program, stage, committedRound } = layout;
    const isClipped = defined(context.model, 'the model').training.clipNorm !== null;
    const window = updateWindow(layout.plan, program.stage);
    const controls = new Map<number, Control>();
    const updateAt = (round: number): { learningRate: number; step: number; factor: number } => {
      const { learningRate, factor = 1 } = defined(controls.get(round), `round ${round}`);
      return { learningRate, step: round + 1, factor };
    };
    const stream = new DeviceStream(program, stage, committedRound, {
      clock,
      send: (to, frame, priority) => peers.send(to, { ...frame, epoch: session.epoch }, priority),
      receive: (key) => session.mailbox.take(key),
      failure: session.failure,
      isUpdatedLater: isClipped,
      versionIsThere: (number) => (isClipped ? this.#commits.of(number - 1) : undefined),
      updateOf: async (round) => {
        await Promise.all([this.#commits.of(round - window), layout.complete]);
        if (isClipped) return undefined;
        const { factor, ...update } = updateAt(round);
        return { ...update, gradientScale: factor };
      },
      failed: (error) => void context.waitForVerdict(error).catch((verdict: unknown) => session.failure.fail(verdict)),
      traced: (round, times) => {
        running.reported = running.reported.then(async () => {
          const found = await session.failure.guard(times);
          if (session === context.session) await context.send('trace', { round, times: found });
        });
        running.reported.catch((error: unknown) => session.failure.fail(error));
      },
      closed: (round, totals) => {
        const { factor: _factor, ...update } = updateAt(round);
        void this.#commits.expect(round, (gradientScale) => {
          if (isClipped) stage.update({ ...update, gradientScale }, round);
        });
        controls.delete(round);
        running.reported = running.reported.then(() => this.#report(session, running, round, totals));
        running.reported.catch((error: unknown) => session.failure.fail(error));
      },
    });
    const running: Running = { layout, stream, controls, updatedMs: clock.now(), reported: Promise.resolve() };
    return running;
  }

  /** Reports that a round is computed. */
  async #report(session: LayoutSession, running: Running, round: number, totals: Promise<RoundTotals>): Promise<void> {
    const context = this.#context;
    const sums = await totals.catch((error: unknown) => context.waitForVerdict(error));
    if (session !== context.session) return;
    const nowMs = context.options.clock.now();
    const roundMs = nowMs - running.updatedMs;
    running.updatedMs = nowMs;
    const linkMbps = this.#options.peers.rates();
    const busyMs = running.layout.stage.takeBusyMs();
    await context.send('prepared', {
      ...{ round, ...sums, roundMs, busyMs },
      ...this.#options.work.sinceLast(),
      ...(Object.keys(linkMbps).length === 0 ? {} : { linkMbps }),
    });
  }
}
