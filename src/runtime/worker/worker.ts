// A worker: one device's part of a run. It does what the coordinator's messages say, one after the other, and lets
// pipeline data flow beside them into the mailbox. It ends when the coordinator ends the run or the link to it is lost;
// nothing of the run outlives it.
//
// A new layout interrupts whatever is going on: the round is given up, the state returns to the version that the
// coordinator names, layers travel, and what was before is kept until it is released (layout.ts). A lost peer is
// reported and waited out: the coordinator decides what follows.

import { defined, unreachable } from '../../assert.ts';
import type { Clock } from '../../clock.ts';
import type { Plan } from '../../cluster/cluster.ts';
import { bytesInMiB } from '../../cluster/memory.ts';
import type { Engine } from '../../engine/engine.ts';
import type { ProcessClock } from '../../engine/node/work-clock.ts';
import { InputError, ProtocolError, RunError } from '../../errors.ts';
import type { LayerSequence } from '../../graph/layers.ts';
import type { Move } from '../../planner/replan/moves.ts';
import { type DeviceProgram, isUpdateImmediate } from '../../schedule/program.ts';
import type { Frame, Link } from '../../transport/link.ts';
import type { StageStore } from '../device/compiled-stages.ts';
import { createStage } from '../device/create-stage.ts';
import { Mailbox } from '../device/mailbox.ts';
import { cachedProfile, type MeasuredProfile, type ProfileCache, profileLayers } from '../device/measure/profiler.ts';
import { feedName, isTraced, type RoundOutcome, runRound } from '../device/round.ts';
import type { StagePort } from '../device/stage.ts';
import type { StageOptions } from '../device/stage-graphs.ts';
import type { StateEntry } from '../device/stage-state.ts';
import type { UpdateOptions } from '../device/stage-update.ts';
import { type ProcessMeters, processMeters, WorkReport } from '../host/process-meters.ts';
import type { ProfileJob, ProfileProcess } from '../host/profile-apart.ts';
import { StagesAhead } from '../host/stages-ahead.ts';
import { trainingMiB } from '../knowledge/memory-need.ts';
import { Failure } from '../protocol/failure.ts';
import {
  type Message,
  type ModelMessage,
  message,
  type PeerAddress,
  parseMessage,
  type StatePart,
  type ToCoordinator,
  type ToPeer,
  type ToWorker,
  toPeerSchemas,
  toWorkerSchemas,
} from '../protocol/messages.ts';
import { Arrivals } from './arrivals.ts';
import type { LayerRange } from './catalog.ts';
import { Departures } from './departures.ts';
import { EarlyFrames } from './early-frames.ts';
import { checkedProgram, Layout, stageIdentity, topologyOf } from './layout.ts';
import { measureLinks } from './measure-links.ts';
import { earlier, type Model, receiveModel, stageOptionsOf } from './model.ts';
import { type LostLink, type PeerNetwork, Peers } from './peers.ts';
import type { Replicas } from './replicas.ts';
import { Commits, guarded, type Session, Superseded, sessionOf } from './session.ts';

export interface WorkerOptions {
  /** The name that the coordinator gave this device. */
  readonly name: string;
  readonly coordinator: Link;
  /** Listens for peers that know `token`; their links go to `onLink`. */
  createNetwork(name: string, token: string, onLink: (link: Link) => void): Promise<PeerNetwork>;
  readonly clock: Clock;
  /** Stays the caller's to close. */
  readonly engine: Engine;
  readonly profileCache?: ProfileCache;
  /** Measures a model elsewhere. Default: on `engine`. */
  startProfile?(job: ProfileJob, onProgress: (done: number, total: number) => void): ProfileProcess;
  readonly stageStore?: StageStore;
  /** Aborted: asks the coordinator to be let go. */
  readonly leave?: AbortSignal;
  /** What this device may use. Default: not known. */
  readonly memoryBytes?: number;
  /** Compiles the stage that computes. Default: on `engine`. */
  createStage?(options: StageOptions): Promise<StagePort>;
  /**
   * Reads the model that the coordinator sent. Default: its graph, cut into layers. Throws ProtocolError or InputError.
   */
  readModel?(message: ModelMessage, frame: Frame): LayerSequence;
  /** Default: those of this process. */
  readonly meters?: ProcessMeters;
  /** What this process has done (`createProcessClock`). Default: not known. */
  readonly processWork?: ProcessClock;
}

