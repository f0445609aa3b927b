// A worker: one device's part of a run. It does what the coordinator's messages say, one after the other, and lets pipeline data flow beside them into
// the mailbox. It ends when the coordinator ends the run or the link to it is lost; nothing of the run outlives it.

import { defined, unreachable } from '../../assert.ts';
import type { Clock } from '../../clock.ts';
import type { Plan } from '../../cluster/cluster.ts';
import { parsePlan } from '../../cluster/validate.ts';
import type { Engine } from '../../engine/engine.ts';
import { InputError, ProtocolError, RunError } from '../../errors.ts';
import type { LayerSequence } from '../../graph/layers.ts';
import { forwardOnlyCount, layers } from '../../graph/layers.ts';
import { sameShape } from '../../graph/tensor.ts';
import { program } from '../../schedule/generate.ts';
import { type DeviceProgram, isBackwardImmediate } from '../../schedule/program.ts';
import type { Frame, Link } from '../../transport/link.ts';
import type { StageStore } from '../device/compiled-stages.ts';
import { Mailbox } from '../device/mailbox.ts';
import { type ProfileCache, profileLayers } from '../device/profiler.ts';
import { savedBudgetBytes } from '../device/recomputation.ts';
import { feedName, isTraced, type RoundOutcome, runRound } from '../device/round.ts';
import { createStage, type StagePort } from '../device/stage.ts';
import type { StageOptions } from '../device/stage-graphs.ts';
import { Failure } from '../failure.ts';
import { type Message, type ModelMessage, message, parseMessage, type ToCoordinator, type ToWorker, toWorkerSchemas } from '../messages.ts';
import { decodeModel } from '../model-transfer.ts';
import { optimizedParameter } from '../run-state.ts';
import { type PeerNetwork, Peers } from './peers.ts';
import { type ProcessMeters, processMeters } from './process-meters.ts';

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
  readonly stageStore?: StageStore;
  /** What this device may use. Default: not known. */
  readonly memoryBytes?: number;
  /** Compiles the stage that computes. Default: on `engine`. */
  createStage?(options: StageOptions): Promise<StagePort>;
  /** Reads the model that the coordinator sent. Default: its graph, cut into layers. Throws ProtocolError or InputError. */
  readModel?(message: ModelMessage, frame: Frame): LayerSequence;
  /** Default: those of this process. */
  readonly meters?: ProcessMeters;
}

/** How a worker's part ended. */
export interface WorkerEnd {
  /** True when the coordinator said so. */
  readonly clean: boolean;
  readonly reason: string;
}

/** Serves one run; resolves when it is over. */
export async function runWorker(options: WorkerOptions): Promise<WorkerEnd> {
  const worker = new Worker(options);
  return worker.serve();
}

interface Deployment {
  readonly program: DeviceProgram;
  readonly stage: StagePort;
  /** The peers that the program exchanges data with. */
  readonly peers: ReadonlySet<string>;
  /** Shapes of the stage's parameters and buffers. */
  readonly shapes: Readonly<Record<'parameter' | 'buffer', ReadonlyMap<string, readonly number[]>>>;
  /** State frames still to come. */
  missingCount: number;
  /** Committed updates. */
  step: number;
  /** The commit that the last round still waits for. */
  unsettled: Promise<ToWorker['commit']> | undefined;
}

/** The coordinator's word on rounds, awaited by the round that it is about. */
class Commits {
  #round = -1;
  #resolve: ((commit: ToWorker['commit']) => void) | undefined;

  /** The commit of `round`, which is about to be prepared. */
  expect(round: number): Promise<ToWorker['commit']> {
    this.#round = round;
    return new Promise((resolve) => {
      this.#resolve = resolve;
    });
  }

  arrived(commit: ToWorker['commit']): void {
    if (this.#resolve === undefined || commit.round !== this.#round)
      throw new ProtocolError(`The coordinator committed round ${commit.round}, which was not prepared.`);
    this.#resolve(commit);
    this.#resolve = undefined;
  }
}

class Worker {
  readonly #options: WorkerOptions;
  readonly #peers: Peers;
  readonly #queue: Message<ToWorker>[] = [];
  readonly #failure = new Failure();
  #wake: () => void = () => {};
  #mailbox = new Mailbox(0);
  #epoch = 0;
  #ended: WorkerEnd | undefined;
  #network: PeerNetwork | undefined;
  #model: { message: ModelMessage; sequence: LayerSequence } | undefined;
  #deployment: Deployment | undefined;
  readonly #commits = new Commits();
  #peakMemoryBytes = 0;
  readonly #meters: ProcessMeters;

