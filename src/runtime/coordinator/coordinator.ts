// The coordinator's shell: it feeds the state machine (machine.ts) with what happens on the links and carries out its effects. It owns the links, the
// data feed and the state that snapshots bring; every decision is the machine's.

import { assert, defined } from '../../assert.ts';
import type { Cluster, DeviceTimes, LayerProfile, Plan, Profile } from '../../cluster/cluster.ts';
import { ProtocolError, RunError } from '../../errors.ts';
import { type CutTensor, cutBytes, type LayerSequence } from '../../graph/layers.ts';
import { sameShape, type Tensor } from '../../graph/tensor.ts';
import { program } from '../../schedule/generate.ts';
import type { Program } from '../../schedule/program.ts';
import type { Frame, Link } from '../../transport/link.ts';
import { sliceSamples } from '../device/samples.ts';
import type { RunEvent } from '../events.ts';
import {
  type LinkMeasurement,
  type Message,
  message,
  parseMessage,
  type RoundResult,
  type StateRole,
  type ToCoordinator,
  toCoordinatorSchemas,
} from '../messages.ts';
import { encodeModel } from '../model-transfer.ts';
import { optimizedParameter, type RunState } from '../run-state.ts';
import type { TrainingSpec } from '../training-spec.ts';
import { type Detector, createDetector } from './detector.ts';
import { initialState, step } from './machine.ts';
import type { Answer, Change, MachineConfig, MachineEffect, MachineInput, MachineState } from './machine-types.ts';

/** A batch: the model's inputs and the labels, batch first. */
export interface Batch {
  readonly inputs: readonly Tensor[];
  readonly labels: Tensor;
}

/** What the coordinator needs to know of a device. */
export interface DeviceFacts {
  readonly memoryMiB: number;
  readonly cores: number;
  readonly engine: string;
  /** Devices with the same machine share its memory. */
  readonly machine: string;
}

/** What is trained, from which state. */
export interface RunSubject {
  readonly modelName: string;
  readonly sequence: LayerSequence;
  readonly training: TrainingSpec;
  readonly label: CutTensor;
  readonly state: RunState;
}

/** Where a run's data come from and its results go. */
export interface RunHooks {
  batch(round: number): Batch;
  observe(event: RunEvent): void;
  onCommitted(
    round: number,
    loss: number,
    correctCount: number,
    learningRate: number,
    results: Readonly<Record<string, RoundResult>>,
  ): void;
  /** Called with the state after `round` committed rounds; the run goes on when it resolves. */
  onCheckpoint(round: number, state: RunState): Promise<void>;
}

export interface CoordinatorOptions {
  readonly machine: MachineConfig;
  readonly subject: RunSubject;
  readonly hooks: RunHooks;
  /** The secret by which peers know each other. */
  readonly peerToken: string;
  /** Chooses the plan. May throw InputError (nothing fits). */
  plan(profile: Profile, cluster: Cluster): Plan;
  /** The plan to use as it is, its devices in the order of joining; no profiling then. */
  readonly givenPlan?: Plan;
  /** The protocol. Default: `step` of machine.ts; the rehearsal wraps it in mistakes, to see them caught. */
  readonly step?: typeof step;
}

/** How a run ended. */
export interface CoordinatorEnd {
  readonly round: number;
  readonly stopped: boolean;
}

/** One run's coordinator. */
export interface Coordinator {
  /** Takes in a device whose link is authenticated. */
  join(name: string, link: Link, facts: DeviceFacts): void;
  /** Asks for a clean stop: the round in progress commits, a checkpoint is written. */
  stop(): void;
  /** Resolves at the run's end, with all links closed; rejects with RunError or InputError when it fails. */
  readonly end: Promise<CoordinatorEnd>;
}

/** Starts a coordinator that waits for its workers. */
export function createCoordinator(options: CoordinatorOptions): Coordinator {
  return new CoordinatorShell(options);
}

class CoordinatorShell implements Coordinator {
  readonly end: Promise<CoordinatorEnd>;
  readonly #options: CoordinatorOptions;
  readonly #links = new Map<string, Link>();
  readonly #facts = new Map<string, DeviceFacts>();
  readonly #measurements = new Map<string, readonly LinkMeasurement[]>();
  readonly #profiles = new Map<string, ToCoordinator['profiled']>();
  readonly #snapshot: Record<StateRole, Map<string, Tensor>> = { parameter: new Map(), buffer: new Map(), optimizer: new Map() };
  #model: ReturnType<typeof encodeModel> | undefined;
  #state: MachineState;
  /** By device: the parameters and buffers that its snapshots hold. */
  #owned: ReadonlyMap<string, ReadonlySet<string>> = new Map();
  /** Parameters and buffers of the snapshot in progress that have come. */
  readonly #arrived = new Set<string>();
  readonly #inputs: MachineInput[] = [];
  #epoch = 0;
  #program: Program | undefined;
  /** Sending of data, in order; each round after the one before. */
  #feeding: Promise<void> = Promise.resolve();
  #resolve: (end: CoordinatorEnd) => void = () => {};
  #reject: (error: Error) => void = () => {};