/** How a worker's part ended. */
export interface WorkerEnd {
  /** True when the coordinator said so. */
  readonly clean: boolean;
  /**
   * True when the link to the coordinator ended without a word: it may have given up a device that was only away, or be
   * started again.
   */
  readonly lost?: boolean;
  readonly reason: string;
}

/** Serves one run; resolves when it is over. */
export async function runWorker(options: WorkerOptions): Promise<WorkerEnd> {
  const worker = new Worker(options);
  return worker.serve();
}

/** Time between signs of life to the coordinator. */
export const heartbeatMs = 500;

/** How long the coordinator may take to say what a lost link means, and a peer to call. */
const verdictMs = 30_000;
const callMs = 10_000;

class Worker {
  readonly #options: WorkerOptions;
  readonly #peers: Peers;
  readonly #meters: ProcessMeters;
  readonly #commits = new Commits();
  #queue: Message<ToWorker>[] = [];
  readonly #early = new EarlyFrames();
  /** Undefined where nothing is kept of stages. */
  readonly #ahead: StagesAhead | undefined;
  #wake: () => void = () => {};
  #mailbox = new Mailbox(0);
  #session: Session = sessionOf(0);
  #ended: WorkerEnd | undefined;
  #network: PeerNetwork | undefined;
  #model: Model | undefined;
  /** The commit that the last round still waits for, and the update that waits for it. */
  #unsettled: Promise<void> | undefined;
  #clippedUpdate: Omit<UpdateOptions, 'gradientScale'> | undefined;
  /** Devices that left before all were linked. */
  readonly #gone = new Set<string>();
  #peakMemoryBytes = 0;
  readonly #work: WorkReport;
  #stopHeartbeat: () => void = () => {};

