// What the parts of a worker share: its options, the model, the layout in force, and the way to the coordinator. A lost
// peer is reported and waited out: what follows is the coordinator's decision.

import type { Clock } from '../../clock.ts';
import { InputError, ProtocolError, RunError } from '../../errors.ts';
import type { Frame } from '../../transport/link.ts';
import { message, type ToCoordinator, type ToWorker } from '../protocol/messages.ts';
import type { Layout } from './layout.ts';
import { type LayoutSession, sessionOf } from './layout-session.ts';
import { earlier, type Model } from './model.ts';
import type { WorkerEnd, WorkerOptions } from './options.ts';
import type { LostLink } from './peers.ts';

/** Time between signs of life to the coordinator. */
const heartbeatMs = 500;

/** How long the coordinator may take to say what a lost link means. */
const verdictMs = 30_000;

export class WorkerContext {
  readonly options: WorkerOptions;
  /** The layout in force, from its announcement. */
  session: LayoutSession = sessionOf(0);
  /** The model, once the coordinator has sent it. */
  model: Model | undefined;
  /** How the run ended, once it has. */
  ended: WorkerEnd | undefined;
  /** Work that cannot be given up: the worker ends after it. */
  readonly #lasting = new Set<Promise<void>>();

  constructor(options: WorkerOptions) {
    this.options = options;
  }

  /** The model, which a message of this kind needs. Throws ProtocolError before it has come. */
  modelFor(kind: keyof ToWorker): Model {
    return earlier(this.model, kind, 'a model');
  }

  /** The layout that runs. Its weights are in place: until then, no message is taken in turn. Throws ProtocolError. */
  running(kind: 'round' | 'flush' | 'snapshot'): Layout {
    return earlier(this.model?.layouts.current, kind, 'a plan');
  }

  /** Whether rounds of the layout that runs overlap. */
  isStreaming(): boolean {
    return this.model?.layouts.current?.program.staleness !== undefined;
  }

  /** Sends a message to the coordinator; resolves under back-pressure as Link.send does. */
  send<Kind extends keyof ToCoordinator>(
    kind: Kind,
    control: ToCoordinator[Kind],
    tensors: Frame['tensors'] = [],
    { epoch }: LayoutSession = this.session,
  ): Promise<void> {
    return this.options.coordinator.send(message(kind, control, tensors, { epoch }), 'control');
  }

  /** Sends a message that nobody waits for. */
  notify<Kind extends keyof ToCoordinator>(kind: Kind, control: ToCoordinator[Kind]): void {
    void this.send(kind, control).catch(() => {}); // a lost link ends the run by itself
  }

  /**
   * Sends signs of life until the returned function is called. They say that this process answers, not how far its
   * computing is.
   */
  beat(): () => void {
    let stop = (): void => {};
    const next = (): void => {
      const load = this.options.meters?.load?.();
      this.notify('heartbeat', load === undefined ? {} : { load });
      stop = this.options.clock.after(heartbeatMs, next);
    };
    next();
    return () => stop();
  }

  /** Reports an error that ends the worker; throws it if it is a mistake of our own. */
  async reportFailure(error: unknown): Promise<WorkerEnd> {
    const text = error instanceof Error ? error.message : String(error);
    // If the link has ended as well, nobody receives it.
    await this.send('failed', { message: text.slice(0, 2000) }).catch(() => {});
    if (!(error instanceof InputError || error instanceof RunError || error instanceof ProtocolError)) throw error;
    return { clean: false, reason: text };
  }

  /** Waits for work, but not beyond the layout in force, or the end of the run. */
  guard<T>(work: Promise<T>): Promise<T> {
    return this.session.failure.guard(work);
  }

  /** The run is over for this device. The first reason counts. */
  end(end: WorkerEnd): void {
    this.ended ??= end;
    this.session.failure.fail(new RunError(end.reason));
  }

  /** Work that nobody waits for but the end of the worker. */
  outlast(work: Promise<void>): void {
    const { failure } = this.session;
    this.#lasting.add(work);
    work.catch((error: unknown) => failure.fail(error)).finally(() => this.#lasting.delete(work));
  }

  /** What is to be waited for before the engine goes; undefined: nothing. */
  get lasting(): Promise<unknown> | undefined {
    return this.#lasting.size === 0 ? undefined : Promise.all(this.#lasting);
  }

  /** Work that nobody waits for. Its failure ends the layout, unless the coordinator explains it. */
  inBackground(work: Promise<void>): void {
    const { failure } = this.session;
    work.catch((error: unknown) => this.waitForVerdict(error)).catch((error: unknown) => failure.fail(error));
  }

  /**
   * A link to a peer has ended, perhaps a moment before the coordinator says why, or while the peer lives: only the
   * coordinator decides what it means. Peers with which this device exchanges nothing do not matter.
   */
  peerLost(peer: string, { reason, isFault }: LostLink): void {
    const { partners, lostPeers } = this.session;
    if (!partners.has(peer) || lostPeers.has(peer)) return;
    lostPeers.add(peer);
    this.notify('lost-peer', { peer, reason: reason.slice(0, 1000), isFault });
  }

  /** Work whose failure may be a lost peer's: then it waits for what the coordinator decides. */
  async explained<T>(work: Promise<T>): Promise<T> {
    try {
      return await work;
    } catch (error) {
      return this.waitForVerdict(error);
    }
  }

  /**
   * After a lost peer the coordinator decides; it is given some time to say so before this worker reports the loss as
   * its own end. Always rejects.
   */
  async waitForVerdict(error: unknown): Promise<never> {
    if (error instanceof ProtocolError && error.peer !== undefined)
      this.peerLost(error.peer, { reason: error.message, isFault: true });
    else if (!(error instanceof RunError)) throw error;
    const { promise, cancel } = timeout(this.options.clock, verdictMs);
    try {
      await this.guard(promise);
    } finally {
      cancel();
    }
    throw error;
  }
}

function timeout(clock: Clock, delayMs: number): { promise: Promise<void>; cancel: () => void } {
  let cancel = (): void => {};
  const promise = new Promise<void>((resolve) => {
    cancel = clock.after(delayMs, resolve);
  });
  return { promise, cancel };
}
