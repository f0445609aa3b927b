// The coordinator's shell: it feeds the state machine (machine.ts) with what happens on the links and carries out its
// effects. It owns the links, the data feed, the clock and the state that snapshots bring; every decision is the
// machine's.

import type { Plan } from '../../cluster/cluster.ts';
import { InputError, RunError } from '../../errors.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { program } from '../../schedule/generate.ts';
import type { Frame, Link } from '../../transport/link.ts';
import { type Drift, LayoutPlanner, type PlanRequest } from '../knowledge/layout-planner.ts';
import { predictedMiB } from '../knowledge/memory-budgets.ts';
import type { DeviceFacts } from '../protocol/device-facts.ts';
import type { Proposal } from '../protocol/layout-change.ts';
import { type Message, message, parseMessage, type RoundResult, type ToCoordinator } from '../protocol/messages.ts';
import { encodeModel } from '../protocol/model-transfer.ts';
import { optimizerStateCount } from '../protocol/training-spec.ts';
import { checkMeasured, checkProfile, sampleMs } from './answer-checks.ts';
import { DataFeed } from './data-feed.ts';
import { Detector } from './detector.ts';
import { initialState, step } from './machine.ts';
import type { Answer, MachineEffect, MachineInput, MachineState } from './machine-types.ts';
import { fullMembers } from './members.ts';
import type { CoordinatorEnd, CoordinatorOptions } from './options.ts';
import { Readiness } from './readiness.ts';
import { notAsked, Snapshots } from './snapshots.ts';

/** One run's coordinator. */
export interface Coordinator {
  /** Takes in a device whose link is authenticated. */
  join(name: string, link: Link, facts: DeviceFacts): void;
  /** Asks for a clean stop: the round in progress commits, a checkpoint is written. */
  stop(): void;
  /** Goes on without a device, between two rounds, when the others can do its work. */
  drain(device: string): void;
  /** True until all devices that the run asked for have joined. */
  readonly isGathering: boolean;
  /** Resolves at the run's end, with all links closed; rejects with RunError or InputError when it fails. */
  readonly end: Promise<CoordinatorEnd>;
}

/** Starts a coordinator that waits for its workers. */
export function createCoordinator(options: CoordinatorOptions): Coordinator {
  return new CoordinatorShell(options);
}

/** How often it is looked at who is silent. */
const judgeEveryMs = 250;

/** How long a run without devices waits for one to come back. */
const waitMs = 120_000;

/** Why a device is not measured again. */
const tooLittleMemory =
  'its system killed it for want of memory before it had any work: it needs more memory for this model';

/** Messages about a layout: those of an earlier one are late and dropped. */
const layoutKinds: ReadonlySet<string> = new Set<keyof ToCoordinator>([
  'deployed',
  'prepared',
  'state',
  'snapshot-end',
  'replicated',
  'lost-peer',
  'trace',
  'statistics',
]);

class CoordinatorShell implements Coordinator {
  readonly end: Promise<CoordinatorEnd>;
  readonly #options: CoordinatorOptions;
  readonly #links = new Map<string, Link>();
  readonly #planner: LayoutPlanner;
  readonly #detector = new Detector(judgeEveryMs);
  readonly #readiness: Readiness;
  readonly #snapshots: Snapshots;
  #model: ReturnType<typeof encodeModel> | undefined;
  #state: MachineState;
  readonly #inputs: MachineInput[] = [];
  #epoch = 0;
  /** The plan that is being made. */
  #request: PlanRequest | undefined;
  readonly #feed: DataFeed;
  /** When the change of the layout that is going on began. */
  #changeMs: number | undefined;
  #stopJudging: () => void = () => {};
  #stopWaiting: () => void = () => {};
  /** By device that has come back and waits. */
  readonly #stopCooling = new Map<string, () => void>();
  #stopPreparing: () => void = () => {};
  /** When the layout began, and whether all has been said of how ready devices are for losses of it. */
  #readying = { sinceMs: 0, isOver: false };
  /** The last checkpoint that is safe. */
  #durableRound: number | undefined;
  #resolve: (end: CoordinatorEnd) => void = () => {};
  #reject: (error: Error) => void = () => {};