  constructor(options: WorkerOptions) {
    this.#options = options;
    this.#meters = options.meters ?? processMeters();
    const { engine, stageStore: store, memoryBytes } = options;
    this.#work = new WorkReport(options.processWork, engine);
    this.#ahead = store && new StagesAhead({ engine, store, memoryBytes });
    this.#peers = new Peers(options.name, options.clock, {
      onFrame: (from, frame) => this.#fromPeer(from, frame),
      onEnd: (peer, lost) => this.#peerLost(peer, lost),
      // Nothing computes before the first layout: what the main thread does is for its links.
      linkWorkMs: () => (this.#model?.layouts.current === undefined ? this.#work.mainMs() : undefined),
    });
    options.coordinator.receive((frame) => this.#received(frame));
    void options.coordinator.ended.then((end) =>
      this.#end({
        clean: false,
        lost: true,
        reason: end.clean ? end.reason : `the coordinator is gone: ${end.reason}`,
      }),
    );
  }

  async serve(): Promise<WorkerEnd> {
    let end: WorkerEnd = { clean: false, reason: 'the worker has failed' };
    this.#beat();
    const leave = (): void => void this.#send('leaving', {}).catch(() => {}); // a lost link ends the run by itself
    this.#options.leave?.addEventListener('abort', leave, { once: true });
    try {
      for (;;) {
        try {
          await this.#handle(await this.#next());
        } catch (error) {
          if (!(error instanceof Superseded)) throw error;
        }
      }
    } catch (error) {
      // What the coordinator said counts, whatever its end interrupted.
      end = this.#ended ?? (await this.#report(error));
    } finally {
      this.#options.leave?.removeEventListener('abort', leave);
      await this.#close(end.reason);
    }
    return end;
  }

  /** Signs of life, which say that this process answers: not how far its computing is. */
  #beat(): void {
    const beat = (): void => {
      void this.#send('heartbeat', {}).catch(() => {}); // a lost link ends the run by itself
      this.#stopHeartbeat = this.#options.clock.after(heartbeatMs, beat);
    };
    beat();
  }

  async #close(reason: string): Promise<void> {
    this.#stopHeartbeat();
    this.#meters.stop();
    this.#mailbox.fail(new RunError(reason));
    await Promise.all([
      this.#peers.close(reason),
      this.#network?.close(),
      this.#options.coordinator.close(reason),
      this.#ahead?.close(),
    ]);
    this.#model?.layouts.dispose();
  }

  #end(end: WorkerEnd): void {
    this.#ended ??= end;
    this.#session.failure.fail(new RunError(end.reason));
    this.#wake();
  }

  async #report(error: unknown): Promise<WorkerEnd> {
    const text = error instanceof Error ? error.message : String(error);
    // If the link is gone as well, there is nobody to tell.
    await this.#send('failed', { message: text.slice(0, 2000) }).catch(() => {});
    if (!(error instanceof InputError || error instanceof RunError || error instanceof ProtocolError)) throw error;
    return { clean: false, reason: text };
  }

  #received(frame: Frame): void {
    if (frame.kind === 'input' || frame.kind === 'label') return this.#file(feedName, frame);
    const received = parseMessage<ToWorker>(toWorkerSchemas, frame, 'The coordinator');
    switch (received.kind) {
      case 'end':
        return this.#end({ clean: true, reason: received.control.reason });
      case 'commit':
        return this.#committed(received.control);
      case 'probe':
        return void this.#send('alive', {}).catch(() => {}); // a lost link ends the run by itself
      case 'measure-link':
        return void this.#measureAgain(received.control.peer).catch((error: unknown) =>
          this.#session.failure.fail(error),
        );
      case 'gone':
        this.#gone.add(received.control.peer);
        return this.#peers.gone(received.control.peer);
      case 'reserve':
        return void this.#reserve(received.control).catch(() => {}); // a lost link ends the run by itself
      case 'release':
        return this.#model?.layouts.release(received.control.before);
      case 'state':
        return this.#arrived(null, received);
      case 'deploy':
        this.#supersede(received.control, received.frame.epoch);
        break;
      default:
    }
    if (this.#queue.length >= 100_000)
      throw new ProtocolError('The coordinator sent more messages than may wait here.');
    this.#queue.push(received);
    this.#wake();
  }

  /**
   * A frame from a peer: of the layout in force it is used, of a later one it waits, of an earlier one it is late and
   * dropped.
   */
  #fromPeer(from: string, frame: Frame): void {
    if (frame.epoch > this.#session.epoch) {
      const { catalog, sequence } = earlier(this.#model, 'deploy', 'a model');
      return this.#early.keep(from, frame, catalog.stateBytes([0, sequence.layers.length]));
    }
    if (frame.epoch < this.#session.epoch) return;
    if (!Object.hasOwn(toPeerSchemas, frame.kind)) return this.#file(from, frame);
    const received = parseMessage<ToPeer>(toPeerSchemas, frame, from);
    switch (received.kind) {
      case 'state':
        return this.#arrived(from, received);
      case 'state-end':
        return this.#arrivals(from).end(from, received.control);
      case 'replica':
        return this.#replicas().add(from, this.#copyFrom(from, frame.round), received.control, frame.tensors?.[0]);
      case 'replica-end': {
        const { layers } = this.#copyFrom(from, frame.round);
        this.#replicas().end(from, { round: frame.round, layers }, received.control);
        // a lost link ends the run by itself
        void this.#send('replicated', { round: frame.round, layers }).catch(() => {});
        return;
      }
      default:
        unreachable(received);
    }
  }

  /** Files pipeline data; frames of another membership epoch are late ones and dropped. */
  #file(from: string, frame: Frame): void {
    if (frame.epoch !== this.#session.epoch) return;
    this.#mailbox.put({ kind: frame.kind, round: frame.round, microBatch: frame.microBatch, from }, frame);
  }

  #arrived(from: string | null, { control, frame }: Extract<Message<ToPeer>, { kind: 'state' }>): void {
    this.#arrivals(from ?? 'The coordinator').add(from, control, frame.tensors?.[0]);
  }

  #arrivals(sender: string): Arrivals {
    if (this.#session.arrivals === undefined) throw new ProtocolError(`${sender} sent state that nothing waits for.`);
    return this.#session.arrivals;
  }

  #replicas(): Replicas {
    return earlier(this.#model, 'deploy', 'a model').replicas;
  }

  /** What a copy from this peer is of. */
  #copyFrom(from: string, round: number): { readonly round: number; readonly layers: LayerRange } {
    const kept = this.#session.topology?.kept.find(({ owner }) => owner === from);
    if (kept === undefined || round < 0)
      throw new ProtocolError(`${from} sent a copy of its stage, which this device does not keep.`);
    return { round, layers: kept.layers };
  }

  async #next(): Promise<Message<ToWorker>> {
    while (this.#queue.length === 0) {
      const woken = new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
      await this.#guard(woken);
    }
    return defined(this.#queue.shift(), 'a message');
  }

  #send<Kind extends keyof ToCoordinator>(
    kind: Kind,
    control: ToCoordinator[Kind],
    tensors: Frame['tensors'] = [],
    { epoch }: Session = this.#session,
  ): Promise<void> {
    return this.#options.coordinator.send(message(kind, control, tensors, { epoch }), 'control');
  }

  async #handle(received: Message<ToWorker>): Promise<void> {
    switch (received.kind) {
      case 'model':
        return this.#setModel(received.control, received.frame);
      case 'connect': {
        const { peers } = received.control;
        await this.#guard(
          this.#peers.connect(earlier(this.#network, 'connect', 'a model'), peers, {
            names: peers.map(({ name }) => name).filter((name) => !this.#gone.has(name)),
            waitMs: callMs,
          }),
        );
        return this.#send('connected', {});
      }
      case 'measure':
        return this.#measure(received.control.peers);
      case 'profile':
        return this.#profile(received.control.batchSizes);
      case 'deploy':
        return this.#deploy(received.control);
      case 'round':
        return this.#runRound(received.control);
      case 'snapshot':
        return this.#snapshot(received.control);
      case 'state':
      case 'commit':
      case 'release':
      case 'probe':
      case 'measure-link':
      case 'gone':
      case 'reserve':
      case 'end':
        return; // heard on arrival
      default:
        unreachable(received);
    }
  }

  /** Waits for work, but not beyond the layout in force, or the end of the run. */
  #guard<T>(work: Promise<T>): Promise<T> {
    return this.#session.failure.guard(work);
  }

  async #setModel(control: ModelMessage, frame: Frame): Promise<void> {
    this.#model = receiveModel(control, frame, this.#options.readModel);
    this.#network ??= await this.#options.createNetwork(this.#options.name, control.peerToken, (link) =>
      this.#peers.accept(link),
    );
    await this.#send('ready', { listenUrl: this.#network.url });
  }

  async #measure(peers: readonly string[]): Promise<void> {
    const links = await measureLinks(peers, (peer) => this.#guard(this.#peers.measure(peer)));
    await this.#send('measured', { links });
  }

  /** Measures a link while training goes on, behind all that is more urgent. */
  async #measureAgain(peer: string): Promise<void> {
    try {
      await this.#send('link-measured', await this.#peers.measure(peer, 'bulk'));
    } catch (error) {
      if (!(error instanceof RunError)) throw error; // a link that is lost is told of by itself
    }
  }

  /** This device's part in a layout that may come is made ready beside the work. */
  #reserve({ plan, id }: ToWorker['reserve']): Promise<void> {
    const model = earlier(this.#model, 'reserve', 'a model');
    const device = checkedProgram(plan, model.sequence, this.#options.name);
    const ready = device && this.#ahead?.add(model, device, plan);
    return Promise.resolve(ready).then(() => this.#send('reserved', { id }));
  }

  async #profile(batchSizes: readonly number[]): Promise<void> {
    const { engine, profileCache } = this.#options;
    const model = earlier(this.#model, 'profile', 'a model');
    const { sequence, label, message: control } = model;
    const subject = { engineName: engine.name, sequence, batchSizes, training: control.training, label };
    await this.#send(
      'profiled',
      await this.#guard(cachedProfile(profileCache, subject, () => this.#measureModel(model, batchSizes))),
    );
  }

  async #measureModel(
    { message: control, graph, sequence, label }: Model,
    batchSizes: readonly number[],
  ): Promise<MeasuredProfile> {
    const { engine, clock, memoryBytes, startProfile, processWork } = this.#options;
    const onProgress = (done: number, total: number): void =>
      void this.#send('profile-progress', { done, total }).catch(() => {}); // a lost link ends the run by itself
    if (startProfile === undefined || graph === undefined) {
      return profileLayers(engine, sequence, {
        batchSizes,
        training: control.training,
        label,
        memoryBytes,
        clock,
        processWork,
        onProgress,
      });
    }
    const job = {
      message: control,
      graph,
      batchSizes,
      memoryBytes: memoryBytes && trainingMiB(memoryBytes / bytesInMiB) * bytesInMiB,
    };
    const { profile, end } = startProfile(job, onProgress);
    try {
      return await this.#guard(profile);
    } finally {
      end();
    }
  }

  /**
   * A layout has been announced: whatever waits for the one before gives up, and what peers send for the new one finds
   * its place.
   */
  #supersede({ plan, moves, stateCount }: ToWorker['deploy'], epoch: number): void {
    const { sequence, catalog, replicas } = earlier(this.#model, 'deploy', 'a model');
    const { name } = this.#options;
    const device = checkedProgram(plan, sequence, name);
    const topology = device && topologyOf(plan, device);
    const ours = moves.filter(({ to }) => to === name);
    const partners = new Set([
      ...(topology?.peers ?? []),
      ...moves.filter(({ from }) => from === name).map(({ to }) => to),
    ]);
    for (const { from } of ours) if (from !== null) partners.add(from);
    const before = this.#session;
    this.#session = {
      failure: new Failure(),
      epoch,
      program: device,
      topology,
      arrivals: new Arrivals({ catalog, moves: ours, stateCount }),
      lostPeers: new Set(),
      partners,
    };
    this.#queue = [];
    this.#commits.forget();
    this.#unsettled = undefined;
    this.#clippedUpdate = undefined;
    replicas.interrupt();
    before.failure.fail(new Superseded());
    this.#mailbox.fail(new Superseded());
    for (const { from, frame } of this.#early.take()) this.#fromPeer(from, frame);
  }

  /**
   * Establishes the announced layout: everyone sends what others need, gets what it lacks, and says when that is done.
   */
  async #deploy({ plan, round, moves, peers }: ToWorker['deploy']): Promise<void> {
    const { name } = this.#options;
    const model = earlier(this.#model, 'deploy', 'a model');
    const { arrivals, program, partners, epoch, failure } = this.#session;
    model.layouts.returnTo(round);
    const departures = new Departures(model, { name, moves, round, failure });
    const send = (part: StatePart): Promise<void> =>
      departures.send(part, epoch, (to, frame, priority) => this.#guard(this.#peers.send(to, frame, priority)));
    const sent = this.#linkTo(peers, partners).then(() => send('weights'));
    const done = this.#guard(sent.then(() => send('optimizer')));
    this.#inBackground(done.finally(() => departures.close()));
    if (program === undefined) this.#retire();
    else await this.#establish(program, plan, { round, arriving: moves.filter(({ to }) => to === name) });
    await this.#guard(this.#explained(Promise.all([sent, arrivals?.weights])));
    if (model.layouts.current !== undefined) await this.#begin(model.layouts.current);
    await this.#send('deployed', { valueBytes: this.#options.engine.valueBytes() });
  }

  /** Goes on beside what follows. What fails ends the layout, unless the coordinator explains it. */
  #inBackground(work: Promise<void>): void {
    const { failure } = this.#session;
    work.catch((error: unknown) => this.#waitForVerdict(error)).catch((error: unknown) => failure.fail(error));
  }

  /** This device has no part in the layout; what it holds is kept for the others. */
  #retire(): void {
    this.#mailbox = new Mailbox(0);
  }

  /**
   * The stage of the new layout: the one that is here already, if it computes the same, else a new one with what this
   * device has of its state.
   */
  async #establish(
    device: DeviceProgram,
    plan: Plan,
    { round, arriving }: { round: number; arriving: readonly Move[] },
  ): Promise<void> {
    const model = earlier(this.#model, 'deploy', 'a model');
    const { catalog, layouts } = model;
    const { arrivals, failure } = this.#session;
    const options = stageOptionsOf(model, device, plan, this.#options.memoryBytes);
    const key = stageIdentity(options);
    const same = layouts.takeLike(key);
    const begin = (stage: StagePort): Layout => {
      const layout = new Layout({ program: device, stage, key }, round);
      layouts.current = layout;
      this.#mailbox = new Mailbox(stage.mailboxBytes(plan.microBatchCount));
      return layout;
    };
    if (same !== undefined) begin(same.stage).begin(undefined);
    else {
      const own = new Set(catalog.names(device.layers));
      for (const { layers } of arriving) for (const name of catalog.names(layers)) own.delete(name);
      const staying = layouts.held({ names: own, round }, failure);
      try {
        const { stage } = begin(await this.#guardStage(this.#createStage(options)));
        for await (const entry of staying) stage.load(entry);
      } finally {
        staying.close();
      }
    }
    const { stage } = defined(layouts.current, 'the layout');
    // A stage that goes on has all that it needs, whatever others were told to send: it may have been whole before the
    // coordinator knew.
    arrivals?.deliver(same === undefined ? (entry) => stage.load(entry) : () => {});
  }

  #createStage(options: StageOptions): Promise<StagePort> {
    const { engine, stageStore, createStage: create = () => createStage(engine, options, stageStore) } = this.#options;
    return create(options);
  }

  /** A stage that comes after another layout has been announced goes at once. */
  #guardStage(creating: Promise<StagePort>): Promise<StagePort> {
    const session = this.#session;
    void creating.then(
      (stage) => {
        if (this.#session !== session || this.#ended !== undefined) stage.dispose();
      },
      () => {}, // seen by the guard
    );
    return this.#guard(creating);
  }

  /** Links to all partners, anew where a link was lost. One that cannot be had is told as a lost one. */
  async #linkTo(peers: readonly PeerAddress[], partners: ReadonlySet<string>): Promise<void> {
    const network = earlier(this.#network, 'deploy', 'a model');
    const session = this.#session;
    await this.#peers.connect(network, peers, {
      names: [...partners],
      waitMs: callMs,
      onFailure: (peer, reason) => {
        if (session === this.#session) this.#peerLost(peer, { reason, isFault: false });
      },
    });
  }

  /** A round can begin: all weights are in place. */
  async #begin(layout: Layout): Promise<void> {
    if (!layout.isComplete) {
      const missing = layout.stage.missingState();
      if (missing.length > 0) throw new ProtocolError(`Nobody sent a value for ${missing.slice(0, 3).join(', ')}.`);
      layout.begin(this.#session.arrivals?.complete);
    }
    await this.#guard(this.#options.engine.settled());
  }

  /** The layout that runs. Its weights are in place: until then, nothing else is handled. */
  #running(kind: 'round' | 'snapshot'): Layout {
    return earlier(this.#model?.layouts.current, kind, 'a plan');
  }

  /**
   * Queues a round, waits until the one before has committed, and prepares when it is computed. Without clipping the
   * update is queued at once, and the next round behind it, while the sums are on their way and the coordinator
   * decides; the state before is kept until it has.
   */
  async #runRound({ round, learningRate, replicate }: ToWorker['round']): Promise<void> {
    const layout = this.#running('round');
    this.#meters.start();
    // What goes on in the background of a round that was given up must not touch the next layout's: neither its mail
    // nor its word.
    const session = this.#session;
    const mailbox = this.#mailbox;
    const step = round + 1;
    const isClipped = defined(this.#model, 'the model').message.training.clipNorm !== null;
    const plannedUpdate = isClipped ? undefined : { learningRate, gradientScale: 1, step };
    if (replicate) this.#copyWhenCommitted(layout, round);
    const unsettled = this.#unsettled;
    if (isUpdateImmediate(layout.program)) await this.#guard(layout.complete);
    const { outcome } = await runRound(layout.program, layout.stage, round, {
      clock: this.#options.clock,
      send: (to, frame, priority) => this.#peers.send(to, { ...frame, epoch: session.epoch }, priority),
      receive: (key) => mailbox.take(key),
      failure: session.failure,
      plannedUpdate,
      nextUpdate: async () => {
        await Promise.all([unsettled, layout.complete]);
        return plannedUpdate;
      },
      processWorkMs: () => this.#work.processMs(),
    }).catch((error: unknown) => this.#waitForVerdict(error));
    const committed = this.#commits.expect(round);
    if (isClipped) this.#clippedUpdate = { learningRate, step };
    this.#unsettled = committed;
    // Not waited for: the next round can begin. What goes wrong ends the run.
    this.#reportRound(session, round, outcome).catch((error: unknown) => session.failure.fail(error));
    if (isClipped) await this.#guard(committed);
    this.#peakMemoryBytes = Math.max(this.#peakMemoryBytes, this.#meters.residentBytes());
  }

  /** Tells the coordinator that the round is computed. */
  async #reportRound(session: Session, round: number, outcome: Promise<RoundOutcome>): Promise<void> {
    const { result, times } = await outcome.catch((error: unknown) => this.#waitForVerdict(error));
    if (session !== this.#session) return;
    const linkMbps = this.#peers.rates();
    await this.#send('prepared', {
      ...result,
      ...this.#work.sinceLast(),
      ...(Object.keys(linkMbps).length === 0 ? {} : { linkMbps }),
    });
    if (isTraced(round)) await this.#send('trace', { round, times });
  }

  /** A round holds on all devices: its update stands, and the state before it may go. */
  #committed({ round, gradientScale }: ToWorker['commit']): void {
    const layout = this.#model?.layouts.current;
    if (layout === undefined || !this.#commits.arrived(round))
      throw new ProtocolError(`The coordinator committed round ${round}, which was not prepared.`);
    if (this.#clippedUpdate !== undefined) layout.stage.update({ ...this.#clippedUpdate, gradientScale });
    this.#clippedUpdate = undefined;
    this.#unsettled = undefined;
    layout.committed(round + 1);
    if (layout.copyRound === round + 1) this.#startCopy(layout);
  }

  /** Version `round` goes to the stage's backup as soon as it has committed. */
  #copyWhenCommitted(layout: Layout, round: number): void {
    layout.pin(round);
    layout.copyRound = round;
    if (layout.committedRound === round) this.#startCopy(layout);
  }

  #startCopy(layout: Layout): void {
    this.#inBackground(this.#copy(layout));
  }

  /** Sends a copy of a version, as far as it differs from the one that the backup has; with the lowest priority. */
  async #copy(layout: Layout): Promise<void> {
    const { epoch, topology, failure } = this.#session;
    const round = defined(layout.copyRound, 'a version to copy');
    layout.copyRound = undefined;
    const to = topology?.backup;
    if (to === undefined) return;
    await failure.guard(layout.complete);
    const base = layout.copiedRound;
    layout.copiedRound = round;
    let count = 0;
    const entries = layout.stage.state({ round, ...(base === undefined ? {} : { since: base }) });
    for await (const { role, name, value } of guarded(entries, failure)) {
      await failure.guard(this.#peers.send(to, message('replica', { role, name }, [value], { epoch, round }), 'bulk'));
      count++;
    }
    const control = { layers: layout.program.layers, count, base: base ?? -1 };
    await failure.guard(this.#peers.send(to, message('replica-end', control, [], { epoch, round }), 'bulk'));
  }

  /**
   * A peer's link may end a moment before the coordinator says why, or while the peer lives: only the coordinator
   * decides what a loss means. Peers that this device has nothing to do with go their way.
   */
  #peerLost(peer: string, { reason, isFault }: LostLink): void {
    const { partners, lostPeers } = this.#session;
    if (!partners.has(peer) || lostPeers.has(peer)) return;
    lostPeers.add(peer);
    // a lost link ends the run by itself
    void this.#send('lost-peer', { peer, reason: reason.slice(0, 1000), isFault }).catch(() => {});
  }

  /** A failure that a lost peer explains is not this device's: it waits for what the coordinator decides. */
  async #explained<T>(work: Promise<T>): Promise<T> {
    try {
      return await work;
    } catch (error) {
      return this.#waitForVerdict(error);
    }
  }

  /**
   * After a lost peer the coordinator decides; it is given some time to say so before this worker reports the loss as
   * its own end.
   */
  async #waitForVerdict(error: unknown): Promise<never> {
    if (error instanceof ProtocolError && error.peer !== undefined)
      this.#peerLost(error.peer, { reason: error.message, isFault: true });
    else if (!(error instanceof RunError)) throw error;
    const { promise, cancel } = timeout(this.#options.clock, verdictMs);
    try {
      await this.#guard(promise);
    } finally {
      cancel();
    }
    throw error;
  }

  /** Whatever comes in between, what is said is of the layout that was asked. */
  async #snapshot({ round, withState }: ToWorker['snapshot']): Promise<void> {
    const session = this.#session;
    const { stage, complete } = this.#running('snapshot');
    await this.#guard(Promise.all([this.#unsettled, complete]));
    for await (const entry of guarded(withState ? stage.state({ round }) : noEntries(), session.failure)) {
      await session.failure.guard(this.#send('state', { role: entry.role, name: entry.name }, [entry.value], session));
    }
    const statistics = {
      eventLoopDelayP99Ms: this.#meters.eventLoopDelayP99Ms(),
      eventLoopDelayMaxMs: this.#meters.eventLoopDelayMaxMs(),
      peakMemoryMiB: Math.max(this.#peakMemoryBytes, this.#meters.residentBytes()) / 2 ** 20,
    };
    await session.failure.guard(this.#send('statistics', statistics, [], session));
    await session.failure.guard(this.#send('snapshot-end', { round }, [], session));
  }
}

async function* noEntries(): AsyncGenerator<StateEntry> {}

function timeout(clock: Clock, delayMs: number): { promise: Promise<void>; cancel: () => void } {
  let cancel = (): void => {};
  const promise = new Promise<void>((resolve) => {
    cancel = clock.after(delayMs, resolve);
  });
  return { promise, cancel };
}