  constructor(options: CoordinatorOptions) {
    this.#options = options;
    this.#state = initialState(options.machine);
    this.end = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.end.catch(() => {}); // whoever awaits `end` sees it; nobody may be waiting yet
  }

  join(name: string, link: Link, facts: DeviceFacts): void {
    if (this.#state.phase === 'ended' || this.#links.has(name)) {
      void link.close(this.#links.has(name) ? `another device is called ${name}` : 'the run is over');
      return;
    }
    this.#links.set(name, link);
    this.#facts.set(name, facts);
    this.#options.hooks.observe({ kind: 'joined', device: name, cores: facts.cores, memoryMiB: facts.memoryMiB, engine: facts.engine });
    link.receive((frame) => this.#received(name, frame));
    void link.ended.then(({ reason }) => {
      this.#links.delete(name);
      if (this.#state.phase !== 'ended') this.#options.hooks.observe({ kind: 'left', device: name, reason });
      this.#input({ kind: 'left', device: name, reason });
    });
    this.#input({ kind: 'joined', device: name });
  }

  stop(): void {
    this.#input({ kind: 'stop' });
  }

  /**
   * One input after the other: an effect that causes an input (a plan made at once) does not overtake the effects behind it. A mistake of our own on the
   * way ends the run.
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
    const received = parseMessage<ToCoordinator>(toCoordinatorSchemas, frame, device);
    if (!this.#state.members.some((member) => member.name === device)) return; // released, or one too many
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
        this.#checkMeasured(device, received.control.links);
        return { kind: 'measured', links: received.control.links };
      case 'profile-progress':
        this.#options.hooks.observe({ kind: 'profile-progress', device, ...received.control });
        return undefined;
      case 'profiled':
        this.#checkProfile(device, received.control);
        return { kind: 'profiled', profile: received.control };
      case 'deployed':
        this.#options.hooks.observe({ kind: 'deployed', device, valueMiB: received.control.valueBytes / 2 ** 20 });
        return { kind: 'deployed' };
      case 'prepared':
        return { kind: 'prepared', result: received.control };
      case 'state':
        this.#collect(device, received.control, received.frame);
        return undefined;
      case 'snapshot-end':
        return { kind: 'snapshot-end', round: received.control.round };
      case 'failed':
        return { kind: 'failed', message: received.control.message };
      case 'statistics':
        this.#options.hooks.observe({ kind: 'statistics', device, ...received.control });
        return undefined;
      case 'trace':
        this.#options.hooks.observe({ kind: 'trace', device, round: received.control.round, times: received.control.times });
        return undefined;
    }
  }

  #checkMeasured(device: string, links: readonly LinkMeasurement[]): void {
    const peers = new Set(links.map(({ peer }) => peer));
    const isKnown = (peer: string): boolean => peer !== device && this.#state.members.some(({ name }) => name === peer);
    if (peers.size !== links.length || ![...peers].every(isKnown))
      throw new ProtocolError(`${device} measured links that it does not have.`);
  }

  /** A profile has a time for each layer of the model at each batch size that was asked for. */
  #checkProfile(device: string, { layers, times }: ToCoordinator['profiled']): void {
    const layerCount = this.#options.subject.sequence.layers.length;
    const rowCount = this.#options.machine.batchSizesToProfile.length;
    const tables = [times.forwardMs, times.backwardMs];
    if (layers.length === layerCount && tables.every((rows) => rows.length === rowCount && rows.every((row) => row.length === layerCount)))
      return;
    throw new ProtocolError(`${device} sent a profile that is not of ${layerCount} layers at ${rowCount} batch sizes.`);
  }

  /** Keeps a piece of a snapshot, if it is one that was asked for. */
  #collect(device: string, { role, name }: ToCoordinator['state'], frame: Frame): void {
    const { state } = this.#options.subject;
    const owner = role === 'optimizer' ? optimizedParameter(name) : name;
    const known = state[role === 'buffer' ? 'buffer' : 'parameter'].get(owner);
    const isAsked =
      this.#state.phase === 'snapshotting' && this.#state.waitingFor.includes(device) && this.#owned.get(device)?.has(owner) === true;
    if (known === undefined || !isAsked) throw new ProtocolError(`${device} sent the ${role} ${name}, which it was not asked for.`);
    const value = frame.tensors?.[0];
    if (value?.type !== 'float32' || !sameShape(value.shape, known.shape)) {
      throw new ProtocolError(`${device} sent the ${role} ${name} in another size than it has.`);
    }
    // The frame's bytes are a view of a received buffer, kept alive as long as the checkpoint is.
    this.#snapshot[role].set(name, value);
    if (role !== 'optimizer') this.#arrived.add(name);
  }

  #perform(effect: MachineEffect): void {
    switch (effect.kind) {
      case 'send':
        return this.#send(effect.device, message(effect.message, effect.control));
      case 'send-model':
        return this.#sendModel(effect.device);
      case 'send-peers':
        return this.#send(
          effect.device,
          message('connect', { peers: effect.members.map(({ name, listenUrl }) => ({ name, url: listenUrl })) }),
        );
      case 'links-measured':
        this.#measurements.set(effect.device, effect.links);
        return;
      case 'profiled':
        this.#profiles.set(effect.device, effect.profile);
        this.#options.hooks.observe({
          kind: 'profiled',
          device: effect.device,
          cached: effect.profile.cached,
          sampleMs: sampleMs(effect.profile.times, this.#options.machine.batchSizesToProfile),
        });
        return;
      case 'plan':
        return this.#plan(effect.devices);
      case 'deploy':
        return this.#deploy(effect.plan, effect.epoch, effect.step);
      case 'feed':
        return this.#feed(effect.round);
      case 'committed':
        return this.#options.hooks.onCommitted(effect.round, effect.loss, effect.correctCount, effect.learningRate, effect.results);
      case 'write-checkpoint':
        return this.#writeCheckpoint(effect.round);
      case 'phase':
        this.#options.hooks.observe({ kind: 'phase', phase: effect.phase });
        return;
      case 'finish':
        return this.#close(() => this.#resolve({ round: effect.round, stopped: effect.stopped }));
      case 'fail': {
        const checkpoint = this.#state.checkpointRound;
        const mend =
          checkpoint === undefined ? 'nothing was saved yet' : `the last checkpoint is after round ${checkpoint}; continue with --resume`;
        return this.#close(() => this.#reject(new RunError(`Training ended: ${effect.message}; ${mend}.`)));
      }
    }
  }

  /** Sends without waiting. */
  #send(device: string, frame: Frame, priority: 'control' | 'pipeline' = 'control'): void {
    void this.#handOver(device, { ...frame, epoch: this.#epoch }, priority);
  }

  /** Waits where the link is full. The end of a link is heard as 'left'; a frame that cannot be sent at all ends it too. */
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

  #plan(devices: readonly string[]): void {
    const { givenPlan } = this.#options;
    try {
      const plan = givenPlan === undefined ? this.#planFromProfiles(devices) : renameDevices(givenPlan, devices);
      this.#input({ kind: 'planned', plan });
    } catch (error) {
      this.#abort(error);
    }
  }

  #planFromProfiles(devices: readonly string[]): Plan {
    const cluster = this.#cluster(devices);
    this.#options.hooks.observe({ kind: 'cluster', cluster });
    const profile = this.#profile(devices);
    this.#options.hooks.observe({ kind: 'profile', profile });
    return this.#options.plan(profile, cluster);
  }

  #cluster(devices: readonly string[]): Cluster {
    const machines = devices.map((name) => defined(this.#facts.get(name), name).machine);
    const pairs = devices.flatMap((from) =>
      (this.#measurements.get(from) ?? []).map((link) => ({
        between: [from, link.peer] as const,
        bandwidthMbps: link.bandwidthMbps,
        latencyMs: link.latencyMs,
      })),
    );
    const slowest = pairs.reduce(
      (least, pair) => (pair.bandwidthMbps < least.bandwidthMbps ? pair : least),
      pairs[0] ?? { bandwidthMbps: 1000, latencyMs: 0 },
    );
    return {
      devices: devices.map((name, index) => {
        const shareCount = machines.filter((machine) => machine === machines[index]).length;
        return { name, memoryMiB: Math.floor(defined(this.#facts.get(name), name).memoryMiB / shareCount) };
      }),
      links: { default: { bandwidthMbps: slowest.bandwidthMbps, latencyMs: slowest.latencyMs }, pairs },
    };
  }

  #profile(devices: readonly string[]): Profile {
    const { machine } = this.#options;
    const { modelName, sequence, label } = this.#options.subject;
    const first = defined(this.#profiles.get(defined(devices[0], 'a device')), 'a profile');
    return {
      model: modelName,
      inputBytes: cutBytes(sequence.inputs),
      labelBytes: cutBytes([label]),
      layers: first.layers as readonly LayerProfile[],
      batchSizes: machine.batchSizesToProfile,
      devices: Object.fromEntries(devices.map((name) => [name, defined(this.#profiles.get(name), name).times])),
    };
  }

  #deploy(plan: Plan, epoch: number, optimizerStep: number): void {
    this.#epoch = epoch;
    this.#program = program(plan);
    this.#options.hooks.observe({ kind: 'deployment', plan });
    const { sequence, state } = this.#options.subject;
    const owned = new Map<string, ReadonlySet<string>>();
    for (const { layers, devices } of plan.stages) {
      const stageLayers = sequence.layers.slice(layers[0], layers[1]);
      const entries: { role: StateRole; name: string; value: Tensor }[] = [];
      const add = (role: StateRole, name: string): void => {
        const value = state[role].get(name);
        if (value !== undefined) entries.push({ role, name, value });
      };
      for (const layer of stageLayers) {
        for (const name of layer.parameters) add('parameter', name);
        for (const name of layer.buffers) add('buffer', name);
      }
      const parameters = new Set(stageLayers.flatMap((layer) => layer.parameters));
      for (const name of state.optimizer.keys()) {
        if (parameters.has(optimizedParameter(name))) add('optimizer', name);
      }
      const names = new Set(entries.filter(({ role }) => role !== 'optimizer').map(({ name }) => name));
      for (const device of devices) {
        owned.set(device, names);
        this.#send(device, message('deploy', { plan, stateCount: entries.length, step: optimizerStep }));
        for (const { role, name, value } of entries) this.#send(device, message('state', { role, name }, [value]));
      }
    }
    this.#owned = owned;
  }

  #feed(round: number): void {
    this.#feeding = this.#feeding.then(() => this.#sendBatch(round)).catch((error: unknown) => this.#abort(error));
  }

  /** Sends a round's pieces, one micro-batch after the other, to those who own the samples; waits where a link is full. */
  async #sendBatch(round: number): Promise<void> {
    if (this.#state.phase === 'ended') return;
    const { inputs, labels } = this.#options.hooks.batch(round);
    const { microBatchSize, microBatchCount, devices } = defined(this.#program, 'the program');
    for (let microBatch = 0; microBatch < microBatchCount; microBatch++) {
      for (const { device, instructions } of devices) {
        for (const instruction of instructions) {
          if (instruction.kind !== 'receive' || instruction.from !== null || instruction.microBatch !== microBatch) continue;
          const [first, end] = instruction.samples.map((sample) => sample + microBatch * microBatchSize) as [number, number];
          const tensors = (instruction.payload === 'input' ? inputs : [labels]).map((value) => sliceSamples(value, 0, first, end));
          const frame: Frame = { kind: instruction.payload, epoch: this.#epoch, round, microBatch, tensors };
          await this.#handOver(device, frame, 'pipeline');
        }
      }
    }
  }

  #writeCheckpoint(round: number): void {
    const missing = [...this.#owned.values()].flatMap((names) => [...names]).filter((name) => !this.#arrived.has(name));
    if (missing.length > 0)
      return this.#abort(new RunError(`Training ended: nobody sent ${missing.slice(0, 3).join(', ')} after round ${round}.`));
    this.#arrived.clear();
    const state: RunState = {
      parameter: new Map(this.#snapshot.parameter),
      buffer: new Map(this.#snapshot.buffer),
      optimizer: new Map(this.#snapshot.optimizer),
    };
    this.#options.hooks.onCheckpoint(round, state).then(
      () => this.#input({ kind: 'checkpointed', round }),
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
    const links = [...this.#links.values()];
    void Promise.all(links.map((link) => link.close('the run is over'))).then(settle, settle);
  }
}

/** Milliseconds of forward and backward for one sample, at the largest batch measured. */
function sampleMs(times: DeviceTimes, batchSizes: readonly number[]): number {
  const last = batchSizes.length - 1;
  const total = [...(times.forwardMs[last] ?? []), ...(times.backwardMs[last] ?? [])].reduce((sum, ms) => sum + ms, 0);
  return total / defined(batchSizes[last], 'a batch size');
}

/** A given plan with its device names replaced by those that joined, in order of appearance, unless they are the same names already. */
function renameDevices(plan: Plan, devices: readonly string[]): Plan {
  const named = [...new Set(plan.stages.flatMap((stage) => stage.devices))];
  if (named.every((name) => devices.includes(name))) return plan;
  assert(named.length <= devices.length, 'the plan has no more devices than joined');
  const rename = new Map(named.map((name, index) => [name, defined(devices[index], 'a device')]));
  return {
    ...plan,
    stages: plan.stages.map((stage) => ({ ...stage, devices: stage.devices.map((name) => defined(rename.get(name), name)) })),
  };
}