  constructor(options: WorkerOptions) {
    this.#options = options;
    this.#meters = options.meters ?? processMeters();
    this.#peers = new Peers(options.name, options.clock, {
      onFrame: (from, frame) => this.#file(from, frame),
      onEnd: (peer, reason) => this.#peerLost(peer, reason),
    });
    options.coordinator.receive((frame) => this.#received(frame));
    void options.coordinator.ended.then((end) =>
      this.#end({ clean: end.clean, reason: end.clean ? end.reason : `the coordinator is gone: ${end.reason}` }),
    );
  }

  async serve(): Promise<WorkerEnd> {
    let end: WorkerEnd = { clean: false, reason: 'the worker has failed' };
    try {
      for (;;) await this.#handle(await this.#next());
    } catch (error) {
      // What the coordinator said counts, whatever its end interrupted.
      end = this.#ended ?? (await this.#report(error));
    } finally {
      await this.#close(end.reason);
    }
    return end;
  }

  async #close(reason: string): Promise<void> {
    this.#meters.stop();
    this.#mailbox.fail(new RunError(reason));
    await this.#peers.close(reason);
    await this.#network?.close();
    await this.#options.coordinator.close(reason);
  }

  #end(end: WorkerEnd): void {
    this.#ended ??= end;
    this.#failure.fail(new RunError(end.reason));
    this.#wake();
  }

  /**
   * A peer's link may end a moment before the coordinator says why: its word is waited for, since only it decides what a loss means. Peers that the
   * plan leaves out go their way.
   */
  #peerLost(peer: string, reason: string): void {
    if (this.#deployment !== undefined && !this.#deployment.peers.has(peer)) return;
    this.#mailbox.fail(new RunError(`the link to ${peer} ended: ${reason}`));
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
    if (received.kind === 'end') return this.#end({ clean: true, reason: received.control.reason });
    if (received.kind === 'commit') return this.#commits.arrived(received.control);
    if (this.#queue.length >= 100_000) throw new ProtocolError('The coordinator sent more messages than may wait here.');
    this.#queue.push(received);
    this.#wake();
  }

  /** Files pipeline data; frames of another membership epoch are late ones and dropped. */
  #file(from: string, frame: Frame): void {
    if (frame.epoch !== this.#epoch) return;
    this.#mailbox.put({ kind: frame.kind, round: frame.round, microBatch: frame.microBatch, from }, frame);
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

  #send<Kind extends keyof ToCoordinator>(kind: Kind, control: ToCoordinator[Kind], tensors: Frame['tensors'] = []): Promise<void> {
    return this.#options.coordinator.send({ ...message(kind, control, tensors), epoch: this.#epoch }, 'control');
  }

  async #handle(received: Message<ToWorker>): Promise<void> {
    switch (received.kind) {
      case 'model':
        return this.#setModel(received.control, received.frame);
      case 'connect':
        await this.#guard(this.#peers.connect(earlier(this.#network, 'connect', 'a model'), received.control.peers));
        return this.#send('connected', {});
      case 'measure':
        return this.#measure(received.control.peers);
      case 'profile':
        return this.#profile(received.control.batchSizes);
      case 'deploy':
        return this.#deploy(received.control, received.frame.epoch);
      case 'state':
        return this.#loadState(received.control, received.frame);
      case 'round':
        return this.#runRound(received.control);
      case 'snapshot':
        return this.#snapshot(received.control);
      case 'commit':
      case 'end':
        return; // heard on arrival
      default:
        unreachable(received);
    }
  }

  /** Waits for work, but not beyond the end of the run. */
  #guard<T>(work: Promise<T>): Promise<T> {
    return this.#failure.guard(work);
  }

  async #setModel(control: ModelMessage, frame: Frame): Promise<void> {
    const sequence = (this.#options.readModel ?? readModel)(control, frame);
    const names = sequence.layers.map((layer) => layer.name);
    if (names.length !== control.layerNames.length || names.some((name, index) => name !== control.layerNames[index])) {
      throw new RunError('This worker cuts the model into other layers than the coordinator: both must run the same version of Asteroid.');
    }
    this.#model = { message: control, sequence };
    this.#network ??= await this.#options.createNetwork(this.#options.name, control.peerToken, (link) => this.#peers.accept(link));
    await this.#send('ready', { listenUrl: this.#network.url });
  }

  async #measure(peers: readonly string[]): Promise<void> {
    const links = [];
    for (const peer of peers) links.push(await this.#guard(this.#peers.measure(peer)));
    await this.#send('measured', { links });
  }

  async #profile(batchSizes: readonly number[]): Promise<void> {
    const model = earlier(this.#model, 'profile', 'a model');
    const profile = await this.#guard(
      profileLayers(this.#options.engine, model.sequence, {
        batchSizes,
        frozen: model.message.training.frozen,
        clock: this.#options.clock,
        ...(this.#options.profileCache === undefined ? {} : { cache: this.#options.profileCache }),
        onProgress: (done, total) => void this.#send('profile-progress', { done, total }).catch(() => {}), // a lost link ends the run by itself
      }),
    );
    await this.#send('profiled', profile);
  }

  async #deploy(control: ToWorker['deploy'], epoch: number): Promise<void> {
    const { message: model, sequence } = earlier(this.#model, 'deploy', 'a model');
    const { plan } = control;
    const device = checkedProgram(plan, sequence, this.#options.name);
    const create =
      this.#options.createStage ?? ((options: StageOptions) => createStage(this.#options.engine, options, this.#options.stageStore));
    const stage = await this.#guard(
      create({
        sequence,
        layers: device.layers,
        sampleCount: device.samples[1] - device.samples[0],
        training: model.training,
        label: { name: 'label', type: model.labelType, shape: ['N', ...model.labelShape], batchAxis: 0, differentiable: false },
        microBatchSize: plan.microBatchSize,
        splitBackward: device.instructions.some(({ kind }) => kind === 'backward-input'),
        immediateBackward: isBackwardImmediate(device),
        savedBudgetBytes: savedBudgetBytes({
          sequence,
          program: device,
          training: model.training,
          memoryBytes: this.#options.memoryBytes,
        }),
      }),
    );
    this.#epoch = epoch;
    this.#mailbox = new Mailbox(stage.mailboxBytes(plan.microBatchCount));
    const peers = peersOf(device);
    this.#deployment = {
      program: device,
      stage,
      peers,
      shapes: stateShapes(sequence, device.layers),
      missingCount: control.stateCount,
      step: control.step,
      unsettled: undefined,
    };
    for (const peer of peers) if (!this.#peers.isLinked(peer)) this.#peerLost(peer, 'it was lost before the plan came');
    if (control.stateCount === 0) await this.#deployed(this.#deployment);
    this.#meters.start();
  }

  async #loadState(control: ToWorker['state'], frame: Frame): Promise<void> {
    const deployment = earlier(this.#deployment, 'state', 'a plan');
    const value = frame.tensors?.[0];
    if (value === undefined || deployment.missingCount === 0) throw new ProtocolError('The coordinator sent state that nothing waits for.');
    const { role, name } = control;
    const shape = role === 'optimizer' ? deployment.shapes.parameter.get(optimizedParameter(name)) : deployment.shapes[role].get(name);
    if (shape === undefined || value.type !== 'float32' || !sameShape(shape, value.shape)) {
      const what = shape === undefined ? 'which is not of this stage' : `not as float32[${shape}]`;
      throw new ProtocolError(`The coordinator sent the ${role} ${name} as ${value.type}[${value.shape}], ${what}.`);
    }
    deployment.stage.load({ ...control, value });
    deployment.missingCount--;
    if (deployment.missingCount === 0) await this.#deployed(deployment);
  }

  async #deployed(deployment: Deployment): Promise<void> {
    const missing = deployment.stage.missingState();
    if (missing.length > 0) throw new ProtocolError(`The coordinator sent no value for ${missing.slice(0, 3).join(', ')}.`);
    await this.#guard(this.#options.engine.settled());
    await this.#send('deployed', { valueBytes: this.#options.engine.valueBytes() });
  }

  /** The deployment, with all of its state in place. */
  #deployedFor(kind: 'round' | 'snapshot'): Deployment {
    const deployment = earlier(this.#deployment, kind, 'a plan');
    if (deployment.missingCount > 0)
      throw new ProtocolError(`The coordinator sent "${kind}" before ${deployment.missingCount} pieces of the stage's state.`);
    return deployment;
  }

  /**
   * Queues a round, waits until the one before has committed, and prepares when it is computed. Without clipping the update is queued at once, and the next
   * round behind it, while the sums are on their way and the coordinator decides; the state before is kept until it has.
   */
  async #runRound({ round, learningRate }: ToWorker['round']): Promise<void> {
    const deployment = this.#deployedFor('round');
    const { program: device, stage } = deployment;
    const step = deployment.step + (deployment.unsettled === undefined ? 1 : 2);
    const isClipped = defined(this.#model, 'the model').message.training.clipNorm !== null;
    const { outcome } = await runRound(device, stage, round, {
      clock: this.#options.clock,
      send: (to, frame, priority) => this.#peers.send(to, { ...frame, epoch: this.#epoch }, priority),
      receive: (key) => this.#mailbox.take(key),
      failure: this.#failure,
      nextUpdate: async () => {
        await this.#settle(deployment);
        return isClipped ? undefined : { learningRate, gradientScale: 1, step };
      },
    }).catch((error: unknown) => this.#waitForVerdict(error));
    const committed = this.#commits.expect(round);
    const reported = this.#reportRound(round, outcome);
    // Not waited for: the next round can begin. What goes wrong ends the run.
    reported.catch((error: unknown) => this.#failure.fail(error));
    if (isClipped) stage.update({ learningRate, gradientScale: (await this.#guard(committed)).gradientScale, step });
    deployment.unsettled = committed;
    this.#peakMemoryBytes = Math.max(this.#peakMemoryBytes, this.#meters.residentBytes());
  }

  /** Tells the coordinator that the round is computed. */
  async #reportRound(round: number, outcome: Promise<RoundOutcome>): Promise<void> {
    const { result, times } = await outcome.catch((error: unknown) => this.#waitForVerdict(error));
    await this.#send('prepared', result);
    if (isTraced(round)) await this.#send('trace', { round, times });
  }

  /** Waits for the commit of the last round and lets go of the state before it. */
  async #settle(deployment: Deployment): Promise<void> {
    if (deployment.unsettled === undefined) return;
    await this.#guard(deployment.unsettled);
    deployment.unsettled = undefined;
    deployment.stage.dropVersion(deployment.step);
    deployment.step++;
  }

  /** After a lost peer the coordinator decides; it is given some time to say so before this worker reports the loss itself. */
  async #waitForVerdict(error: unknown): Promise<never> {
    if (!(error instanceof RunError)) throw error;
    const { promise, cancel } = timeout(this.#options.clock, 5000);
    try {
      await this.#guard(promise);
    } finally {
      cancel();
    }
    throw error;
  }

  async #snapshot({ round, withState }: ToWorker['snapshot']): Promise<void> {
    const deployment = this.#deployedFor('snapshot');
    const { stage } = deployment;
    await this.#settle(deployment);
    for await (const entry of withState ? stage.state() : []) {
      await this.#send('state', { role: entry.role, name: entry.name }, [entry.value]);
    }
    await this.#send('statistics', {
      eventLoopDelayP99Ms: this.#meters.eventLoopDelayP99Ms(),
      eventLoopDelayMaxMs: this.#meters.eventLoopDelayMaxMs(),
      peakMemoryMiB: Math.max(this.#peakMemoryBytes, this.#meters.residentBytes()) / 2 ** 20,
    });
    await this.#send('snapshot-end', { round });
  }
}

function readModel(control: ModelMessage, frame: Frame): LayerSequence {
  return layers(decodeModel(control, frame), { frozen: control.training.frozen });
}

/** What an earlier message must have brought. */
function earlier<T>(value: T | undefined, kind: keyof ToWorker, what: string): T {
  if (value === undefined) throw new ProtocolError(`The coordinator sent "${kind}" before ${what}.`);
  return value;
}

/** This device's part of a plan that can be run. Throws ProtocolError. */
function checkedProgram(plan: Plan, sequence: LayerSequence, name: string): DeviceProgram {
  let devices: readonly DeviceProgram[];
  try {
    parsePlan(plan);
    devices = program(plan).devices;
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
    throw new ProtocolError(`The coordinator sent a plan that cannot be run: ${error.message}`);
  }
  const end = plan.stages.at(-1)?.layers[1];
  if (end !== sequence.layers.length)
    throw new ProtocolError(`The coordinator sent a plan for ${end} layers, but the model has ${sequence.layers.length}.`);
  if ((plan.forwardOnlyLayers ?? 0) > forwardOnlyCount(sequence))
    throw new ProtocolError(
      `The coordinator sent a plan that leaves ${plan.forwardOnlyLayers} layers untrained, some of which are to be trained.`,
    );
  const device = devices.find((entry) => entry.device === name);
  if (device === undefined) throw new ProtocolError('The coordinator sent a plan without this device.');
  return device;
}

/** All that a device sends to or receives from. */
function peersOf(device: DeviceProgram): ReadonlySet<string> {
  const peers = new Set<string>();
  for (const instruction of device.instructions) {
    if (instruction.kind === 'send') peers.add(instruction.to);
    if (instruction.kind === 'receive' && instruction.from !== null) peers.add(instruction.from);
    if (instruction.kind === 'all-reduce') for (const member of instruction.group) peers.add(member);
  }
  peers.delete(device.device);
  return peers;
}

function stateShapes({ graph, layers: all }: LayerSequence, range: readonly [number, number]): Deployment['shapes'] {
  const own = all.slice(...range);
  const shapes = (names: readonly string[]): Map<string, readonly number[]> =>
    new Map(names.map((name) => [name, defined(graph.initializers.get(name), name).shape]));
  return { parameter: shapes(own.flatMap((layer) => layer.parameters)), buffer: shapes(own.flatMap((layer) => layer.buffers)) };
}

function timeout(clock: Clock, delayMs: number): { promise: Promise<void>; cancel: () => void } {
  let cancel = (): void => {};
  const promise = new Promise<void>((resolve) => {
    cancel = clock.after(delayMs, resolve);
  });
  return { promise, cancel };
}