  constructor(options: CoordinatorOptions) {
    this.#options = options;
    this.#planner = new LayoutPlanner(options);
    this.#readiness = new Readiness(options.clock);
    this.#feed = new DataFeed({
      batch: (round) => options.hooks.batch(round),
      send: (device, frame) => this.#handOver(device, frame, 'pipeline'),
      onError: (error) => this.#abort(error),
    });
    this.#state = initialState(options.machine);
    this.#snapshots = new Snapshots(options.subject, options.machine.firstRound);
    this.#durableRound = options.machine.firstRound > 0 ? options.machine.firstRound : undefined;
    this.end = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.end.catch(() => {}); // whoever awaits `end` sees it; nobody may be waiting yet
    this.#judge();
  }

  join(name: string, link: Link, facts: DeviceFacts): void {
    if (this.#state.phase === 'ended' || this.#links.has(name)) {
      // A device that comes back before its former link is given up tries again; after the run there is nothing to come
      // back to.
      if (this.#state.phase === 'ended') return turnAway(link, 'the run is over');
      void link.close(`another device is called ${name}`);
      return;
    }
    const lowered = this.#planner.joined(name, facts);
    if (lowered !== undefined) this.#options.hooks.observe({ kind: 'memory-lowered', device: name, ...lowered });
    const memoryMiB = this.#planner.memoryMiB(name);
    if (memoryMiB === 0 && facts.memoryMiB > 0) return turnAway(link, tooLittleMemory);
    this.#links.set(name, link);
    this.#detector.heard(name, this.#options.clock.now());
    const { machine: _, ...told } = facts;
    this.#options.hooks.observe({ kind: 'joined', device: name, ...told, memoryMiB });
    // What is still on its way from a device that was let go is no sign of life.
    link.receive((frame) => {
      if (this.#links.get(name) === link) this.#received(name, frame);
    });
    void link.ended.then(({ reason }) => {
      if (this.#links.get(name) === link) this.#gone(name, reason);
    });
    this.#input({ kind: 'joined', device: name, isCooling: this.#isCooling(name) });
  }

  /** A device that comes and goes waits, ever longer, unless it is needed. */
  #isCooling(device: string): boolean {
    const { phase } = this.#state;
    const coolDown = phase === 'gathering' || phase === 'waiting' ? undefined : this.#planner.coolDownOf(device);
    if (coolDown === undefined) return false;
    this.#options.hooks.observe({ kind: 'cool-down', device, ...coolDown });
    const stop = this.#options.clock.after(1000 * coolDown.seconds, () => this.#input({ kind: 'cooled', device }));
    this.#stopCooling.set(device, stop);
    return true;
  }

  drain(device: string): void {
    this.#input({ kind: 'answer', device, answer: { kind: 'leaving' } });
  }

  get isGathering(): boolean {
    return this.#state.phase === 'gathering';
  }

  stop(): void {
    this.#input({ kind: 'stop' });
  }

  /** A device is not reached any more, or is given up. */
  #gone(name: string, reason: string): void {
    this.#forget(name);
    this.#planner.vanished(name, this.#heldMiB(name));
    if (this.#state.phase !== 'ended') this.#options.hooks.observe({ kind: 'left', device: name, reason });
    if (this.#hasWork(name)) this.#changeMs ??= this.#options.clock.now();
    this.#input({ kind: 'left', device: name, reason });
  }

  #forget(device: string): void {
    this.#links.delete(device);
    this.#detector.forget(device);
    this.#readiness.gone(device);
    this.#stopCooling.get(device)?.();
    this.#stopCooling.delete(device);
  }

  /**
   * What was predicted that a device holds, or is about to; nothing as long as it is made ready for its first work;
   * undefined where nobody knows.
   */
  #heldMiB(device: string): number | undefined {
    return !this.#hasWork(device) && this.#owesWork(device)
      ? 0
      : predictedMiB(device, [this.#state.plan, this.#state.pending]);
  }

  /** In the layout that stands, or in the next one. */
  #hasWork(device: string): boolean {
    return [this.#state.plan, this.#state.pending].some((plan) =>
      plan?.stages.some(({ devices }) => devices.includes(device)),
    );
  }

  /** Looks at regular times who has been silent for too long. */
  #judge(): void {
    const { clock, hooks } = this.#options;
    if (this.#state.phase === 'ended') return;
    this.#stopJudging = clock.after(judgeEveryMs, () => this.#judge());
    for (const { device, silentMs, suspectAfterMs, deadAfterMs, verdict } of this.#detector.judge(clock.now(), (name) =>
      this.#owesWork(name),
    )) {
      if (verdict === 'suspect') {
        hooks.observe({ kind: 'suspected', device, silentMs, suspectAfterMs, deadAfterMs });
        this.#send(device, message('probe', {}));
        continue;
      }
      const link = this.#links.get(device);
      const reason = `no sign of life for ${(silentMs / 1000).toFixed(1)} s, with ${(deadAfterMs / 1000).toFixed(1)} s allowed`;
      this.#gone(device, reason);
      void link?.close(reason);
    }
  }

  /** Reading a model, profiling and compiling keep a device from answering. */
  #owesWork(device: string): boolean {
    const { phase, waitingFor, members } = this.#state;
    if (members.some(({ name, joining }) => name === device && joining !== undefined && joining !== 'cooling'))
      return true;
    return phase !== 'training' && phase !== 'snapshotting' && waitingFor.includes(device);
  }

  /**
   * One input after the other: an effect that causes an input (a plan made at once) does not overtake the effects
   * behind it. A mistake of our own on the way ends the run.
   */
  #input(input: MachineInput): void {
    this.#inputs.push(input);
    if (this.#inputs.length > 1) return;
    for (let next = this.#inputs[0]; next !== undefined; next = this.#inputs[0]) {
      try {
        const [state, effects] = (this.#options.step ?? step)(this.#options.machine, this.#state, next);
        this.#state = state;
        for (const effect of effects) this.#perform(effect);
      } catch (error) {
        this.#abort(error);
      }
      this.#inputs.shift();
    }
  }

  #received(device: string, frame: Frame): void {
    this.#detector.heard(device, this.#options.clock.now());
    const received = parseMessage('coordinator', frame, device);
    if (!this.#state.members.some((member) => member.name === device)) return; // released, or one too many
    if (layoutKinds.has(received.kind) && frame.epoch !== this.#epoch) return; // about a layout that is no more
    const answer = this.#note(device, received);
    if (answer !== undefined) this.#input({ kind: 'answer', device, answer });
  }

  /** Takes what concerns the shell from a message; returns what concerns the protocol. */
  #note(device: string, received: Message<ToCoordinator>): Answer | undefined {
    switch (received.kind) {
      case 'ready':
        return { kind: 'ready', listenUrl: received.control.listenUrl };
      case 'connected':
        return { kind: 'connected' };
      case 'measured':
        checkMeasured(device, received.control.links, this.#state.members);
        return { kind: 'measured', links: received.control.links };
      case 'profile-progress':
        this.#options.hooks.observe({ kind: 'profile-progress', device, ...received.control });
        return undefined;
      case 'profiled':
        checkProfile(
          device,
          received.control,
          this.#options.subject.sequence.layers.length,
          this.#options.machine.batchSizesToProfile.length,
        );
        return { kind: 'profiled', profile: received.control };
      case 'deployed':
        this.#options.hooks.observe({ kind: 'deployed', device, valueMiB: received.control.valueBytes / 2 ** 20 });
        return { kind: 'deployed' };
      case 'prepared':
        return { kind: 'prepared', result: received.control };
      case 'state':
        this.#collect(device, received.control, received.frame.tensors?.[0]);
        return undefined;
      case 'snapshot-end':
        return this.#snapshotEnd(device, received.control.round);
      case 'replicated':
        return { kind: 'replicated', ...received.control };
      case 'lost-peer':
        this.#changeMs ??= this.#options.clock.now();
        return { kind: 'lost-peer', ...received.control };
      case 'link-measured': {
        checkMeasured(device, [received.control], this.#state.members);
        const drift = this.#planner.measuredAgain(device, received.control);
        if (drift !== undefined) this.#drifted(drift);
        return undefined;
      }
      case 'alive':
        return { kind: 'alive' };
      case 'reserved':
        this.#readiness.answered(device, received.control.id);
        return undefined;
      case 'leaving':
        return { kind: 'leaving' };
      case 'heartbeat':
        return undefined;
      case 'failed':
        return { kind: 'failed', message: received.control.message };
      case 'statistics':
        this.#options.hooks.observe({ kind: 'statistics', device, ...received.control });
        return undefined;
      case 'trace':
        this.#options.hooks.observe({
          kind: 'trace',
          device,
          round: received.control.round,
          times: received.control.times,
        });
        return undefined;
    }
  }

  /** The first device of a stage has sent all of it. */
  #snapshotEnd(device: string, round: number): Answer {
    const isOwner = this.#state.plan?.stages.some(({ devices }) => devices[0] === device) === true;
    const [missing] = isOwner ? this.#snapshots.missing(device) : [];
    if (missing !== undefined && round === this.#state.round)
      return { kind: 'failed', message: `it sent no ${missing}` };
    return { kind: 'snapshot-end', round };
  }

  /** Keeps a piece of a snapshot, if it is one that was asked for. */
  #collect(device: string, control: ToCoordinator['state'], value: Tensor | undefined): void {
    const { phase, waitingFor } = this.#state;
    if (phase !== 'snapshotting' || !waitingFor.includes(device)) throw notAsked(device, control);
    this.#snapshots.collect(device, control, value);
  }

  #perform(effect: MachineEffect): void {
    switch (effect.kind) {
      case 'send':
        if (effect.message === 'snapshot') this.#snapshots.expect(this.#epoch, effect.control.round);
        return this.#send(effect.device, message(effect.message, effect.control));
      case 'send-model':
        return this.#sendModel(effect.device);
      case 'send-peers':
        return this.#send(
          effect.device,
          message('connect', { peers: effect.members.map(({ name, listenUrl }) => ({ name, url: listenUrl })) }),
        );
      case 'links-measured':
        return this.#planner.measured(effect.device, effect.links);
      case 'profiled':
        this.#planner.profiled(effect.device, effect.profile);
        this.#options.hooks.observe({
          kind: 'profiled',
          device: effect.device,
          cached: effect.profile.cached,
          sampleMs: sampleMs(effect.profile.times, this.#options.machine.batchSizesToProfile),
        });
        return;
      case 'plan':
        return void this.#plan(effect);
      case 'consider':
        return this.#consider(effect);
      case 'deploy':
        return this.#deploy(effect);
      case 'feed':
        return this.#feed.feed(effect.round, this.#epoch);
      case 'committed':
        this.#prepare();
        this.#watchCopies();
        this.#watchDrift(effect.results);
        return this.#options.hooks.onCommitted(
          effect.round,
          effect.loss,
          effect.correctCount,
          effect.learningRate,
          effect.results,
        );
      case 'repeated':
        this.#watchCopies();
        return this.#options.hooks.observe({ kind: 'repeated', round: effect.round });
      case 'changing':
        return this.#changing(effect);
      case 'changed':
        return this.#changed(effect);
      case 'replicated':
        return this.#options.hooks.observe({ kind: 'replicated', round: effect.round });
      case 'dismiss':
        return this.#dismiss(effect.device, effect.reason);
      case 'write-checkpoint':
        return this.#writeCheckpoint(effect.round);
      case 'phase':
        this.#options.hooks.observe({ kind: 'phase', phase: effect.phase });
        this.#stopWaiting();
        if (effect.phase === 'waiting')
          this.#stopWaiting = this.#options.clock.after(waitMs, () => this.#input({ kind: 'gave-up' }));
        return;
      case 'finish':
        return this.#close(() => this.#resolve({ round: effect.round, stopped: effect.stopped }));
      case 'fail': {
        const checkpoint = this.#durableRound;
        const fix =
          checkpoint === undefined
            ? 'nothing was saved yet'
            : `the last checkpoint is after round ${checkpoint}; continue with --resume`;
        return this.#close(() => this.#reject(new RunError(`Training ended: ${effect.message}; ${fix}.`)));
      }
    }
  }

  /** Sends without waiting. */
  #send(device: string, frame: Frame, priority: 'control' | 'pipeline' = 'control'): void {
    void this.#handOver(device, { ...frame, epoch: this.#epoch }, priority);
  }

  /**
   * Waits where the link is full. The end of a link is heard as 'left'; a frame that cannot be sent at all ends it too.
   */
  async #handOver(device: string, frame: Frame, priority: 'control' | 'pipeline'): Promise<void> {
    const link = this.#links.get(device);
    try {
      await link?.send(frame, priority);
    } catch (error) {
      await link?.close(error instanceof Error ? error.message : String(error));
    }
  }

  #sendModel(device: string): void {
    const { sequence, training, label } = this.#options.subject;
    this.#model ??= encodeModel(sequence.graph);
    const { bytes, parameters, buffers } = this.#model;
    const layerNames = sequence.layers.map((layer) => layer.name);
    const control = {
      parameters,
      buffers,
      training,
      layerNames,
      labelShape: label.shape.slice(1),
      labelType: label.type,
      peerToken: this.#options.peerToken,
    };
    this.#send(device, message('model', control, [bytes]));
  }

  /** What concerns the layout before, and is on its way still, is of no interest any more. */
  async #plan(request: PlanRequest): Promise<void> {
    this.#epoch = this.#state.epoch;
    this.#feed.stop();
    this.#request = request;
    const isOver = (): boolean => this.#request !== request || this.#state.phase !== 'planning';
    try {
      const plan = await this.#planner.plan(request, isOver);
      if (plan === undefined || isOver()) return;
      this.#input({ kind: 'planned', plan, copyEvery: this.#planner.copyEvery(plan, request.devices) });
    } catch (error) {
      if (!isOver()) this.#abort(error);
    }
  }

  /** Looks for a better plan for these devices while they train; or for one without a device that wants to leave. */
  #consider({ devices, without }: Omit<Extract<MachineEffect, { kind: 'consider' }>, 'kind'>): void {
    const from = this.#state.plan;
    if (from === undefined) return;
    if (without === undefined) return void this.#improve(devices, from).catch((error: unknown) => this.#abort(error));
    void this.#spare(without, devices, from).catch((error: unknown) => this.#abort(error));
  }

  async #spare(device: string, others: readonly string[], from: Plan): Promise<void> {
    try {
      const found = await this.#planner.without(device, others, from, () => !this.#isTrainingWith(from));
      if (found !== undefined) this.#propose(found);
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      this.#options.hooks.observe({ kind: 'warning', message: `${device} cannot be spared: ${error.message}` });
    }
  }

  /** Whether this layout stands. */
  #isTrainingWith(plan: Plan): boolean {
    return this.#state.plan === plan && (this.#state.phase === 'training' || this.#state.phase === 'snapshotting');
  }

  async #improve(devices: readonly string[], from: Plan): Promise<void> {
    const isOver = (): boolean => !this.#isTrainingWith(from);
    try {
      const found = await this.#planner.better(devices, from, { round: this.#state.round, isOver });
      if (found === undefined) return;
      // One after the other: what was found before is not wanted any more.
      this.#readiness.clear();
      this.#whenReady(found.plan, () => {
        if (!isOver()) this.#propose(found);
      });
    } catch (error) {
      if (!(error instanceof InputError)) throw error; // nothing better fits: what runs goes on
    }
  }

  /** Has devices make themselves ready for a layout while they go on with the one before. */
  #whenReady(plan: Plan, onReady: (isComplete: boolean) => void): void {
    const devices = new Set(plan.stages.flatMap((stage) => stage.devices));
    const id = this.#readiness.ask(devices, onReady);
    for (const device of devices) this.#send(device, message('reserve', { plan, id }));
  }

  /** Between two rounds: what to do about the next loss. */
  #prepare(): void {
    this.#stopPreparing();
    this.#stopPreparing = this.#options.clock.after(0, () => {
      const { plan } = this.#state;
      if (plan === undefined || !this.#isTrainingWith(plan)) return;
      try {
        this.#planner.prepare(
          fullMembers(this.#state).map(({ name }) => name),
          plan,
        );
        if (!this.#readiness.isAsking) this.#announceReserve();
      } catch (error) {
        this.#abort(error);
      }
    });
  }

  /** Tells the next plan in reserve, or, once for each layout, that all are told and devices ready for them. */
  #announceReserve(): void {
    const readying = this.#readying;
    const reserved = this.#planner.announceReserve();
    if (reserved !== undefined)
      this.#whenReady(reserved, (isComplete) => {
        readying.isOver ||= !isComplete; // one that takes too long may not be ready at all
      });
    else if (!readying.isOver && this.#planner.isReserveAnnounced) {
      readying.isOver = true;
      this.#options.hooks.observe({
        kind: 'reserve-ready',
        seconds: (this.#options.clock.now() - readying.sinceMs) / 1000,
      });
    }
  }

  #reconsider(): void {
    if (this.#state.phase !== 'ended') this.#consider({ devices: fullMembers(this.#state).map(({ name }) => name) });
  }

  /** Copies that nobody has said how often to make are made as often as they cost little. */
  #watchCopies(): void {
    if (this.#options.machine.replicateEvery !== undefined) return;
    const { replication, round } = this.#state;
    const copyEvery = this.#planner.committed(replication !== undefined && replication.round <= round);
    if (copyEvery !== undefined) this.#input({ kind: 'copies-paced', copyEvery });
  }

  #watchDrift(results: Readonly<Record<string, RoundResult>>): void {
    const { plan } = this.#state;
    const drift = plan && this.#planner.computed(results, plan);
    if (drift !== undefined) this.#drifted(drift);
    for (const [device, peer] of this.#planner.linksToMeasure(fullMembers(this.#state).map(({ name }) => name)))
      this.#send(device, message('measure-link', { peer }));
  }

  #drifted(drift: Drift): void {
    if (Object.keys(drift.factors).length + drift.links.length > 0)
      this.#options.hooks.observe({ kind: 'drift', ...drift });
    this.#reconsider();
  }

  #propose(proposal: Proposal): void {
    this.#changeMs ??= this.#options.clock.now();
    this.#input({ kind: 'proposed', ...proposal });
  }

  #changing({
    change,
    plan,
    round,
    repeatedRounds,
    source,
    moves,
  }: Extract<MachineEffect, { kind: 'changing' }>): void {
    const copies = 1 + optimizerStateCount(this.#options.subject.training);
    let movedBytes = 0;
    for (const { layers } of moves)
      for (let layer = layers[0]; layer < layers[1]; layer++) movedBytes += copies * this.#planner.layerBytes(layer);
    const { cause, lost } = change;
    this.#options.hooks.observe({
      kind: 'recovering',
      cause,
      lost,
      plan,
      round,
      repeatedRounds,
      source,
      movedMiB: movedBytes / 2 ** 20,
    });
  }

  #changed({ change, round }: Extract<MachineEffect, { kind: 'changed' }>): void {
    const nowMs = this.#options.clock.now();
    const seconds = (nowMs - (this.#changeMs ?? nowMs)) / 1000;
    this.#changeMs = undefined;
    this.#options.hooks.observe({ kind: 'recovered', cause: change.cause, round, seconds });
    // What was found in a hurry may be bettered at leisure.
    if (change.lost.length > 0) this.#reconsider();
  }

  #dismiss(device: string, reason: string): void {
    const link = this.#links.get(device);
    this.#send(device, message('end', { reason: reason.slice(0, 1000) }));
    this.#forget(device);
    this.#planner.left(device);
    this.#options.hooks.observe({ kind: 'left', device, reason });
    if (this.#hasWork(device)) this.#changeMs ??= this.#options.clock.now();
    void link?.close(reason);
    this.#input({ kind: 'left', device, reason });
  }

  /**
   * Tells every member of the layout, and sends those who get layers from nobody else what the last checkpoint has of
   * them.
   */
  #deploy({ plan, epoch, round, moves, members }: Extract<MachineEffect, { kind: 'deploy' }>): void {
    this.#epoch = epoch;
    this.#feed.begin(program(plan));
    this.#readiness.clear();
    this.#readying = { sinceMs: this.#options.clock.now(), isOver: false };
    this.#planner.begin(plan, this.#state.copyEvery);
    this.#options.hooks.observe({ kind: 'deployment', plan });
    this.#snapshots.begin(plan);
    const peers = members.map(({ name, listenUrl }) => ({ name, url: listenUrl }));
    for (const { name } of members) {
      const layers = moves.filter(({ from, to }) => from === null && to === name).map((move) => move.layers);
      const entries = layers.flatMap((range) => this.#snapshots.entries(range, round));
      this.#send(name, message('deploy', { plan, round, moves, stateCount: entries.length, peers }));
      for (const { role, name: entry, value } of entries)
        this.#send(name, message('state', { role, name: entry }, [value]));
    }
  }

  #writeCheckpoint(round: number): void {
    const { state } = this.#snapshots;
    const missing = this.#snapshots.missing();
    if (missing.length > 0)
      return this.#abort(
        new RunError(`Training ended: nobody sent ${missing.slice(0, 3).join(', ')} after round ${round}.`),
      );
    this.#options.hooks.onCheckpoint(round, state).then(
      (isSafe) => {
        this.#snapshots.saved(round, state);
        if (isSafe) this.#durableRound = round;
        this.#input({ kind: 'checkpointed', round });
      },
      (error: unknown) => this.#abort(error),
    );
  }

  /** Our own side failed (no plan, a disk error): everyone is released and the error is the run's. */
  #abort(error: unknown): void {
    if (this.#state.phase === 'ended') return;
    this.#state = { ...this.#state, phase: 'ended' };
    const reason = error instanceof Error ? error.message : String(error);
    for (const name of this.#links.keys()) this.#send(name, message('end', { reason: reason.slice(0, 1000) }));
    this.#close(() => this.#reject(error instanceof Error ? error : new Error(reason)));
  }

  #close(settle: () => void): void {
    this.#feed.stop();
    this.#stopJudging();
    this.#stopWaiting();
    for (const stop of this.#stopCooling.values()) stop();
    this.#stopPreparing();
    this.#readiness.clear();
    const links = [...this.#links.values()];
    void Promise.all(links.map((link) => link.close('the run is over'))).then(settle, settle);
  }
}

/** A device that nothing is expected of is told so, and does not try again. */
function turnAway(link: Link, reason: string): void {
  void link.send(message('end', { reason })).catch(() => {}); // it has gone: nobody to tell
  void link.close(reason);
}
